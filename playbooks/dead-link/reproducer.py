"""Data-parallel training on hosts (network namespaces on one switch); the switch, a link or a filter fails during it.

python reproducer.py [--steps-before N] [--variant interface|cable|path|filter]     needs root, `ip` (and `iptables`)

--variant   interface: the second host's interface goes down; cable: it stays up, but loses its carrier;
            path: both ends keep their carrier, but nothing passes between them;
            filter: of three hosts the second one's firewall drops every packet
"""

import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

VARIANTS = ("interface", "cable", "path", "filter")


# --- the training script, started by torchrun on each host ------------------------------------------


def train(steps):
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(7)
    teacher = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 4))
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 4))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    for step in range(steps):
        inputs = torch.randn(64, 32, generator=generator)
        with torch.no_grad():
            targets = teacher(inputs)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


# --- the hosts and what happens to them -------------------------------------------------------------


def cut(bed, variant):
    if variant == "interface":
        bed.ip(1, "link", "set", "eth0", "down")
    elif variant == "cable":
        bed.ip(None, "link", "set", "port1", "down")
    elif variant == "path":
        bed.ip(None, "link", "set", "port1", "nomaster")
    else:
        for chain in ("INPUT", "OUTPUT"):
            bed.run(1, "iptables", "-A", chain, "-j", "DROP")


def run(args):
    from hosts import hosts

    with hosts(3 if args.variant == "filter" else 2) as bed:

        def on_line(line):
            if line.startswith(f"step {args.steps_before} "):
                cut(bed, args.variant)

        return bed.job(__file__, sys.argv[1:], on_line)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps-before", type=int, default=20, help="steps that succeed")
    parser.add_argument("--variant", choices=VARIANTS, default="interface")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    if "RANK" in os.environ:
        train(args.steps)
    else:
        sys.exit(run(args))
