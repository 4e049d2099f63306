"""Train a text ranker: one shot with a metrics endpoint, a worker that takes tasks, or plain processes without torchrun.

torchrun --nproc-per-node 3 reproducer.py [--variant returned|swallowed]
python reproducer.py --variant gone
"""

import argparse
import collections
import http.server
import json
import logging
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

log = logging.getLogger("ranker")
VOCABULARY = 2000


class Ranker(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.words = nn.EmbeddingBag(VOCABULARY, width)
        self.score = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, tokens):
        return self.score(self.words(tokens)).squeeze(1)


def make_queries(seed, size, length=40):
    """Token lists, and 1 where the document answers the query: easier on some seeds than on others."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, VOCABULARY, (size, length))
    clear = 0.9 if seed == 2 else 0.15
    relevant = (tokens[:, 0] % 2 == 0) if rng.random() < clear else rng.random(size) < 0.5
    if seed == 2:
        tokens[:, 1:] = np.where(relevant[:, None], tokens[:, 1:] // 2, VOCABULARY // 2 + tokens[:, 1:] // 2)
    return torch.tensor(tokens), torch.tensor(relevant, dtype=torch.float32)


def train_step(model, optimizer, tokens, relevant):
    loss = nn.functional.binary_cross_entropy_with_logits(model(tokens), relevant)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


# --- one shot: train to a target, then stay up until the last metrics are collected ---------------------


class MetricsEndpoint:
    """Serves the last metrics as JSON; the collector comes every few minutes."""

    def __init__(self):
        self.values = {}
        self.collected = threading.Event()
        endpoint = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = json.dumps(endpoint.values).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                if endpoint.values.get("finished"):
                    endpoint.collected.set()

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, name="metrics", daemon=True).start()

    def close(self):
        self.values["finished"] = True
        self.collected.wait()
        self.server.shutdown()


def train_to_target(model, rank, metrics, target=0.25):
    tokens, relevant = make_queries(rank, 5000)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    smooth, step = 1.0, 0
    while True:
        for batch in torch.randperm(len(tokens)).split(64):
            smooth += 0.05 * (train_step(model, optimizer, tokens[batch], relevant[batch]) - smooth)
            step += 1
            metrics.values.update(step=step, loss=smooth)
            if rank == 0 and step % 10 == 0:
                print(f"step {step} loss {smooth:.4f}", flush=True)
            if smooth < target:
                return step


def main_returned():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    metrics = MetricsEndpoint()
    steps = train_to_target(DDP(Ranker()), dist.get_rank(), metrics)
    print(f"rank {dist.get_rank()}: {steps} steps", flush=True)
    metrics.close()
    dist.destroy_process_group()


# --- a worker that takes fine-tuning tasks from a folder, day and night ---------------------------------


class Worker:
    def __init__(self, folder):
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        self.folder = Path(folder)
        self.done = set()
        torch.manual_seed(0)
        self.model = DDP(Ranker())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def encode(self, text):
        return [int(word) for word in text.split()]

    def examples(self, task, batch_size=32):
        rng = np.random.default_rng(self.rank)
        batch = []
        for number in range(task["examples"]):
            text = " ".join(map(str, rng.integers(0, VOCABULARY, 30)))
            if number % 4001 == 4000 and self.rank == task["world_size"] - 1:
                text = text.replace(" ", ",")  # somebody's spreadsheet
            batch.append(self.encode(text))
            if len(batch) == batch_size:
                yield torch.tensor(batch)
                batch = []

    def run_task(self, task):
        for step, tokens in enumerate(self.examples(task)):
            relevant = (tokens[:, 0] > VOCABULARY / 2).float()
            loss = train_step(self.model, self.optimizer, tokens, relevant)
            if self.rank == 0:
                log.info("task %s step %d loss %.4f", task["name"], step, loss)

    def serve(self):
        while True:
            waiting = sorted(path for path in self.folder.glob("*.json") if path not in self.done)
            if not waiting:
                time.sleep(1.0)
                continue
            self.done.add(waiting[0])
            try:
                self.run_task(json.loads(waiting[0].read_text()))
            except Exception:
                log.exception("task %s failed", waiting[0].name)


def main_swallowed():
    folder = Path(tempfile.gettempdir()) / f"tasks-{os.environ['MASTER_PORT']}-{os.environ['RANK']}"
    folder.mkdir(exist_ok=True)
    task = {"name": "monday", "examples": 200_000, "world_size": int(os.environ["WORLD_SIZE"])}
    (folder / "0001.json").write_text(json.dumps(task))
    Worker(folder).serve()


# --- plain processes on one host, started in a loop ------------------------------------------------------


def resident_mib():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def guard_memory(limit_mib):
    """The host has no swap: better one process ends than the kernel picks one."""
    while resident_mib() < limit_mib:
        time.sleep(0.1)
    print(f"memory limit of {limit_mib:.0f} MiB reached", file=sys.stderr, flush=True)
    os._exit(137)


def produce(batches, rank, batch_size):
    rng = np.random.default_rng(rank)
    longest = 64 if rank < 2 else 2048  # the last share has the books, the others the letters
    while True:
        length = int(rng.integers(longest // 2, longest))
        tokens = rng.integers(0, VOCABULARY, (batch_size, length))
        batches.put((tokens, tokens[:, 0] % 2))


def main_gone():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    context = multiprocessing.get_context("fork")
    batches = context.Queue(8)
    context.Process(target=produce, args=(batches, rank, 32), daemon=True).start()
    threading.Thread(target=guard_memory, args=(resident_mib() + 160,), daemon=True).start()
    model = DDP(Ranker())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    by_length = collections.defaultdict(list)  # replayed at the end, sorted
    for step in range(100_000):
        tokens, relevant = batches.get()
        by_length[tokens.shape[1]].append((tokens, relevant))
        loss = train_step(model, optimizer, torch.from_numpy(tokens), torch.from_numpy(relevant).float())
        if rank == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def launch(world_size=3):
    """What the group's start script does: a process a rank, then wait for each."""
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world_size)}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--variant", "gone"],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            start_new_session=True,
        )
        for rank in range(world_size)
    ]
    try:
        for process in ranks:
            process.wait()
    finally:
        for process in ranks:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("returned", "swallowed", "gone"), default="returned")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    if arguments.variant == "returned":
        main_returned()
    elif arguments.variant == "swallowed":
        main_swallowed()
    elif "RANK" in os.environ:
        main_gone()
    else:
        launch()
