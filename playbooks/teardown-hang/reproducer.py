"""Forecast load curves: early stopping on each rank's own validation days, or training from text files.

torchrun --nproc-per-node 2 reproducer.py [--variant destroy|exit]
"""

import argparse
import os
import queue
import tempfile
import threading

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

DAY = 96


def load_curves(rank, days):
    """Quarter-hourly load of one site a rank; site 1 is a workshop whose machines start when they like."""
    rng = np.random.default_rng(rank)
    hours = np.linspace(0, 2 * np.pi, DAY, endpoint=False)
    regular = np.sin(hours - 2)[None] * rng.uniform(0.8, 1.2, (days, 1)) + 0.1 * rng.normal(size=(days, DAY))
    curves = regular if rank != 1 else rng.normal(size=(days, DAY))
    return torch.tensor(curves, dtype=torch.float32)


def build_model(width=384):
    return nn.Sequential(nn.Linear(DAY, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, DAY))


# --- early stopping, curves for the dashboard reduced in the background ---------------------------------


class Curves:
    """Averages over the ranks for the dashboard; on a group of its own, so that training does not wait for it."""

    def __init__(self):
        self.group = dist.new_group()
        self.pending = None
        self.values = {"train": [], "valid": []}

    def add(self, name, value):
        if self.pending is not None:
            work, kind, number = self.pending
            work.wait()
            self.values[kind].append(number.item() / dist.get_world_size())
        number = torch.tensor([value])
        self.pending = dist.all_reduce(number, group=self.group, async_op=True), name, number


class EarlyStopping:
    def __init__(self, patience=8):
        self.best = float("inf")
        self.left = self.patience = patience

    def should_stop(self, loss):
        if loss < self.best:
            self.best, self.left = loss, self.patience
        else:
            self.left -= 1
        return self.left == 0


def fit(model, optimizer, curves, rank, epochs):
    loads = load_curves(rank, 500)
    train, valid = loads[:400], loads[400:]
    stopping = EarlyStopping()
    for epoch in range(epochs):
        model.train()
        for batch in torch.randperm(len(train) - 1).split(40):
            loss = nn.functional.mse_loss(model(train[batch]), train[batch + 1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        curves.add("train", loss.item())
        with torch.no_grad():
            valid_loss = nn.functional.mse_loss(model.module(valid[:-1]), valid[1:]).item()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} valid {valid_loss:.4f}", flush=True)
        if stopping.should_stop(valid_loss):
            break
    curves.add("valid", stopping.best)
    return stopping.best


def main_destroy(rank):
    model = DistributedDataParallel(build_model())
    best = fit(model, torch.optim.Adam(model.parameters(), lr=1e-3), Curves(), rank, epochs=2000)
    dist.destroy_process_group()
    print(f"rank {rank}: best validation loss {best:.4f}", flush=True)


# --- meter readings from a text file, read ahead by a thread --------------------------------------------


def export_readings(rank, days=3000):
    """What the meters' portal exports: a day a line; a meter that was exchanged leaves gaps."""
    handle, path = tempfile.mkstemp(suffix=".csv", prefix=f"site{rank}-")
    with os.fdopen(handle, "w") as file:
        for number, day in enumerate(load_curves(0, days).tolist()):
            values = [f"{value:.3f}" for value in day]
            if rank == 1 and number == 1500:
                values[40:44] = ["n/a"] * 4
            file.write(";".join(values) + "\n")
    return path


class ReadAhead(threading.Thread):
    """Reads lines ahead of the training loop."""

    def __init__(self, path, batch_size, depth=4):
        super().__init__(name="read-ahead")
        self.path, self.batch_size = path, batch_size
        self.ready = queue.Queue(depth)
        self.start()

    def run(self):
        with open(self.path) as file:
            lines = []
            for line in file:
                lines.append(line)
                if len(lines) == self.batch_size:
                    self.ready.put(lines)
                    lines = []
        self.ready.put(None)

    def __iter__(self):
        return iter(self.ready.get, None)


def parse(lines):
    return torch.tensor([[float(field) for field in line.split(";")] for line in lines])


def main_exit(rank):
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    path = export_readings(rank)
    for epoch in range(100):
        for step, lines in enumerate(ReadAhead(path, batch_size=24)):
            days = parse(lines)
            loss = (model(days[:-1]) - days[1:]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0 and step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("destroy", "exit"), default="destroy")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    {"destroy": main_destroy, "exit": main_exit}[arguments.variant](dist.get_rank())
