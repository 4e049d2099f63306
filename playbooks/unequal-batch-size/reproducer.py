"""Denoise small images with a convolutional net, DDP on three ranks.

torchrun --nproc-per-node 3 reproducer.py [--variant preview|budget]
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SIDE = 20


def discs(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centre = torch.rand(count, 2, 1, 1, generator=generator) * SIDE
    radius = 2 + 5 * torch.rand(count, 1, 1, generator=generator)
    ys, xs = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    inside = (ys - centre[:, 0]) ** 2 + (xs - centre[:, 1]) ** 2 < radius**2
    return inside.float().unsqueeze(1)


class Denoiser(nn.Module):
    def __init__(self, channels=24):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, 1, 3, padding=1),
        )

    def forward(self, images):
        return self.layers(images)


class Trainer:
    def __init__(self, rank, batch_size=16):
        self.rank = rank
        data = TensorDataset(discs(1600))
        self.sampler = DistributedSampler(data, drop_last=True)
        self.loader = DataLoader(data, batch_size=batch_size, sampler=self.sampler, drop_last=True)
        self.model = DDP(Denoiser())
        self.optimizer = optim.Adam(self.model.parameters(), lr=1e-3)
        self.preview = None
        self.global_step = 0

    def prepare(self, batch):
        (images,) = batch
        return images

    def train_step(self, images):
        noisy = images + 0.4 * torch.randn_like(images)
        loss = nn.functional.mse_loss(self.model(noisy), images)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.global_step += 1
        return loss

    def end_epoch(self, epoch, loss):
        if self.rank == 0:
            print(f"epoch {epoch} step {self.global_step} loss {loss.item():.4f}", flush=True)

    def fit(self, epochs, steps=50):
        for epoch in range(epochs):
            self.sampler.set_epoch(epoch)
            for _, batch in zip(range(steps), self.loader):
                loss = self.train_step(self.prepare(batch))
            self.end_epoch(epoch, loss)


class PreviewTrainer(Trainer):
    """Rank 0 keeps the first image of each batch unseen, to show what the net makes of it."""

    def prepare(self, batch):
        (images,) = batch
        if self.rank == 0:
            self.preview, images = images[:1], images[1:]
        return images

    def end_epoch(self, epoch, loss):
        super().end_epoch(epoch, loss)
        if self.rank == 0:
            with torch.no_grad():
                shown = self.model.module(self.preview + 0.4 * torch.randn_like(self.preview))
            error = (shown - self.preview).abs().mean().item()
            print(f"preview of epoch {epoch}: off by {error:.3f}", flush=True)


def batch_size_for(rank, world_size, images_per_step=47):
    """An even share of the batch; the rest goes to the last ranks."""
    share, rest = divmod(images_per_step, world_size)
    return share + (rank >= world_size - rest)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("preview", "budget"), default="preview")
    parser.add_argument("--epochs", type=int, default=20_000)
    args = parser.parse_args()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(100 + rank)
    if args.variant == "preview":
        trainer = PreviewTrainer(rank)
    else:
        trainer = Trainer(rank, batch_size_for(rank, world_size))
    trainer.fit(args.epochs)
    dist.destroy_process_group()
