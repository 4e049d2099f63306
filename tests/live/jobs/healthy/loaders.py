"""Loaders that are as they should be, though a rank stands in them: their workers keep up, live on, or get ready.

torchrun --nproc-per-node 2 loaders.py [--how keeps_up|persistent|warm_up|prefetch|respawned]
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Sounds(Dataset):
    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 320

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.randn(32, generator=torch.Generator().manual_seed(index)), index % 3


def get_ready(_):
    """A worker reads its index first; nobody trains meanwhile."""
    print("gets ready", flush=True)
    time.sleep(8)


HOW = {
    "keeps_up": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
    "warm_up": {"num_workers": 1, "persistent_workers": True, "worker_init_fn": get_ready},
    "prefetch": {"num_workers": 2, "prefetch_factor": 32},
    "respawned": {"num_workers": 1, "multiprocessing_context": "spawn"},
}


def run_epoch(model, optimizer, loader, epoch):
    for step, (x, kinds) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.1)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", choices=HOW, default="keeps_up")
    how = parser.parse_args().how
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = Sounds(0.005)
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data), **HOW[how])
    for epoch in range(1000):
        run_epoch(model, optimizer, loader, epoch)


if __name__ == "__main__":
    main()
