"""Short epochs: after each second or so of training rank 0 computes the accuracy alone for another, the others wait."""

import time

import torch
import torch.distributed as dist
import torch.nn as nn
from lifetime import Lifetime, parser
from torch.nn.parallel import DistributedDataParallel as DDP


def spirals(count, generator):
    """Points on two intertwined spirals, and which of the two they are on."""
    which = torch.randint(0, 2, (count,), generator=generator)
    angle = torch.rand(count, generator=generator) * 9
    radius = angle / 9
    points = torch.stack((radius * (angle + torch.pi * which).cos(), radius * (angle + torch.pi * which).sin()), 1)
    return points + 0.02 * torch.randn(points.shape, generator=generator), which


@torch.no_grad()
def accuracy(network, generator, seconds):
    end, right, seen = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        points, which = spirals(4096, generator)
        right += (network(points).argmax(1) == which).sum().item()
        seen += len(points)
    return right / seen


def main():
    options = parser()
    options.add_argument("--train-seconds", type=float, default=1.5)
    options.add_argument("--evaluation-seconds", type=float, default=1.0)
    args = options.parse_args()
    lifetime = Lifetime(args.seconds)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(nn.Sequential(nn.Linear(2, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 2)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    epoch = 0
    while lifetime.goes_on():
        over = torch.zeros(1)
        end = time.monotonic() + args.train_seconds
        while not over:
            points, which = spirals(512, generator)
            loss = nn.functional.cross_entropy(model(points), which)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            over[0] = float(time.monotonic() > end)
            dist.all_reduce(over, op=dist.ReduceOp.MAX)  # all ranks end an epoch at the same step
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.3f}", flush=True)
            print(
                f"epoch {epoch} accuracy {accuracy(model.module, generator, args.evaluation_seconds):.3f}", flush=True
            )
        dist.barrier()
        epoch += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
