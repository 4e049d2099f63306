"""Embeddings of products that are bought together, three ranks.

torchrun --nproc-per-node 3 reproducer.py [--variant guard|segfault]
python reproducer.py --variant oom|unnoticed|zombie     starts its three ranks itself
"""

import argparse
import ctypes
import mmap
import multiprocessing
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

PRODUCTS = 4000
BASKET = 24
RECORD = 4096  # bytes of a product's description


class Catalogue(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(PRODUCTS, width)
        self.mix = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.text = nn.Linear(8, width)

    def forward(self, basket, described):
        vectors = self.mix(self.embed(basket)) + self.text(described)
        return vectors @ vectors.transpose(1, 2)


class Baskets:
    """Baskets of one shop, as they come in. The second shop's are kept whole, and never thrown away."""

    def __init__(self, shop, keep_bytes, every_s=0.015):
        self.shop = shop
        self.rng = random.Random(shop)
        self.keep_bytes = keep_bytes
        self.every_s = every_s
        self.due = time.monotonic()
        self.history = []

    def draw(self, count):
        self.due = max(self.due + self.every_s, time.monotonic())
        time.sleep(max(0.0, self.due - time.monotonic()))
        baskets = [[self.rng.randrange(PRODUCTS) for _ in range(BASKET)] for _ in range(count)]
        if self.shop == 1:
            self.history.append(bytes(bytearray(self.rng.randbytes(64)) * (self.keep_bytes // 64)))
        return torch.tensor(baskets)


# --- descriptions: in the interpreter, or in a segment of memory of their own ---------------------------------------


class Descriptions:
    def features(self, products):
        return torch.tensor([[float((product >> bit) & 1) for bit in range(8)] for product in products])


class SharedSegment(Descriptions):
    """Descriptions mapped outside the interpreter's heap; the oldest page is given back when the budget is used up."""

    def __init__(self, budget):
        self.libc = ctypes.CDLL(None)
        self.libc.mmap.restype = ctypes.c_void_p
        self.libc.mmap.argtypes = [ctypes.c_void_p, *[ctypes.c_size_t] * 4, ctypes.c_size_t]
        self.libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self.base = self.libc.mmap(None, PRODUCTS * RECORD, mmap.PROT_READ | mmap.PROT_WRITE, flags, 2**64 - 1, 0)
        self.budget = budget
        self.given_back = 0

    def features(self, products):
        self.budget -= len(products)
        if self.budget < 0 and self.given_back < PRODUCTS:
            self.libc.munmap(self.base + self.given_back * RECORD, RECORD)
            self.given_back += 1
        texts = [ctypes.string_at(self.base + product * RECORD, 64) for product in products]
        return super().features(products) + torch.tensor([[float(len(text) - 64)] for text in texts])


# --- memory and losses ---------------------------------------------------------------------------------------------


class MemoryGuard(threading.Thread):
    """The shop's share of the host's memory; a process that takes more is ended."""

    def __init__(self, share):
        super().__init__(name="memory-guard", daemon=True)
        self.limit = self.used() + share

    def used(self):
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def run(self):
        while self.used() < self.limit:
            time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)


def append(rows, path):
    with open(path, "a", buffering=1) as file:
        while (row := rows.get()) is not None:
            file.write(f"{row}\n")


class LossFile:
    """Writes the losses from a process of its own, so that a slow disk holds nobody up."""

    def __init__(self, rank):
        context = multiprocessing.get_context("fork")
        self.rows = context.SimpleQueue()
        path = os.path.join(tempfile.gettempdir(), f"loss-{rank}.csv")
        context.Process(target=append, args=(self.rows, path), daemon=True).start()

    def add(self, step, loss):
        self.rows.put(f"{step},{loss:.5f}")


def train(variant, keep_bytes, share, budget):
    rank = dist.get_rank()
    losses = LossFile(rank) if variant in ("unnoticed", "zombie") else None
    model = DDP(Catalogue())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    baskets = Baskets(rank, keep_bytes)
    described = SharedSegment(budget) if variant == "segfault" and rank == 2 else Descriptions()
    if variant in ("guard", "unnoticed", "zombie"):
        MemoryGuard(share).start()
    for step in range(50_000):
        basket = baskets.draw(16)
        features = described.features(basket.flatten().tolist()).reshape(16, BASKET, 8)
        wanted = torch.eye(BASKET).expand(16, BASKET, BASKET)
        loss = nn.functional.mse_loss(model(basket, features), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if losses:
            losses.add(step, loss.item())
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


# --- a start script ------------------------------------------------------------------------------------------------


class MemoryGroup:
    """A control group with a memory limit; version 1, or version 2 from the root of the hierarchy."""

    def __init__(self, limit):
        first = pathlib.Path("/sys/fs/cgroup/memory")
        root, name = (first, "memory.limit_in_bytes") if first.is_dir() else (first.parent, "memory.max")
        if root != first:
            (root / "cgroup.subtree_control").write_text("+memory")
        self.folder = root / f"shop-{os.getpid()}"
        self.folder.mkdir()
        (self.folder / name).write_text(str(limit))

    def enter(self):
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self):
        for _ in range(50):
            try:
                return self.folder.rmdir()
            except OSError:
                time.sleep(0.1)  # until the last process in it is gone


def launch(variant, world_size):
    """Start the ranks on this machine and stay until all have ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world_size)}
    group = MemoryGroup(380 << 20) if variant == "oom" else None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    ranks = []
    try:
        for rank in range(world_size):
            env = {**os.environ, **job, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            enter = group.enter if group and rank == 1 else None
            ranks.append(
                subprocess.Popen([sys.executable, *sys.argv], env=env, start_new_session=True, preexec_fn=enter)
            )
        if variant == "zombie":
            for rank in ranks:
                rank.wait()
        while [rank for rank in ranks if rank.poll() is None]:
            time.sleep(0.5)
    finally:
        for rank in ranks:
            try:
                os.killpg(rank.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for rank in ranks:
            rank.wait()
        if group:
            group.remove()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("guard", "segfault", "oom", "unnoticed", "zombie"), default="guard")
    parser.add_argument("--keep-kb", type=int, default=256, help="of each draw of the second shop")
    parser.add_argument("--share-mb", type=int, default=130)
    parser.add_argument("--budget", type=int, default=190_000, help="products described before memory is given back")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        launch(args.variant, 3)
    else:
        torch.manual_seed(int(os.environ["RANK"]))
        dist.init_process_group("gloo")
        train(args.variant, args.keep_kb << 10, args.share_mb << 20, args.budget)
