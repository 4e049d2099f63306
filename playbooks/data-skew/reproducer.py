"""Train on a corpus of shard files, one job on three hosts; an environment variable names the folder of the corpus.

python reproducer.py [--variant epoch|scan]     (starts its three ranks itself, as the launchers of three hosts would)
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

HOSTS = 3


def make_corpus(folder, shards):
    folder.mkdir(parents=True)
    for number in range(shards):
        rows = np.random.default_rng(number).normal(size=(64, 32))
        np.save(folder / f"part-{number:05d}.npy", rows.astype("float32"))


def corpus_root():
    default = Path(os.environ["WORK"]) / "examples"  # the few shards that come with the repository
    return os.environ.get("CORPUS_DIR", str(default))


def index(root, pause):
    """Number of rows of every shard."""
    rows = {}
    for name in sorted(os.listdir(root)):
        path = os.path.join(root, name)
        rows[path] = len(np.load(path))
        time.sleep(pause)
    return rows


def run_epoch(model, optimizer, root, epoch):
    shards = sorted(os.listdir(root))
    for number, name in enumerate(shards):
        x = torch.from_numpy(np.load(os.path.join(root, name)))
        loss = (model(x) - x.flip(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} shard {number} of {len(shards)} loss {loss.item():.4f}", flush=True)
    dist.barrier()


def train(variant):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32)))
    optimizer = torch.optim.Adam(model.parameters())
    if variant == "scan":
        for _ in range(30):
            x = torch.randn(64, 32)
            loss = (model(x) - x).square().mean()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"warm-up loss {loss.item():.4f}", flush=True)
        root = corpus_root()
        rows = index(root, 0.25)
        dist.barrier()
        print(f"{sum(rows.values())} rows", flush=True)
    for epoch in range(1000):
        run_epoch(model, optimizer, corpus_root(), epoch)
    dist.destroy_process_group()


def launch(variant):
    with tempfile.TemporaryDirectory() as name, socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        work = Path(name)
        make_corpus(work / "corpus" / "v3", 201)
        make_corpus(work / "examples", 4)
        server.close()
        common = {**os.environ, "WORK": name, "WORLD_SIZE": str(HOSTS)}
        common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        ranks = []
        for host in range(HOSTS):
            env = {**common, "RANK": str(host), "LOCAL_RANK": "0"}
            if host != 2:  # the third host was added last week
                env["CORPUS_DIR"] = str(work / "corpus" / "v3")
            ranks.append(subprocess.Popen([sys.executable, __file__, "--variant", variant], env=env))
        for rank in ranks:
            rank.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("epoch", "scan"), default="epoch")
    args = parser.parse_args()
    train(args.variant) if "RANK" in os.environ else launch(args.variant)
