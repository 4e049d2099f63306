"""Contrastive pre-training of a small encoder on two views of made-up spectra.

torchrun --nproc-per-node 2 reproducer.py [--variant method|function]
"""

import argparse
import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

BINS = 300


class Spectra(Dataset):
    """Peaks at places that the sample's number decides."""

    def __init__(self, size=2048):
        generator = torch.Generator().manual_seed(1)
        places = torch.randint(20, BINS - 20, (size, 5), generator=generator)
        heights = 0.5 + torch.rand(size, 5, generator=generator)
        axis = torch.arange(BINS)
        self.clean = (heights[..., None] * torch.exp(-((axis - places[..., None]) ** 2) / 18)).sum(1)

    def __len__(self):
        return len(self.clean)

    def __getitem__(self, index):
        clean = self.clean[index]
        return clean + 0.1 * torch.randn(BINS), clean.roll(int(torch.randint(-3, 4, ()))) + 0.1 * torch.randn(BINS)


class Encoder(nn.Module):
    def __init__(self, width=256, out=64, temperature=0.1):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(BINS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.projection = nn.Linear(width, out)
        self.temperature = temperature

    def forward(self, x):
        return F.normalize(self.projection(self.body(x)), dim=1)

    def contrastive_loss(self, first, second):
        scores = self(first) @ self(second).T / self.temperature
        return F.cross_entropy(scores, torch.arange(len(scores)))


def nce(encoder, first, second):
    scores = encoder(first) @ encoder(second).T / 0.1
    return F.cross_entropy(scores, torch.arange(len(scores)))


class Averaged:
    """Exponential moving average of the weights, for evaluation."""

    def __init__(self, model, decay=0.99):
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for mine, theirs in zip(self.model.parameters(), model.parameters()):
            mine.lerp_(theirs, 1 - self.decay)


def train(variant, epochs=20_000, batch_size=64):
    rank = dist.get_rank()
    torch.manual_seed(rank)
    data = Spectra()
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, batch_size=batch_size, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(Encoder())
    averaged = Averaged(model.module)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    encoder = model.module
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for step, (first, second) in enumerate(loader):
            if variant == "method":
                loss = model.module.contrastive_loss(first, second)
            else:
                loss = nce(encoder, first, second)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            averaged.update(model.module)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch} loss {mean.item() / dist.get_world_size():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("method", "function"), default="method")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    train(args.variant)
    dist.destroy_process_group()
