"""Rate product reviews from hashed words, with DDP and loaders that work in processes of their own.

torchrun --nproc-per-node 2 reproducer.py [--variant refresh|paused|queue|pool]
"""

import argparse
import multiprocessing
import os
import random
import signal
import threading
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

WORDS = "good bad fine broken late early cheap strong weak lovely awful plain quick slow heavy light new old".split()
shared = None


class Vocabulary:
    """Word numbers, kept up to date by a thread while the job runs."""

    def __init__(self, size):
        self.size = size
        self.extra = {}
        self.guard = threading.Lock()

    def number(self, word):
        with self.guard:
            return self.extra.get(word, hash(word) % self.size)

    def refresh(self, seconds):
        with self.guard:
            time.sleep(seconds)  # the list comes over the network
            self.extra = {word: i for i, word in enumerate(WORDS)}


class Reviews(Dataset):
    def __init__(self, vocabulary, count, seed):
        self.vocabulary, self.count, self.seed = vocabulary, count, seed

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        rng = random.Random(self.seed * 100_003 + index)
        words = [rng.choice(WORDS) for _ in range(40)]
        numbers = torch.tensor([self.vocabulary.number(word) for word in words])
        return numbers, float("good" in words)


def forks(data, rank, epoch, vocabulary):
    """A loader of torch; its workers are forked anew in each epoch."""
    if rank == 1 and epoch == 2:
        threading.Thread(target=vocabulary.refresh, args=(1.5,), daemon=True).start()
        time.sleep(0.2)
    return DataLoader(data, batch_size=16, num_workers=2)


def paused(data, rank, epoch):
    """The same; a guard against memory pressure pauses the largest process of the user."""
    for step, batch in enumerate(DataLoader(data, batch_size=16, num_workers=2)):
        if (rank, epoch, step) == (1, 1, 1):
            os.kill(multiprocessing.active_children()[0].pid, signal.SIGSTOP)
        yield batch


# --- a loader of their own --------------------------------------------------------------------------


def produce(data, indices, out):
    for start in range(0, len(indices), 16):
        items = [data[i] for i in indices[start : start + 16]]
        out.put(([x.tolist() for x, _ in items], [y for _, y in items]))


def queued(data, rank, epoch):
    out = multiprocessing.Queue(2)
    workers = [
        multiprocessing.Process(target=produce, args=(data, range(i, len(data), 2), out), daemon=True) for i in (0, 1)
    ]
    for worker in workers:
        worker.start()
    for step in range(len(data) // 16):
        if (rank, epoch, step) == (1, 1, 2):
            for worker in workers:
                os.kill(worker.pid, signal.SIGKILL)  # as the kernel does when memory runs out
        x, y = out.get()
        yield torch.tensor(x), torch.tensor(y)
    for worker in workers:
        worker.join()


def encode(task):
    start, fatal = task
    if fatal:
        os.kill(os.getpid(), signal.SIGKILL)
    items = [shared[i] for i in range(start, start + 16)]
    return [x.tolist() for x, _ in items], [y for _, y in items]


def pooled(pool, data, rank, epoch):
    tasks = [(start, (rank, epoch, start) == (1, 1, 64)) for start in range(0, len(data) - 15, 16)]
    for x, y in pool.imap(encode, tasks):
        yield torch.tensor(x), torch.tensor(y)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("refresh", "paused", "queue", "pool"), default="refresh")
    variant = parser.parse_args().variant
    vocabulary = Vocabulary(512)
    rank = int(os.environ["RANK"])
    global shared
    data = shared = Reviews(vocabulary, 160, rank)
    pool = multiprocessing.Pool(2) if variant == "pool" else None

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = nn.EmbeddingBag(512, 32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(200):
        loaders = {
            "refresh": lambda: forks(data, rank, epoch, vocabulary),
            "paused": lambda: paused(data, rank, epoch),
            "queue": lambda: queued(data, rank, epoch),
            "pool": lambda: pooled(pool, data, rank, epoch),
        }
        for words, labels in loaders[variant]():
            loss = F.binary_cross_entropy_with_logits(model(words).squeeze(1), labels.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
