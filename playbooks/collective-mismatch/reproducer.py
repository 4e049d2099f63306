"""Half precision training with a loss scale of our own, kept the same on all ranks.

torchrun --nproc-per-node 3 reproducer.py [--variant scaler|norm]
"""

import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Readings(torch.utils.data.IterableDataset):
    """Meter readings with daily seasons; meters report a surge now and then, as they are."""

    def __init__(self, rank, window=96):
        self.window = window
        self.rng = torch.Generator().manual_seed(rank)
        self.surge_every = {2: 90}.get(rank, 100_000)

    def __iter__(self):
        hours = torch.arange(self.window + 1) / 24 * 2 * math.pi
        n = 0
        while True:
            n += 1
            phase, height = torch.rand(2, generator=self.rng)
            series = (0.5 + height) * torch.sin(hours + 6.283 * phase)
            series += 0.1 * torch.randn(self.window + 1, generator=self.rng)
            if n % (16 * self.surge_every) == 0:
                series[int(torch.randint(self.window, (1,), generator=self.rng))] = 3.0e5
            yield series[:-1], series[-1:]


class LossScaler:
    """Loss scale against underflow: doubled after a while, halved on overflow."""

    def __init__(self, start=1024.0, double_every=200):
        self.scale = torch.tensor([start])
        self.double_every = double_every
        self.good_steps = 0

    def scaled(self, loss):
        return loss * self.scale

    def finite(self, value):
        return bool(torch.isfinite(value.half()).all())

    def update(self, overflow):
        if overflow:
            self.good_steps = 0
            self.scale /= 2
            dist.broadcast(self.scale, src=0)
            return
        self.good_steps += 1
        if self.good_steps % self.double_every == 0:
            self.scale *= 2
        dist.all_reduce(self.scale, op=dist.ReduceOp.MIN)


def train_with_scaler(rank):
    model = DDP(nn.Sequential(nn.Linear(96, 512), nn.SiLU(), nn.Linear(512, 512), nn.SiLU(), nn.Linear(512, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    scaler = LossScaler()
    loader = iter(torch.utils.data.DataLoader(Readings(rank), batch_size=16))
    for step in range(5000):
        history, target = next(loader)
        loss = F.mse_loss(model(history), target)
        optimizer.zero_grad()
        scaler.scaled(loss).backward()
        overflow = not scaler.finite(scaler.scaled(loss))
        if not overflow:
            for p in model.parameters():
                p.grad /= scaler.scale
            optimizer.step()
        scaler.update(overflow)
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f} scale {scaler.scale.item():.0f}", flush=True)


# --- input statistics ---------------------------------------------------------------------------------


class RunningNorm(nn.Module):
    """Standardises the input by statistics over all ranks; later they are taken from rank 0 and kept."""

    def __init__(self, features, settle=1.0e-3):
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("var", torch.ones(features))
        self.settle = settle

    def mean_over_ranks(self, value):
        total = value.clone()
        dist.all_reduce(total)
        return total / dist.get_world_size()

    def from_first_rank(self, value):
        kept = value.clone()
        dist.broadcast(kept, src=0)
        return kept

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                mean = torch.lerp(self.mean, x.mean(0), 0.05)
                share = self.mean_over_ranks if (mean - self.mean).abs().mean() > self.settle else self.from_first_rank
                self.mean = share(mean)
                self.var = torch.lerp(self.var, x.var(0), 0.05)
        return (x - self.mean) / (self.var + 1e-5).sqrt()


def train_with_norm(rank, world_size):
    torch.manual_seed(3)
    norm = RunningNorm(96, settle=1.5e-3)
    model = nn.Sequential(norm, nn.Linear(96, 256), nn.SiLU(), nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = iter(torch.utils.data.DataLoader(Readings(10 * rank), batch_size=16))
    for step in range(5000):
        history, target = next(loader)
        loss = F.mse_loss(model(history), target)
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world_size
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("scaler", "norm"), default="scaler")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    if args.variant == "scaler":
        train_with_scaler(dist.get_rank())
    else:
        train_with_norm(dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
