"""Classify leaf photographs (made up), with DDP; every sample is cut out, turned and smoothed before it is used.

torchrun --nproc-per-node 2 reproducer.py [--variant worker|remote|main]
"""

import argparse
import math
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

SIDE = 48


def photograph(index, side):
    y, x = np.mgrid[0:side, 0:side] / side
    return np.sin(x * (3 + index % 4)) * np.cos(y * (2 + index % 3)) + np.random.default_rng(index).normal(
        0, 0.1, x.shape
    )


def smooth(image, radius):
    """A blur, one pixel after the other."""
    side = len(image)
    result = np.zeros_like(image)
    for row in range(side):
        for column in range(side):
            total = weight = 0.0
            for i in range(max(0, row - radius), min(side, row + radius + 1)):
                for j in range(max(0, column - radius), min(side, column + radius + 1)):
                    w = math.exp(-((i - row) ** 2 + (j - column) ** 2))
                    total += w * image[i, j]
                    weight += w
            result[row, column] = total / weight
    return result


class Leaves(Dataset):
    def __init__(self, count, slow_after, how):
        self.count, self.slow_after, self.how = count, slow_after, how

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image = photograph(index, SIDE)
        if index >= self.slow_after:
            image = self.augment(image)
        return torch.tensor(image, dtype=torch.float32).flatten(), index % 4

    def augment(self, image):
        if self.how == "remote":
            time.sleep(2.0)  # a service that answers when it likes
            return image
        return smooth(image, 14)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("worker", "remote", "main"), default="worker")
    variant = parser.parse_args().variant
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    first = 60 if rank == 1 or variant == "main" else 10**9
    loader = DataLoader(Leaves(4000, first, variant), batch_size=4, num_workers=0 if variant == "main" else 1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(SIDE * SIDE, 64), nn.ReLU(), nn.Linear(64, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, (images, kinds) in enumerate(loader):
        loss = F.cross_entropy(model(images), kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
