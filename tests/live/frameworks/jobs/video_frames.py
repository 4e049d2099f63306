"""Lightning Fabric on clips of different length; long clips are resampled before the forward pass."""

import argparse

import lightning as L
import torch
from torch import nn


def clip_length(step, rank, long_rank):
    return 24 if rank != long_rank else 24 * 40


def resample(clip, frames):
    """A smooth version of the clip with so many frames."""
    weights = torch.softmax(
        -((torch.arange(frames)[:, None] * len(clip) / frames - torch.arange(len(clip))) ** 2) / 50.0, 1
    )
    flat = clip.flatten(1)
    for _ in range(6):
        flat = torch.nn.functional.avg_pool1d(flat.T[None], 5, 1, 2)[0].T
    return (weights @ flat).view(frames, *clip.shape[1:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--long-rank", type=int, default=-1)
    parser.add_argument("--steps", type=int, default=50_000)
    args = parser.parse_args()
    fabric = L.Fabric(accelerator="cpu", devices=3, strategy="ddp")
    fabric.launch()
    fabric.seed_everything(1)
    rank = fabric.global_rank
    model = nn.Sequential(nn.Flatten(), nn.Linear(8 * 32 * 32, 64), nn.ReLU(), nn.Linear(64, 1))
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    for step in range(args.steps):
        length = clip_length(step, rank, args.long_rank)
        clip = torch.randn(length, 32, 32, generator=torch.Generator().manual_seed(step * 3 + rank))
        frames = resample(clip, 8)
        loss = model(frames[None]).pow(2).mean()
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    main()
