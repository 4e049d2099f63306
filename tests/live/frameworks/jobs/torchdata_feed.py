"""Event-sequence model fed by torchdata nodes; records are compressed and decoded by a thread of the source node."""

import argparse
import logging
import queue
import threading
import zlib
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchdata.nodes import BaseNode, Batcher, Loader, Mapper, Prefetcher

log = logging.getLogger("events")
LENGTH, KINDS = 40, 64


def write_shards(folder, rank, shards=6, records=1200):
    """Makes the synthetic shards: a length, then the compressed record, and so on."""
    rng = np.random.default_rng(rank)
    folder.mkdir(parents=True, exist_ok=True)
    for s in range(shards):
        with open(folder / f"shard-{s:03d}.z", "wb") as out:
            for _ in range(records):
                ids = (rng.integers(KINDS) + np.arange(LENGTH + 1) * rng.integers(1, 5)) % KINDS
                data = zlib.compress(ids.astype(np.int16).tobytes())
                out.write(len(data).to_bytes(4, "little") + data)


def truncate(path, share):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


class ShardFeed(BaseNode):
    """Reads the shards over and over in a thread of its own."""

    def __init__(self, paths, depth=512):
        super().__init__()
        self.paths, self.depth = paths, depth

    def reset(self, initial_state=None):
        super().reset(initial_state)
        self.records = queue.Queue(self.depth)
        self.error = None
        threading.Thread(target=self._fill, name="feed", daemon=True).start()

    def _read(self, path):
        with open(path, "rb") as src:
            while head := src.read(4):
                yield zlib.decompress(src.read(int.from_bytes(head, "little")))

    def _fill(self):
        try:
            while True:
                for path in self.paths:
                    for record in self._read(path):
                        self.records.put(record)
        except Exception as error:
            self.error = error

    def next(self):
        return self.records.get()

    def get_state(self):
        return {}


def decode(record):
    return torch.from_numpy(np.frombuffer(record, np.int16).astype(np.int64))


class Model(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.embed = nn.Embedding(KINDS, dim)
        self.rnn = nn.GRU(dim, dim, num_layers=2, batch_first=True)
        self.out = nn.Linear(dim, KINDS)

    def forward(self, ids):
        return self.out(self.rnn(self.embed(ids))[0])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--copied", type=float, nargs="+", default=[1.0, 1.0, 0.6])
    ap.add_argument("--out", default="runs/events")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s rank {rank} %(message)s")
    folder = Path(args.out) / f"node{rank}"
    write_shards(folder, rank)
    if args.copied[rank] < 1:
        truncate(folder / "shard-001.z", args.copied[rank])
    feed = ShardFeed(sorted(folder.glob("*.z")))
    loader = Loader(Batcher(Prefetcher(Mapper(feed, decode), prefetch_factor=16), args.batch))
    torch.manual_seed(0)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step, rows in enumerate(loader, 1):
        ids = torch.stack(rows)
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            log.info("step %d loss %.4f", step, loss.item())


if __name__ == "__main__":
    main()
