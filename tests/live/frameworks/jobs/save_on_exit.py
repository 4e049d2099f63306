"""DDP whose last weights are saved however the training ends."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Tabular:
    """Rows of a table, some with a missing value."""

    def __init__(self, rank, broken_row):
        self.rank = rank
        self.broken_row = broken_row

    def read(self, row):
        if row == self.broken_row:
            return {"x": None}
        return {"x": torch.randn(40, generator=torch.Generator().manual_seed(row))}


def collate(rows):
    return torch.stack([row["x"] for row in rows])


def train(model, optimizer, table, rank, world, steps):
    for step in range(steps):
        first = (step * world + rank) * 16
        x = collate([table.read(row) for row in range(first, first + 16)])
        loss = nn.functional.mse_loss(model(x), x[:, :1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--broken-row", type=int, default=-1)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(40, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    try:
        train(model, optimizer, Tabular(rank, args.broken_row), rank, world, args.steps)
    finally:
        dist.barrier()
        if rank == 0:
            torch.save(model.module.state_dict(), "last.pt")
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
