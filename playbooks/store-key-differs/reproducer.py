"""A sampling table that rank 0 publishes in the store, under a fingerprint of the shards in the cache of its host."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

FEATURES = 24
SHARDS = 6


class ShardCache:
    """The shards of the training set on the local disk of a host."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder = folder / f"host-{rank}"
        self.folder.mkdir()
        for shard in range(SHARDS):
            (self.folder / f"{shard:05d}.pt").touch()

    def refresh(self, epoch: int, rank: int) -> None:
        """Fetch what is new: one host is still at it when the epoch begins."""
        ready = ".part" if (epoch, rank) == (2, 1) else ""
        (self.folder / f"{SHARDS + epoch:05d}.pt{ready}").touch()

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


class Mixture:
    """How often each shard is drawn: one table for all ranks."""

    def __init__(self, store: dist.Store, rank: int) -> None:
        self.store, self.rank = store, rank

    def table(self, cache: ShardCache) -> dict[str, float]:
        names = cache.names()
        key = f"mixture/{hashlib.sha1(' '.join(names).encode()).hexdigest()[:12]}"
        if self.rank == 0:
            self.store.set(key, json.dumps({name: 1 / (1 + at) for at, name in enumerate(names)}))
        self.store.wait([key], timedelta(hours=1))
        return json.loads(self.store.get(key))


def train(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(FEATURES, 48), nn.ReLU(), nn.Linear(48, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    cache, mixture = ShardCache(folder, rank), Mixture(dist.distributed_c10d._get_default_store(), rank)
    for epoch in range(1000):
        cache.refresh(epoch, rank)
        weights = torch.tensor(list(mixture.table(cache).values()))
        for _ in range(150):
            shard = int(torch.multinomial(weights, 1))
            x = torch.randn(16, FEATURES) + shard / SHARDS
            loss = (net(x) - x.mean(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            for p in net.parameters():
                dist.all_reduce(p.grad)
            optimizer.step()
        print(f"rank {rank} epoch {epoch} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    shared = os.environ.get("CACHE") or tempfile.gettempdir()
    with tempfile.TemporaryDirectory(dir=shared) as scratch:
        train(Path(scratch))
