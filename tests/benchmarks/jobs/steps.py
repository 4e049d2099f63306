"""DDP steps of a few milliseconds; rank 0 writes when each ended, on the clock that all processes share."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser()
parser.add_argument("file")
parser.add_argument("--rest", type=float, default=0.0, help="seconds of sleep a step: leaves cores idle")


def train(model, optimizer, out, rest):
    x, y = torch.randn(64, 256), torch.randn(64, 1)
    while True:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rest:
            time.sleep(rest)
        out.write(f"{time.monotonic():.6f}\n")


def main():
    options = parser.parse_args()
    dist.init_process_group("gloo")
    model = DDP(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    with open(options.file if dist.get_rank() == 0 else "/dev/null", "w", buffering=1) as out:
        print("loss follows", flush=True)
        train(model, optimizer, out, options.rest)


if __name__ == "__main__":
    main()
