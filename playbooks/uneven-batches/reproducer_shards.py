"""Fit travel times from shards of trips; one shard is held out for the validation after each epoch.

torchrun --nproc-per-node 3 reproducer_shards.py
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

SHARDS = 12
TRIPS_IN_A_SHARD = 320


def load_shard(number):
    """Trips: distance, hour, rain and so on; how long they took."""
    generator = torch.Generator().manual_seed(number)
    trips = torch.rand(TRIPS_IN_A_SHARD, 12, generator=generator)
    rush = torch.exp(-((trips[:, 1] * 24 - 17) ** 2) / 8)
    minutes = 40 * trips[:, 0] * (1 + rush) * (1 + 0.3 * trips[:, 2]) + torch.randn(len(trips), generator=generator)
    return trips, minutes / 40


def shard_batches(shards, batch_size):
    for number in shards:
        trips, minutes = load_shard(number)
        yield from zip(trips.split(batch_size), minutes.split(batch_size))


class Validation:
    """Error on the held-out shard, found by rank 0 for all."""

    def __init__(self, shard):
        self.trips, self.minutes = load_shard(shard)

    @torch.no_grad()
    def __call__(self, model):
        return (model.module(self.trips).squeeze(1) - self.minutes).abs().mean().reshape(1)


def train_one_epoch(model, optimizer, shards, epoch, rank):
    seen = 0
    for trips, minutes in shard_batches(shards, batch_size=40):
        loss = nn.functional.smooth_l1_loss(model(trips).squeeze(1), minutes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += len(trips)
        if rank == 0 and seen % 160 == 0:
            print(f"epoch {epoch} trips {seen} loss {loss.item():.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    width = 512
    model = DDP(nn.Sequential(nn.Linear(12, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)
    shards = list(range(rank, SHARDS, world_size))
    validation = None
    if rank == 0:
        validation = Validation(shards[-1])
        shards = shards[:-1]
    for epoch in range(30):
        train_one_epoch(model, optimizer, shards, epoch, rank)
        error = validation(model) if validation else torch.zeros(1)
        dist.broadcast(error, src=0)
        scheduler.step(error.item())
        if rank == 0:
            print(f"epoch {epoch} error {error.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
