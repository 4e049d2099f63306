"""Data-parallel training on hosts (network namespaces on one switch); the link of one host is slow.

python reproducer.py [--variant shaped|path|three]     needs root, `ip` and `tc`

--variant   shaped: of two hosts the second sends through a shaper of 2 Mbit/s, and has a faster interface, unused;
            path: the switch limits the link to the second host to 2 Mbit/s, which neither host can see;
            three: of three hosts, the link of the second one is limited to 2 Mbit/s in both directions
"""

import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

RATE = ["tbf", "rate", "2mbit", "burst", "16kb", "limit", "400kb"]
HOSTS = {"shaped": 2, "path": 2, "three": 3}


def train(steps):
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(11)
    model = DistributedDataParallel(
        nn.Sequential(
            nn.Conv1d(1, 32, 9, padding=4), nn.ReLU(), nn.AdaptiveAvgPool1d(32), nn.Flatten(), nn.Linear(1024, 40)
        )
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    for step in range(steps):
        labels = torch.randint(0, 40, (32,), generator=generator)
        time = torch.linspace(0, 6.28, 256)
        waves = torch.sin(time * (1 + labels[:, None])) + 0.3 * torch.randn(32, 256, generator=generator)
        loss = nn.functional.cross_entropy(model(waves[:, None]), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


def run(args):
    from hosts import hosts

    with hosts(HOSTS[args.variant]) as bed:
        if args.variant == "shaped":
            for index in range(bed.count):  # another network, which the job was not told to use
                bed.plug(index, "eth1", f"fast{index}", f"10.89.0.{index + 1}")
            bed.run(1, "tc", "qdisc", "add", "dev", "eth0", "root", *RATE)
        else:
            bed.run(None, "tc", "qdisc", "add", "dev", "port1", "root", *RATE)
        if args.variant == "three":
            bed.run(1, "tc", "qdisc", "add", "dev", "eth0", "root", *RATE)
        return bed.job(__file__, sys.argv[1:])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=HOSTS, default="shaped")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    if "RANK" in os.environ:
        train(args.steps)
    else:
        sys.exit(run(args))
