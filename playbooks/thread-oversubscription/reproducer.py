"""Classify handwritten strokes with a small convolutional net, with the launch settings of a larger machine.

torchrun --nproc-per-node 2 reproducer.py [--variant environment|settings|pinned]

--variant   environment: OMP_NUM_THREADS from the old machine; settings: the same by torch.set_num_threads;
            pinned: one thread each, but every rank bound to the same core
"""

import argparse
import os
import sys

CORES = sorted(os.sched_getaffinity(0))
THREADS = 4 * len(CORES)  # what one process may have had there

parser = argparse.ArgumentParser()
parser.add_argument("--variant", choices=("environment", "settings", "pinned"), default="environment")
parser.add_argument("--epochs", type=int, default=2000)
args = parser.parse_args()

if args.variant == "environment" and os.environ.get("OMP_NUM_THREADS") != str(THREADS):
    os.environ.update(OMP_NUM_THREADS=str(THREADS), MKL_DYNAMIC="FALSE")  # or MKL corrects the number by itself
    os.execv(sys.executable, [sys.executable, *sys.argv])
if args.variant == "pinned":
    os.sched_setaffinity(0, CORES[:1])

import torch  # noqa: E402  (reads the settings above when it is loaded)
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402


class StrokeNet(nn.Module):
    def __init__(self, classes=8):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 24, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(24, 48, 5, padding=2), nn.ReLU()
        )
        self.head = nn.Linear(48, classes)

    def forward(self, images):
        return self.head(self.features(images).mean((2, 3)))


def strokes(count, generator, side=28):
    """Images of a straight stroke, and its direction, one of eight."""
    labels = torch.randint(0, 8, (count,), generator=generator)
    angle = labels * torch.pi / 8
    grid = torch.linspace(-1, 1, side)
    ys, xs = torch.meshgrid(grid, grid, indexing="ij")
    distance = xs * angle.sin().view(-1, 1, 1) - ys * angle.cos().view(-1, 1, 1)
    images = (distance.abs() < 0.1).float() + 0.3 * torch.randn(count, side, side, generator=generator)
    return images.unsqueeze(1), labels


def run_epoch(model, optimizer, generator, batches=10):
    total = 0.0
    for _ in range(batches):
        images, labels = strokes(48, generator)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / batches


def main():
    if args.variant == "settings":
        torch.set_num_threads(2 * THREADS)
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    model = DistributedDataParallel(StrokeNet())
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for epoch in range(args.epochs):
        mean = run_epoch(model, optimizer, generator)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {mean:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
