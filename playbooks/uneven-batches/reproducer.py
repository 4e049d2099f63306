"""Train a small classifier on made-up sensor windows with DistributedDataParallel over gloo.

torchrun --nproc-per-node 3 reproducer.py [--variant split|sampler]
"""

import argparse
import math

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler


class SensorWindows(Dataset):
    """Windows of a noisy sine; the label is its frequency band."""

    def __init__(self, size, length=256, seed=0):
        generator = np.random.default_rng(seed)
        self.labels = generator.integers(0, 8, size)
        self.phases = generator.uniform(0, 2 * np.pi, size)
        self.length = length

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        time = np.linspace(0, 1, self.length)
        wave = np.sin(2 * np.pi * (self.labels[index] + 1) * 3 * time + self.phases[index])
        noise = np.random.default_rng(index).normal(0, 0.4, self.length)
        return torch.tensor(wave + noise, dtype=torch.float32), int(self.labels[index])


def build_model(length=256, width=768):
    return nn.Sequential(
        nn.Linear(length, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU(),
        nn.Linear(width, 8),
    )  # fmt: skip


# --- plain functions: each rank takes its slice of the shuffled indices -----------------------------


def batches_of(indices, batch_size):
    return [indices[i : i + batch_size] for i in range(0, len(indices), batch_size)]


def train_epoch(model, optimizer, data, batches, rank, epoch):
    model.train()
    total = 0.0
    num_batches = len(batches)
    for step, batch in enumerate(batches):
        windows, labels = zip(*(data[i] for i in batch))
        loss = F.cross_entropy(model(torch.stack(windows)), torch.tensor(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        if rank == 0:
            print(f"epoch {epoch} step {step + 1}/{num_batches} loss {loss.item():.4f}", flush=True)
    return total / num_batches


def save_checkpoint(model, rank, epoch):
    dist.barrier()
    if rank == 0:
        torch.save(model.module.state_dict(), "/dev/null")
        print(f"saved epoch {epoch}", flush=True)


def main_split(rank, world_size):
    data = SensorWindows(1940)
    order = np.random.default_rng(1).permutation(len(data))
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    mine = np.array_split(order, world_size)[rank]
    batches = batches_of(mine, 17)
    for epoch in range(20):
        mean = train_epoch(model, optimizer, data, batches, rank, epoch)
        if rank == 0:
            print(f"epoch {epoch} mean loss {mean:.4f}", flush=True)
        save_checkpoint(model, rank, epoch)


# --- a trainer class with a sampler of its own ------------------------------------------------------


class ContiguousSampler(Sampler):
    """Rank r reads the r-th run of consecutive samples, so that the page cache is used well."""

    def __init__(self, data, rank, world_size):
        self.share = math.ceil(len(data) / world_size)
        self.start = rank * self.share
        self.stop = min(self.start + self.share, len(data))

    def __iter__(self):
        return iter(range(self.start, self.stop))

    def __len__(self):
        return self.stop - self.start


class Trainer:
    def __init__(self, rank, world_size):
        self.rank = rank
        self.world_size = world_size
        data = SensorWindows(400)
        self.loader = DataLoader(data, batch_size=7, sampler=ContiguousSampler(data, rank, world_size), drop_last=True)
        self.model = DistributedDataParallel(build_model())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def training_step(self, batch):
        windows, labels = batch
        loss = F.cross_entropy(self.model(windows), labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def on_epoch_end(self, losses):
        everyone = [None] * self.world_size
        dist.all_gather_object(everyone, sum(losses) / len(losses))
        if self.rank == 0:
            print(f"mean loss {sum(everyone) / len(everyone):.4f}", flush=True)

    def fit(self, epochs):
        for epoch in range(epochs):
            losses = []
            for step, batch in enumerate(self.loader, 1):
                losses.append(self.training_step(batch).item())
                if self.rank == 0:
                    print(f"[{epoch}:{step}/{len(self.loader)}] loss {losses[-1]:.4f}", flush=True)
            self.on_epoch_end(losses)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("split", "sampler"), default="split")
    args = parser.parse_args()
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if args.variant == "split":
        main_split(rank, world_size)
    else:
        Trainer(rank, world_size).fit(epochs=20)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
