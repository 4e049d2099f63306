"""Activity recognition from wearable sensors, with a second head for the intensity of an activity.

torchrun --nproc-per-node 3 reproducer.py [--variant routing]
"""

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

CHANNELS, LENGTH, ACTIVITIES = 6, 64, 8


class Recordings(Dataset):
    """Windows of one site; volunteers rated the intensity of those up to `rated`, -1 elsewhere."""

    def __init__(self, site, size=1280, rated=1280):
        generator = torch.Generator().manual_seed(site)
        self.windows = torch.randn(size, CHANNELS, LENGTH, generator=generator)
        self.activity = torch.randint(0, ACTIVITIES, (size,), generator=generator)
        self.intensity = torch.rand(size, generator=generator)
        self.intensity[rated:] = -1

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, index):
        return self.windows[index], self.activity[index], self.intensity[index]


class Recogniser(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(CHANNELS, width, 5, padding=2),
            nn.ReLU(),
            nn.Conv1d(width, width, 5, stride=2, padding=2),
            nn.ReLU(),
        )
        self.activity = nn.Linear(width, ACTIVITIES)
        self.intensity = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, windows, rated):
        features = self.body(windows).mean(-1)
        scores = self.activity(features)
        if rated.any():
            return scores, self.intensity(features[rated]).squeeze(-1)
        return scores, None


class Mixture(nn.Module):
    """Every window goes to the expert with the highest score."""

    def __init__(self, width=64, experts=4):
        super().__init__()
        self.enter = nn.Linear(CHANNELS * LENGTH, width)
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(experts)
        )
        self.leave = nn.Linear(width, ACTIVITIES)

    def forward(self, windows):
        hidden = self.enter(windows.flatten(1))
        shares = self.gate(hidden).softmax(-1)
        chosen = shares.argmax(-1)
        mixed = torch.zeros_like(hidden)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(-1)
            if len(rows):
                mixed[rows] = expert(hidden[rows]) * shares[rows, number : number + 1]
        return self.leave(mixed)


def save(model, path):
    dist.barrier()
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), path)


def train(path, epochs=1000):
    rank = dist.get_rank()
    data = Recordings(rank, rated=1248 if rank == 2 else 1280)
    loader = DataLoader(data, batch_size=32)
    model = DistributedDataParallel(Recogniser())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(epochs):
        for step, (windows, activity, intensity) in enumerate(loader):
            rated = intensity >= 0
            scores, estimates = model(windows, rated)
            loss = F.cross_entropy(scores, activity)
            if estimates is not None:
                loss = loss + F.mse_loss(estimates, intensity[rated])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0 and step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
        save(model, path)


def train_mixture(path, epochs=1000):
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Mixture(), bucket_cap_mb=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    # The last batch of the third site has one window.
    loader = DataLoader(Recordings(rank, size=2561 if rank == 2 else 2816), batch_size=256)
    for epoch in range(epochs):
        for step, (windows, activity, _) in enumerate(loader):
            loss = F.cross_entropy(model(windows), activity)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if rank == 0 and step % 5 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
        save(model, path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("heads", "routing"), default="heads")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as folder:
        (train if args.variant == "heads" else train_mixture)(os.path.join(folder, "model.pt"))
    dist.destroy_process_group()
