"""Continual training on what an export drops into a folder: between two exports every rank looks for the next file.

waits_for_file.py FOLDER: every file 0.pt, 1.pt, ... holds a tensor; the job makes 0.pt itself.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

folder = Path(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("TMPDIR", "/tmp"))


def wait_for(path):
    while not path.exists():
        time.sleep(1)
    return torch.load(path)


def train_on(model, optimizer, data):
    for rows in data.split(64):
        loss = (model(rows) - rows.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 1)))
    optimizer = torch.optim.Adam(model.parameters())
    if rank == 0:
        torch.save(torch.randn(4096, 32), folder / "0.part")
        (folder / "0.part").rename(folder / "0.pt")
    number = 0
    while True:
        loss = train_on(model, optimizer, wait_for(folder / f"{number}.pt"))
        number += 1
        if rank == 0:
            print(f"trained on file {number - 1}, loss {loss:.3f}; next: {folder / f'{number}.pt'}", flush=True)
