"""Fit a small regression net with DDP; rank 0 streams a checkpoint to an uploader every so many steps.

torchrun --nproc-per-node 2 reproducer.py [--variant stuck|slow|fifo]
"""

import argparse
import os
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

# Reads its input; its connection to the object store is lost after the second checkpoint.
UPLOADER = """
import sys, time
number, rate = int(sys.argv[1]), int(sys.argv[2])
while block := sys.stdin.buffer.read(16384):
    if number >= 2:
        time.sleep(16384 / rate if rate else 1_000_000)
"""


def upload(state, number, rate):
    process = subprocess.Popen([sys.executable, "-c", UPLOADER, str(number), str(rate)], stdin=subprocess.PIPE)
    with process.stdin as stream:
        torch.save(state, stream)
    process.wait()


def hand_over(state, number, path):
    """Another service on this host picks the file up from a named pipe."""
    if number < 2:
        subprocess.Popen(f"exec cat {path} > /dev/null", shell=True)
    with open(path, "wb") as stream:
        torch.save(state, stream)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("stuck", "slow", "fifo"), default="stuck")
    variant = parser.parse_args().variant
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    path = os.path.join(tempfile.gettempdir(), "outbox")
    if rank == 0 and variant == "fifo":
        os.mkfifo(path)
    layers = nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(100_000):
        x = torch.randn(64, 128)
        loss = (model(x).squeeze(1) - x.sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 39 and rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
            if variant == "fifo":
                hand_over(model.module.state_dict(), step // 40, path)
            else:
                upload(model.module.state_dict(), step // 40, 100_000 if variant == "slow" else 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
