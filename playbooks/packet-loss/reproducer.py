"""Data-parallel training on hosts (network namespaces on one switch); the link of one host loses packets.

python reproducer.py [--steps-before N] [--variant both|one-way|heavy]     needs root, `ip` and `iptables`

--variant   both: of three hosts the second loses a fifth of all packets that it sends and receives; one-way: of two
            hosts the second loses a fifth of what it receives; heavy: as `both`, with a model so large that
            hardly any step completes
"""

import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

SHARE = "0.2"
WIDTH = {"both": 32, "one-way": 32, "heavy": 256}


def train(steps, width):
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    teacher = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    for step in range(steps):
        inputs = torch.randn(256, 16, generator=generator)
        with torch.no_grad():
            targets = teacher(inputs)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


def lose(bed, variant):
    """Drop packets like a bad cable, on the receiver: TCP notices if the sender's own kernel drops them."""
    lost = ["-m", "statistic", "--mode", "random", "--probability", SHARE, "-j", "DROP"]
    bed.run(1, "iptables", "-A", "INPUT", "-i", "eth0", *lost)
    for other in range(bed.count):
        if variant != "one-way" and other != 1:
            bed.run(other, "iptables", "-A", "INPUT", "-s", bed.address(1), *lost)


def run(args):
    from hosts import hosts

    with hosts(2 if args.variant == "one-way" else 3) as bed:
        for index in range(bed.count):
            bed.ip(index, "link", "set", "eth0", "gso_max_segs", "1")  # packets as on a wire

        def on_line(line):
            if line.startswith(f"step {args.steps_before} "):
                lose(bed, args.variant)

        return bed.job(__file__, sys.argv[1:], on_line)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps-before", type=int, default=20, help="steps on a good line")
    parser.add_argument("--variant", choices=WIDTH, default="both")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    if "RANK" in os.environ:
        train(args.steps, WIDTH[args.variant])
    else:
        sys.exit(run(args))
