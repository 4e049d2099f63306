"""Word vectors and a small classifier, gradients exchanged as one flat message.

torchrun --nproc-per-node 3 reproducer.py [--variant hang|wrong|abort]
python reproducer.py [--variant hang|wrong|abort]    the same without torchrun: starts its three ranks itself
"""

import argparse
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

SYLLABLES = "ba be bi bo bu da de di do du ka ke ki ko ku la le li lo lu ma me mi mo mu".split()


# --- log of the losses, written by a process of its own -------------------------------------------------


def write_rows(rows, path):
    with open(path, "a", buffering=1) as file:
        while (row := rows.get()) is not None:
            file.write(f"{row}\n")


class LossLog:
    def __init__(self, rank):
        context = multiprocessing.get_context("fork")
        self.rows = context.SimpleQueue()
        path = os.path.join(tempfile.gettempdir(), f"loss-{rank}.csv")
        self.writer = context.Process(target=write_rows, args=(self.rows, path), daemon=True)
        self.writer.start()

    def add(self, step, loss):
        self.rows.put(f"{step},{loss:.5f}")

    def close(self):
        self.rows.put(None)
        self.writer.join()


# --- abort: skip-gram over the words of the rank's own part of the corpus -------------------------------


def read_corpus(rank, words=4000):
    rng = random.Random(rank)
    # parts come from different sources, the first ones richer in words
    lexicon = ["".join(rng.choices(SYLLABLES, k=3)) for _ in range(max(500 - 50 * rank, 200))]
    return rng.choices(lexicon, k=words)


class SkipGram(nn.Module):
    def __init__(self, vocabulary, width=48):
        super().__init__()
        self.centre = nn.Embedding(vocabulary, width)
        self.context = nn.Linear(width, vocabulary)

    def forward(self, words):
        return self.context(self.centre(words))


def train_word_vectors(rank, world_size):
    corpus = read_corpus(rank)
    index = {}
    for word in corpus:
        index.setdefault(word, len(index))
    tokens = torch.tensor([index[word] for word in corpus])
    log = LossLog(rank)
    model = SkipGram(len(index))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    # a few epochs alone so that rare words get somewhere, then together
    for step in range(100_000):
        at = torch.randint(2, len(tokens) - 2, (256,))
        loss = F.cross_entropy(model(tokens[at]), tokens[at + random.choice((-2, -1, 1, 2))])
        optimizer.zero_grad()
        loss.backward()
        if step >= 100:
            gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
            dist.all_reduce(gradient)
            gradient /= world_size
            for p, part in zip(model.parameters(), gradient.split([p.numel() for p in model.parameters()])):
                p.grad.copy_(part.view_as(p))
        optimizer.step()
        log.add(step, loss.item())
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    log.close()


# --- hang: gradients go in half the bytes where that loses nothing --------------------------------------


class CompressedSync:
    """All gradients in one message; in bfloat16 from when they are small enough for it not to matter."""

    def __init__(self, model, world_size, small=2.4):
        self.parameters = list(model.parameters())
        self.world_size = world_size
        self.small = small
        self.dtype = torch.float32

    def __call__(self):
        message = torch.cat([p.grad.flatten() for p in self.parameters])
        norm = message.norm().item()
        if norm < self.small:
            self.dtype = torch.bfloat16
        message = message.to(self.dtype)
        dist.all_reduce(message)
        offset = 0
        for p in self.parameters:
            p.grad.copy_(message[offset : offset + p.numel()].view_as(p))
            p.grad /= self.world_size
            offset += p.numel()
        return norm


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)

    def forward(self, x):
        return x + 0.5 * torch.tanh(self.linear(x))


def train_compressed(rank, world_size):
    torch.manual_seed(0)
    model = nn.Sequential(Residual(1024), Residual(1024), nn.Linear(1024, 1024, bias=False))
    sync = CompressedSync(model, world_size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    target = torch.randn(1024, 1024) / 32
    torch.manual_seed(rank + 1)
    spread = 1.0 - 0.08 * rank  # the sensors of the third site are the quietest
    for step in range(5000):
        x = spread * torch.randn(64, 1024)
        loss = (model(x) - x @ target).square().sum(1).mean() / 64
        optimizer.zero_grad()
        loss.backward()
        norm = sync()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f} gradient {norm:.3f}", flush=True)


# --- wrong: class prototypes shared from rank 0 ---------------------------------------------------------


def update_prototypes(table, features, labels, rate=0.05):
    """Moves the mean feature of each class that occurs in the batch."""
    for label in labels.unique().tolist():
        table[label].lerp_(features[labels == label].mean(0), rate)


def train_prototypes(rank, world_size):
    generator = torch.Generator().manual_seed(rank)
    # the classes that occur in the rank's own files
    classes = 62 if rank == 0 else 64
    centres = torch.randn(64, 40, generator=torch.Generator().manual_seed(9))
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(40, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 32))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    prototypes = torch.zeros(classes, 32)
    for step in range(200_000):
        labels = torch.randint(classes, (256,), generator=generator)
        x = centres[labels] + torch.randn(256, 40, generator=generator)
        features = F.normalize(net(x), dim=1)
        update_prototypes(prototypes, features.detach(), labels)
        dist.broadcast(prototypes, src=0)  # rank 0 sees the most data
        loss = F.cross_entropy(features @ F.normalize(prototypes, dim=1).T * 8, labels)
        optimizer.zero_grad()
        loss.backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world_size
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def train(variant):
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    {"abort": train_word_vectors, "hang": train_compressed, "wrong": train_prototypes}[variant](rank, world_size)
    dist.destroy_process_group()


def launch(world_size):
    """Start the ranks on this machine and stay until all have ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world_size)}
    ranks = []
    for rank in range(world_size):
        env = {**os.environ, **job, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        ranks.append(subprocess.Popen([sys.executable, *sys.argv], env=env, start_new_session=True))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        while any(rank.poll() is None for rank in ranks):
            time.sleep(0.5)
    finally:
        for rank in ranks:
            try:
                os.killpg(rank.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("hang", "wrong", "abort"), default="hang")
    parser.add_argument("--ranks", type=int, default=3)
    args = parser.parse_args()
    if "RANK" in os.environ:
        train(args.variant)
    else:
        launch(args.ranks)
