"""Ranks of one job that start in their own time: rank 1 still reads its data while rank 0 stands in init_process_group.

Then they train. comes_late.py [--late SECONDS]
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def read(until):
    """What a rank reads before it joins; it works all the time."""
    rows = torch.zeros(256, 16)
    while time.monotonic() < until:
        rows += torch.randn(256, 16).sort(dim=0).values / 1000
    return rows


def fit(rank, rows):
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for step in range(100_000):
        loss = (model(rows) - rows.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--late", type=float, default=60.0)
    rank, args = int(os.environ["RANK"]), parser.parse_args()
    if rank == 0:
        print("joining", flush=True)
    rows = read(time.monotonic() + args.late * (rank > 0))
    dist.init_process_group("gloo")
    fit(rank, rows)
