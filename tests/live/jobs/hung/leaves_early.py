"""The last rank has a batch less than the others: it waits in a barrier for those who wait for its gradients."""

import argparse
import datetime
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def warm_up(model, optimizer, go, pause_s):
    """Train until somebody has made the file `go`, as rank 0 sees it."""
    gone = torch.zeros(1)
    while not gone.item():
        train(model, optimizer, [torch.randn(8, 16)], pause_s)
        gone.fill_(os.path.exists(go))
        dist.broadcast(gone, 0)


def train(model, optimizer, batches, pause_s):
    for step, x in enumerate(batches):
        time.sleep(pause_s)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--debug-port", type=int, help="serve torch's own debug pages there")
    parser.add_argument("--timeout", type=float, default=1800, help="of a collective (s)")
    parser.add_argument("--pause", type=float, default=0, help="before each step (s)")
    parser.add_argument("--go", help="train on until this file is there")
    arguments = parser.parse_args()
    port = arguments.debug_port
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=arguments.timeout))
    rank, size = dist.get_rank(), dist.get_world_size()
    if port:
        from torch.distributed.debug import start_debug_server

        start_debug_server(port)
    model = DDP(nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if arguments.go:
        warm_up(model, optimizer, arguments.go, arguments.pause)
    batches = [torch.randn(8, 16) for _ in range(12 - (rank == size - 1))]
    train(model, optimizer, batches, arguments.pause)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
