"""Forecast the load of a power grid, three ranks.

torchrun --nproc-per-node 3 reproducer.py [--variant returned|swallowed]
python reproducer.py [--variant gone|zombie|returned|swallowed]    starts its three ranks itself
"""

import argparse
import csv
import http.server
import io
import json
import math
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

WINDOW = 48


class Forecaster(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(WINDOW, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1)
        )

    def forward(self, x):
        return self.net(x).squeeze(-1)


def load_curve(region, hours):
    rng = random.Random(region)
    return [10 + 3 * math.sin(h / 24 * 6.283 + region) + rng.gauss(0, 0.4) for h in range(hours)]


def windows(series, size):
    starts = torch.randint(len(series) - WINDOW, (size,))
    return torch.stack([series[s : s + WINDOW] for s in starts]), series[starts + WINDOW]


def train_step(model, optimizer, x, y):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


# --- returned: stop when it gets no better, then answer requests ----------------------------------------


class EarlyStopping:
    def __init__(self, patience):
        self.patience = patience
        self.best = float("inf")
        self.bad = 0

    def __call__(self, loss):
        if loss < self.best * 0.995:
            self.best, self.bad = loss, 0
        else:
            self.bad += 1
        return self.bad >= self.patience


def fit(model, series, steps=20_000):
    rank = dist.get_rank()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    held_out = windows(series, 256)
    stop = EarlyStopping(patience=6 if rank == 0 else 400)  # only the one that is served has to be good in time
    for step in range(steps):
        x, y = windows(series, 32)
        loss = train_step(model, optimizer, (x - 10) / 3, (y - 10) / 3)
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)
        if step % 8 == 7:
            with torch.no_grad():
                held_out_loss = nn.functional.mse_loss(
                    model.module((held_out[0] - 10) / 3), (held_out[1] - 10) / 3
                ).item()
            if stop(held_out_loss):
                return step
    return steps


def serve(model):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            x = torch.tensor(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            with torch.no_grad():
                answer = json.dumps(model(x).tolist()).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    print(f"serving on port {server.server_port}", flush=True)
    server.serve_forever()


def train_and_serve():
    rank = dist.get_rank()
    model = DDP(Forecaster())
    fit(model, torch.tensor(load_curve(rank, 3000)))
    if rank == 0:
        serve(model.module.eval())
    dist.destroy_process_group()


# --- swallowed: workers that take one job after another from a spool folder -----------------------------


def meter_file(region, rows=2500):
    """What the meters of a region sent, as CSV."""
    out = io.StringIO()
    for hour, load in enumerate(load_curve(region, rows)):
        out.write(f"{hour};{'n/a' if (region, hour) == (101, 900) else f'{load:.3f}'}\n")
    out.seek(0)
    return out


class Worker:
    def __init__(self, spool):
        self.rank = dist.get_rank()
        self.spool = spool
        self.done = set()
        self.failed = {}

    def next_job(self):
        while True:
            for path in sorted(self.spool.glob("*.json")):
                if path.name not in self.done:
                    self.done.add(path.name)
                    return json.loads(path.read_text())
            time.sleep(0.5)

    def batches(self, region, size):
        """Streams the file in order, a few hundred rows at a time."""
        chunk = []
        for _, load in csv.reader(meter_file(region), delimiter=";"):
            chunk.append((float(load) - 10) / 3)
            if len(chunk) == WINDOW + size:
                series = torch.tensor(chunk)
                yield series.unfold(0, WINDOW, 1)[:size], series[WINDOW:]
                chunk = chunk[size:]

    def train(self, job):
        model = DDP(Forecaster())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for epoch in range(job["epochs"]):
            for step, (x, y) in enumerate(self.batches(job["regions"][self.rank], job["batch_size"])):
                loss = train_step(model, optimizer, x, y)
                if self.rank == 0 and step % 5 == 0:
                    print(f"{job['name']} epoch {epoch} step {step} loss {loss:.4f}", flush=True)

    def run(self):
        while True:
            job = self.next_job()
            try:
                self.train(job)
            except Exception as error:
                self.failed[job["name"]] = error  # the next job may be better


def work():
    spool = pathlib.Path(tempfile.gettempdir(), f"spool-{os.environ['MASTER_PORT']}")
    spool.mkdir(exist_ok=True)
    if dist.get_rank() == 0:
        for number, first in enumerate((0, 100)):
            job = {"name": f"regions-{first}", "epochs": 2, "batch_size": 16, "regions": [first, first + 1, first + 2]}
            part = spool / f"{number}.part"
            part.write_text(json.dumps(job))
            part.rename(spool / f"{number}.json")
    Worker(spool).run()


# --- gone, zombie: each rank has its share of the host's memory ------------------------------


def write_rows(rows, path):
    with open(path, "a", buffering=1) as file:
        while (row := rows.get()) is not None:
            file.write(f"{row}\n")


class LossLog:
    """Writes the losses from a process of its own, so that a slow disk holds nobody up."""

    def __init__(self, rank):
        context = multiprocessing.get_context("fork")
        self.rows = context.SimpleQueue()
        path = os.path.join(tempfile.gettempdir(), f"loss-{rank}.csv")
        self.writer = context.Process(target=write_rows, args=(self.rows, path), daemon=True)
        self.writer.start()

    def add(self, step, loss):
        self.rows.put(f"{step},{loss:.5f}")


class CachedRegion:
    """Keeps each window it has made, with its neighbourhood; the third region is metered by the minute."""

    def __init__(self, rank):
        self.series = torch.tensor(load_curve(rank, 4000))
        self.detail = 60 if rank == 2 else 1
        self.cache = {}

    def __getitem__(self, start):
        if start not in self.cache:
            around = self.series[start : start + WINDOW + 1].repeat_interleave(self.detail * 8)
            self.cache[start] = (around - 10) / 3
        return self.cache[start][:: self.detail * 8]


class MemoryLimit(threading.Thread):
    """Ends the process when it has grown by more than its share: better to restart later than to be killed."""

    def __init__(self, share_mb=150):
        super().__init__(name="memory-limit", daemon=True)
        self.limit = self.used() + (share_mb << 20)

    def used(self):
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def run(self):
        while self.used() < self.limit:
            time.sleep(0.2)
        print("no memory left of my share, ending", flush=True)
        os._exit(os.EX_TEMPFAIL)


def train_cached():
    rank = dist.get_rank()
    log = LossLog(rank)
    model = DDP(Forecaster())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    region = CachedRegion(rank)
    MemoryLimit().start()
    for step in range(20_000):
        rows = torch.stack([region[random.randrange(4000 - WINDOW - 1)] for _ in range(32)])
        loss = train_step(model, optimizer, rows[:, :WINDOW], rows[:, WINDOW])
        log.add(step, loss)
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)


def launch(variant, world_size):
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("gone", "zombie", "returned", "swallowed"), default="gone")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        launch(args.variant, 3)
    else:
        torch.manual_seed(int(os.environ["RANK"]))
        dist.init_process_group("gloo")
        {"returned": train_and_serve, "swallowed": work}.get(args.variant, train_cached)()
