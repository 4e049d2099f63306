"""Training whose last rank reads the data and broadcasts it: nothing is sent to that rank but its acknowledgements.

torchrun ... fed_by_last.py
"""

import time

import torch
import torch.distributed as dist
from torch import nn


def batches(rank, last):
    generator = torch.Generator().manual_seed(11)
    while True:
        batch = torch.randn(64, 32, generator=generator) if rank == last else torch.empty(64, 32)
        if rank == last:
            time.sleep(0.3)
        dist.broadcast(batch, src=last)
        yield batch


def main():
    dist.init_process_group("gloo")
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step, batch in enumerate(batches(rank, last)):
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
