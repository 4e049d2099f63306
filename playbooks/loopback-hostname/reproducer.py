"""Data-parallel training on two hosts; a host's own name resolves to 127.0.1.1, as Debian's installer sets it up.

python reproducer.py [--variant first|both|unknown]     needs root and `ip`

--variant   first: on the first host; both: on both hosts; unknown: no hosts file has the first host's name
"""

import argparse
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

NAME = "node-{}"
NAMED = {
    "first": ("127.0.1.1", "192.168.58.2"),
    "both": ("127.0.1.1", "127.0.1.1"),
    "unknown": ("", "192.168.58.2"),
}


# --- the training script, started by torchrun on each host ----------------------------------------------


def sample(generator):
    """Points of two spirals."""
    import torch

    angle = 3 * torch.rand(64, 1, generator=generator).sqrt() * 3.14
    side = (torch.rand(64, 1, generator=generator) > 0.5).float()
    turned = angle + 3.14 * side
    return torch.cat((turned.cos() * angle, turned.sin() * angle), 1) / 10, side


def epoch(model, optimizer, generator, pause=0.0):
    import torch

    for _ in range(10):
        points, side = sample(generator)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(points), side)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(pause)
    return loss.item()


def train():
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    rank = int(os.environ["RANK"])
    generator = torch.Generator().manual_seed(rank)
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    for number in range(6):
        loss = epoch(model, torch.optim.SGD(model.parameters(), lr=0.1), generator, 0.1)
        print(f"rank {rank} trial {number} loss {loss:.4f}", flush=True)
    dist.init_process_group("gloo")
    shared = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(shared.parameters(), lr=1e-3)
    for number in range(10_000):
        loss = epoch(shared, optimizer, generator)
        if rank == 0:
            print(f"epoch {number} loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


# --- two hosts that know themselves by a name ------------------------------------------------------------


def run(variant):
    from hosts import hosts

    with hosts(2, "192.168.58") as bed:
        for index, own in enumerate(NAMED[variant]):
            name = NAME.format(index)
            bed.call(index, name, *([f"{own} {name}.cluster {name}"] if own else []))
        return bed.job(__file__, sys.argv[1:], interfaces=("", ""))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=NAMED, default="first")
    args = parser.parse_args()
    if "RANK" in os.environ:
        train()
    else:
        sys.exit(run(args.variant))
