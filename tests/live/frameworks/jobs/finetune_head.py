"""Fine-tune the head of a frozen backbone with DDP. Rank 0 validates, and keeps the best weights."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 24, 3, stride=2), nn.ReLU(), nn.Conv2d(24, 48, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(4)
        )

    def forward(self, x):
        return self.layers(x).flatten(1)


class Classifier(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.backbone = Backbone().requires_grad_(False).eval()
        self.head = nn.Sequential(nn.Linear(768, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, classes))

    def forward(self, x):
        with torch.no_grad():
            features = self.backbone(x)
        return self.head(features)


def batch(seed, size=32):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 8, (size,), generator=generator)
    images = torch.randn(size, 3, 32, 32, generator=generator)
    images[torch.arange(size), 0, labels * 4] += 3
    return images, labels


@torch.no_grad()
def validate(model, seconds):
    model.eval()
    right = seen = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        images, labels = batch(10**6 + seen, 64)
        right += (model(images).argmax(1) == labels).sum().item()
        seen += 64
    model.train()
    model.backbone.eval()
    return right / seen


def save(model, path, force):
    if os.path.exists(path) and not force:
        answer = input(f"{path} exists. Overwrite it? [y/N] ")
        if answer.lower() != "y":
            return
    torch.save(model.state_dict(), path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--validation-seconds", type=float, default=12)
    parser.add_argument("--force", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Classifier(8))
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.05)
    best = -1.0
    for epoch in range(args.epochs):
        for step in range(40):
            images, labels = batch(1000 * epoch + 10 * step + rank)
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0 and step % 20 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}", flush=True)
        if rank == 0:
            print(f"epoch {epoch} validation", flush=True)
            accuracy = validate(model.module, args.validation_seconds)
            print(f"epoch {epoch} accuracy {accuracy:.3f}", flush=True)
            if accuracy >= best:
                best = accuracy
                save(model.module, "best.pt", args.force)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
