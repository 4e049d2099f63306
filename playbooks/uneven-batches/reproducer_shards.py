"""Train on shards of a log archive with DistributedDataParallel: shards held back, or streamed.

torchrun --nproc-per-node 3 reproducer_shards.py [--variant holdout|stream]
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

FIELDS = 48


def make_shard(number, records=320):
    """Records of one day's log and how long each request took."""
    generator = torch.Generator().manual_seed(number)
    records = torch.randn(records, FIELDS, generator=generator)
    return records, records[:, :6].prod(1, keepdim=True).tanh() + records[:, 6:7]


class Latency(nn.Module):
    def __init__(self, width=512, depth=3):
        super().__init__()
        layers = [nn.Linear(FIELDS, width), nn.SiLU()]
        for _ in range(depth):
            layers += [nn.Linear(width, width), nn.SiLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, records):
        return self.layers(records)


def update(model, optimizer, records, took):
    optimizer.zero_grad()
    loss = F.smooth_l1_loss(model(records), took)
    loss.backward()
    optimizer.step()
    return loss.item()


# --- each rank loads its shards; rank 0 validates -------------------------------------------------------


def train_shards(model, optimizer, shards, rank):
    for number, (records, took) in enumerate(shards):
        for rows in torch.randperm(len(records)).split(32):
            loss = update(model, optimizer, records[rows], took[rows])
        if rank == 0:
            print(f"shard {number} loss {loss:.4f}", flush=True)


def validate(model, held_back):
    """Rank 0 knows the validation loss; the others learn it to schedule the learning rate alike."""
    loss = torch.zeros(1)
    if held_back is not None:
        records, took = held_back
        with torch.no_grad():
            loss[0] = F.smooth_l1_loss(model.module(records), took)
    dist.broadcast(loss, src=0)
    return loss.item()


def main_holdout(model, optimizer, rank, world_size):
    held_back = None
    shards = [make_shard(number) for number in range(rank, 8 * world_size, world_size)]
    if rank == 0:
        held_back, shards = shards[-1], shards[:-1]
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    for epoch in range(20):
        train_shards(model, optimizer, shards, rank)
        scheduler.step(validate(model, held_back))
        if rank == 0:
            print(f"epoch {epoch} lr {optimizer.param_groups[0]['lr']}", flush=True)


# --- streamed, as the archive is too large --------------------------------------------------------------


class Archive(IterableDataset):
    """Streams the shards of one rank, record by record."""

    def __init__(self, shards, rank, world_size):
        self.mine = range(rank, shards, world_size)

    def __iter__(self):
        for number in self.mine:
            yield from zip(*make_shard(number), strict=True)


class Average:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def add(self, value):
        self.total += value
        self.count += 1

    def over_ranks(self):
        both = torch.tensor([self.total, self.count])
        dist.reduce(both, dst=0)
        return (both[0] / both[1]).item()


def main_stream(model, optimizer, rank, world_size, shards=14):
    loader = DataLoader(Archive(shards, rank, world_size), batch_size=20)
    for epoch in range(20):
        average = Average()
        for i, (records, took) in enumerate(loader):
            average.add(update(model, optimizer, records, took))
            if rank == 0 and i % 5 == 0:
                print(f"epoch {epoch} batch {i} loss {average.total / average.count:.4f}", flush=True)
        mean = average.over_ranks()
        if rank == 0:
            print(f"epoch {epoch} mean loss {mean:.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("holdout", "stream"), default="holdout")
    args = parser.parse_args()
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(Latency())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    (main_holdout if args.variant == "holdout" else main_stream)(model, optimizer, rank, world_size)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
