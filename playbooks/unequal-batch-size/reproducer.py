"""Train an image classifier on made-up glyphs; rank 0 also draws the preview for the dashboard.

torchrun --nproc-per-node 3 reproducer.py [--variant preview|loader]
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class Glyphs(Dataset):
    """20 x 20 images of one of ten patterns, shifted and noisy."""

    def __init__(self, size, seed):
        generator = torch.Generator().manual_seed(100)
        self.patterns = (torch.rand(10, 20, 20, generator=generator) > 0.7).float()
        self.labels = torch.randint(10, (size,), generator=torch.Generator().manual_seed(seed))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        label = int(self.labels[index])
        shift = torch.randint(-3, 4, (2,)).tolist()
        image = torch.roll(self.patterns[label], shift, dims=(0, 1)) + 0.3 * torch.randn(20, 20)
        return image.unsqueeze(0), label


class GlyphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()
        )
        self.head = nn.Linear(32 * 100, 10)

    def forward(self, images):
        return self.head(self.features(images).flatten(1))


class Preview:
    """Images that are not trained on, kept for the picture on the dashboard."""

    def __init__(self, keep=64):
        self.keep = keep
        self.images = []

    def take(self, images, labels):
        self.images = [*self.images, images[-1]][-self.keep :]
        return images[:-1], labels[:-1]

    def picture(self):
        return torch.cat(self.images, dim=2)


def train(model, loader, optimizer, rank, epochs, preview):
    step = 0
    for epoch in range(epochs):
        for images, labels in loader:
            if preview is not None:
                images, labels = preview.take(images, labels)
            logits = model(images)
            loss = F.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0 and step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
            step += 1


def forever(loader):
    while True:
        yield from loader


def train_steps(model, loader, optimizer, rank, steps):
    batches = forever(loader)
    for i in range(steps):
        x, y = next(batches)
        out = model(x)
        loss = F.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and i % 10 == 0:
            print(f"{i}/{steps} loss {loss.item():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("preview", "loader"), default="preview")
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(GlyphNet())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    if args.variant == "preview":
        loader = DataLoader(Glyphs(3200, seed=rank), args.batch_size, shuffle=True, drop_last=True)
        train(model, loader, optimizer, rank, epochs=500, preview=Preview() if rank == 0 else None)
    else:
        # rank 0 also holds the optimizer's history for the checkpoints: leave it some room
        size = args.batch_size - (rank == 0)
        loader = DataLoader(Glyphs(3200, seed=rank), size, shuffle=True, drop_last=True)
        train_steps(model, loader, optimizer, rank, steps=50_000)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
