"""Train a small ranker with DDP; its features are counted by an operator that torch compiles at the start.

torchrun --nproc-per-node 3 reproducer.py [--variant baton|soft|cache|inside|notebook|journal]

baton: the build of the operator was killed half-way, yesterday. soft: so was the download of a vocabulary, which a
library of an older make guards with an empty file. cache: so was a home-made cache. inside: no process was killed;
the tokeniser is built under a lock, and the rank that builds it waits for its peers. notebook: somebody's notebook, in
which nothing runs, has the lock of the tokeniser. journal: the ranks write their losses into one database, and one of
them averages its loss in the middle of a transaction.
"""

import argparse
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
from filelock import FileLock, SoftFileLock
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.file_baton import FileBaton

WIDTH = 48
NODE_CACHE = Path(tempfile.gettempdir()) / "ranker-cache"
SLOW_RANK = 1  # it has a cache of its own, on another disk

# Yesterday's job, until its node was preempted.
KILLED = """
import os, sys
fd = os.open(sys.argv[1], os.O_CREAT | os.O_EXCL | os.O_WRONLY)
os.write(fd, sys.argv[2].encode() and f"{os.getpid()}\\n".encode())
os.kill(os.getpid(), 9)
"""


NOTEBOOK = """
import sys, threading
from filelock import FileLock
lock = FileLock(sys.argv[1])
lock.acquire()
threading.Event().wait()
"""


def job_of_yesterday(path, says_who):
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-c", KILLED, str(path), "who" if says_who else ""], check=False)


def start_notebook(lock):
    """Not as a child: a shell starts it, and ends."""
    subprocess.run(["sh", "-c", '"$0" -c "$1" "$2" &', sys.executable, NOTEBOOK, str(lock)], check=True)
    while not lock.exists():
        time.sleep(0.1)
    time.sleep(0.5)  # from its creation to the lock


def cache_of(rank):
    return NODE_CACHE / ("scratch" if rank == SLOW_RANK else f"local-{rank}")


def build_operator(folder):
    """What torch.utils.cpp_extension.load does around its compiler."""
    folder.mkdir(parents=True, exist_ok=True)
    baton = FileBaton(str(folder / "lock"))
    if baton.try_acquire():
        try:
            (folder / "count.so").write_bytes(b"\x7fELF")
        finally:
            baton.release()
    else:
        baton.wait()


def fetch_vocabulary(folder):
    folder.mkdir(parents=True, exist_ok=True)
    with SoftFileLock(str(folder / "vocabulary.txt.lock")):
        (folder / "vocabulary.txt").write_text("\n".join(f"word{i}" for i in range(200)))


class FeatureCache:
    """Features by day; a file beside them marks that they are being written."""

    def __init__(self, folder):
        self.folder = folder
        self.marker = folder / "features.lock"

    def fill(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                fd = os.open(self.marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                time.sleep(0.5)
                continue
            os.write(fd, str(os.getpid()).encode())
            os.close(fd)
            torch.save(torch.randn(64, WIDTH), self.folder / "features.pt")
            self.marker.unlink()
            return


def build_tokenizer(rank):
    """One rank after the other: the first one builds it, later ones find it."""
    NODE_CACHE.mkdir(parents=True, exist_ok=True)
    time.sleep(0.2 * rank)
    with FileLock(str(NODE_CACHE / "tokenizer.lock")):
        built = NODE_CACHE / "tokenizer.json"
        if not built.exists():
            built.write_text("{}")
        dist.barrier()


def find_tokenizer(folder):
    with FileLock(str(folder / "tokenizer.lock")):
        built = folder / "tokenizer.json"
        if not built.exists():
            built.write_text("{}")


class Journal:
    def __init__(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.base = sqlite3.connect(path, timeout=3600, isolation_level=None)
        self.base.execute("create table if not exists losses (rank integer, loss real)")

    def write(self, rank, loss):
        self.base.execute("insert into losses values (?, ?)", (rank, loss))


def write_losses(rank):
    journal = Journal(NODE_CACHE / "journal.db")
    loss = torch.rand(1)
    dist.barrier()
    if rank == SLOW_RANK:
        journal.base.execute("begin immediate")
        journal.write(rank, loss.item())
        dist.all_reduce(loss)
        journal.base.execute("commit")
    else:
        time.sleep(1)
        journal.write(rank, loss.item())
        dist.all_reduce(loss)


def prepare(variant, rank):
    folder = cache_of(rank)
    if variant == "baton":
        build_operator(folder)
    elif variant == "soft":
        fetch_vocabulary(folder)
    elif variant == "cache":
        FeatureCache(folder).fill()
    elif variant == "notebook":
        find_tokenizer(folder)
    elif variant == "journal":
        write_losses(rank)
    else:
        build_tokenizer(rank)


def leave_behind(variant, rank):
    name = {"baton": "lock", "soft": "vocabulary.txt.lock", "cache": "features.lock"}.get(variant)
    if name and rank == SLOW_RANK:
        job_of_yesterday(cache_of(rank) / name, says_who=variant == "cache")
    if variant == "notebook":
        cache_of(rank).mkdir(parents=True, exist_ok=True)
        if rank == SLOW_RANK:
            start_notebook(cache_of(rank) / "tokenizer.lock")


class Ranker(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(WIDTH, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, better, worse):
        return nn.functional.softplus(self.score(worse) - self.score(better)).mean()


def train(rank, steps, first=0):
    model = DDP(Ranker())
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    for step in range(first, first + steps):
        better, worse = torch.randn(2, 64, WIDTH)
        loss = model(better + 0.3, worse)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    return first + steps


def main():
    parser = argparse.ArgumentParser()
    variants = ("baton", "soft", "cache", "inside", "notebook", "journal")
    parser.add_argument("--variant", choices=variants, default=variants[0])
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    leave_behind(args.variant, rank)
    step = train(rank, 20)  # with plain features, to warm up
    prepare(args.variant, rank)
    while True:
        step = train(rank, 100, step)


if __name__ == "__main__":
    main()
