"""DDP on features that are cached on disk; each rank builds its part of the cache again after every epoch."""

import argparse
import os

import numpy as np
import torch
import torch.distributed as dist
from filelock import SoftFileLock
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Features:
    """Cached features of one rank. A soft lock guards the file: the folder may be on NFS."""

    def __init__(self, folder, rank, size):
        self.path = os.path.join(folder, f"features-{rank}.npy")
        self.rank = rank
        self.size = size

    def build(self, epoch):
        with SoftFileLock(self.path + ".lock"):
            rng = np.random.default_rng(epoch * 100 + self.rank)
            np.save(self.path, rng.normal(size=(self.size, 96)).astype(np.float32))

    def batches(self, size):
        features = torch.from_numpy(np.load(self.path))
        for part in features[torch.randperm(len(features))].split(size):
            yield part, part[:, :3].sum(1, keepdim=True)


def sync_folder(source, target):
    """Copy what an earlier run left in the shared folder."""
    os.makedirs(target, exist_ok=True)
    for name in source:
        open(os.path.join(target, name), "w").close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--left", nargs="*", default=[], help="files of an earlier run")
    parser.add_argument("--epochs", type=int, default=2000)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    features = Features("cache", rank, 1600)
    os.makedirs("cache", exist_ok=True)
    features.build(0)
    dist.barrier()
    if rank == 0:
        sync_folder(args.left, "cache")
    dist.barrier()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(96, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for step, (x, y) in enumerate(features.batches(32)):
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0 and step % 20 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
        print(f"rank {rank} finished epoch {epoch}", flush=True)
        features.build(epoch + 1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
