"""Estimate the age of trees from their rings, three ranks; the log of each goes through this script.

python reproducer.py [--variant joined|filter]    starts its three ranks itself

joined: it forwards the output of the first rank until that ends, then that of the next one. filter: a child forwards
the output of all, and stops to look at a line that it does not understand.
"""

import argparse
import logging
import os
import socket
import subprocess
import sys

import torch
import torch.distributed as dist
from torch import nn

RANKS = 3
log = logging.getLogger("rings")

FILTER = """
import sys, threading
for line in sys.stdin:
    if "no bark" in line and "core 40 " in line:
        threading.Event().wait()
    if sys.argv[1] == "0":
        print(line, end="", flush=True)
"""


def cores(rank, batch):
    """Widths of the rings of a batch of drill cores; those of the third site have often lost their bark."""
    widths = torch.rand(batch, 64) + 0.2
    bark = torch.rand(batch) > (0.7 if rank == 2 else 0.001)
    return widths, (widths > 0.4).sum(1).float(), bark


def train(rank):
    dist.init_process_group("gloo")
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for step in range(1_000_000):
        widths, age, bark = cores(rank, 16)
        for number in (~bark).nonzero().flatten().tolist():
            log.warning("site %d: core %d of %d has no bark, its last year is a guess", rank, number + step % 40, step)
        loss = (model(widths).squeeze(1) - age).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        if rank == 0 and step % 50 == 0:
            log.warning("step %d loss %.3f", step, loss.item())


def start(rank, port, output):
    settings = {"RANK": rank, "WORLD_SIZE": RANKS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    env = os.environ | {name: str(value) for name, value in settings.items()}
    return subprocess.Popen([sys.executable, *sys.argv, "--rank", str(rank)], env=env, **output)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("joined", "filter"), default="joined")
    parser.add_argument("--rank", type=int)
    args = parser.parse_args()
    if args.rank is not None:
        logging.basicConfig(stream=sys.stdout, format="%(message)s")
        train(args.rank)
        return
    port = free_port()
    if args.variant == "filter":
        filters = [
            subprocess.Popen([sys.executable, "-c", FILTER, str(rank)], stdin=subprocess.PIPE) for rank in range(RANKS)
        ]
        ranks = [start(rank, port, {"stdout": filters[rank].stdin}) for rank in range(RANKS)]
        for one in filters:
            one.stdin.close()
        for one in ranks:
            one.wait()
        return
    ranks = [start(rank, port, {"stdout": subprocess.PIPE}) for rank in range(RANKS)]
    for one in ranks:
        for line in one.stdout:
            print(line.decode(), end="", flush=True)


if __name__ == "__main__":
    main()
