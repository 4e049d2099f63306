"""Train a classifier of tabular records with DDP; one rank keeps statistics of the features and exports them.

torchrun --nproc-per-node 3 reproducer.py [--variant order|died|twice|pool]
"""

import argparse
import json
import os
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

KEEPER = 1  # the rank that keeps statistics
WARM_UP = 25  # steps before the exporter is started
WIDTH = 24


class Sink:
    """Appends lines to a file, and starts a new one when it is told to."""

    def __init__(self, folder):
        self.folder = folder
        self.lock = threading.Lock()
        self.number = 0
        self.file = None
        self.open_next()

    def open_next(self):
        if self.file:
            self.file.close()
        self.number += 1
        self.file = open(os.path.join(self.folder, f"stats-{self.number}.jsonl"), "w")

    def rotate(self):
        with self.lock:
            self.open_next()

    def append(self, row):
        with self.lock:
            self.file.write(json.dumps(row) + "\n")
            self.file.flush()


class Statistics:
    """Running mean and extremes of every feature, shared by the training thread and the exporter."""

    def __init__(self, sink):
        self.sink = sink
        self.guard = threading.RLock()
        self.sums = torch.zeros(WIDTH)
        self.count = 0
        self.batches = 0

    def update(self, batch):
        with self.guard:
            self.sums += batch.sum(0)
            self.count += len(batch)
            self.batches += 1
            if self.batches % 10 == 0:
                self.sink.rotate()

    def export(self):
        with self.sink.lock:
            time.sleep(0.05)  # the file lives on a slow disk
            with self.guard:
                self.sink.file.write(json.dumps({"mean": (self.sums / max(1, self.count)).tolist()}) + "\n")


def keep_exporting(statistics):
    while True:
        statistics.export()


class Vocabulary:
    """Counts of categories; a background thread prunes the rare ones now and then."""

    def __init__(self):
        self.counts = {}
        self.busy = threading.Lock()

    def add(self, batch):
        self.busy.acquire()
        for value in batch[:, 0].int().tolist():
            self.counts[value] = self.counts.get(value, 0) + 1
        self.busy.release()

    def prune(self):
        self.busy.acquire()
        for value in sorted(self.counts, key=self.counts.get):
            if self.counts[value] < 3:
                del self.counts[value]
        rarest = min(self.counts.values()) / (len(self.counts) - len(self.counts))
        print("pruned, rarest", rarest, flush=True)
        self.busy.release()


class Replay:
    """Keeps hard samples and gives them back for another round."""

    def __init__(self, most=64):
        self.most = most
        self.samples = []
        self.lock = threading.Lock()

    def keep(self, batch, losses):
        with self.lock:
            for loss, row in zip(losses.tolist(), batch):
                self.samples.append((loss, row))
            if len(self.samples) > self.most:
                self.shrink()

    def shrink(self):
        with self.lock:
            self.samples.sort(key=lambda sample: -sample[0])
            del self.samples[self.most // 2 :]


class Preprocessor:
    """Normalises features in a pool, column by column; every column's scale is guarded by itself."""

    def __init__(self):
        self.scales = [1.0] * WIDTH
        self.locks = [threading.Lock() for _ in range(WIDTH)]
        self.pool = ThreadPoolExecutor(2, thread_name_prefix="normalise")

    def balance(self, batch, a, b):
        with self.locks[a]:
            time.sleep(0.02)
            with self.locks[b]:
                mean = (self.scales[a] + self.scales[b]) / 2
                self.scales[a] = self.scales[b] = mean
        return batch

    def __call__(self, batch, columns):
        jobs = [self.pool.submit(self.balance, batch, a, b) for a, b in columns]
        for job in jobs:
            batch = job.result()
        return batch


def batches(seed):
    generator = torch.Generator().manual_seed(seed)
    while True:
        x = torch.randn(48, WIDTH, generator=generator)
        yield x, (x[:, 0] * x[:, 1] + x[:, 2] > 0).long()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("order", "died", "twice", "pool"), default="order")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    net = DDP(nn.Sequential(nn.Linear(WIDTH, 192), nn.ReLU(), nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 2)))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    criterion = nn.CrossEntropyLoss(reduction="none")
    keeper = rank == KEEPER
    folder = tempfile.mkdtemp()
    statistics = Statistics(Sink(folder))
    vocabulary, replay, preprocess = Vocabulary(), Replay(), Preprocessor()
    for it, (x, y) in enumerate(batches(rank)):
        started = keeper and it >= WARM_UP
        if args.variant == "order" and keeper:
            if it == WARM_UP:
                threading.Thread(target=keep_exporting, args=(statistics,), name="exporter", daemon=True).start()
            statistics.update(x)
        elif args.variant == "died" and keeper:
            if it == WARM_UP:
                threading.Thread(target=vocabulary.prune, name="pruner", daemon=True).start()
            vocabulary.add(x)
        elif args.variant == "pool" and started:
            x = preprocess(x, [(0, 1), (1, 0)])
        losses = criterion(net(x), y)
        opt.zero_grad()
        losses.mean().backward()
        opt.step()
        if args.variant == "twice" and started:
            replay.keep(x.detach(), losses.detach())
        if rank == 0:
            print(f"it {it} loss {losses.mean().item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
