"""Rank listings with DDP; the features of each batch come from a server of the job over TCP.

torchrun --nproc-per-node 2 reproducer.py [--variant answers|relay|helper]
"""

import argparse
import json
import socket
import subprocess
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ROWS, WIDTH = 64, 32
SIZE = ROWS * WIDTH * 4
VARIANTS = ("answers", "relay", "helper")


def rows(number):
    return np.random.default_rng(number).normal(size=(ROWS, WIDTH)).astype("float32").tobytes()


def answer(ask, reply, delay_s):
    """One answer a line; a lookup takes so long."""
    for line in ask:
        time.sleep(delay_s)
        reply.write(rows(json.loads(line)["batch"]))
        reply.flush()


def serve(delay_s):
    """Answer one client; prints the port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        client, _ = listening.accept()
    with client, client.makefile("rwb") as stream:
        answer(stream, stream, delay_s)


def relay(port, bytes_per_s):
    """Forward a connection, and the answers at that rate; prints the port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        client, _ = listening.accept()
    server = socket.create_connection(("127.0.0.1", port))
    while ask := client.recv(65536):
        server.sendall(ask)
        left = SIZE
        while left:
            data = server.recv(min(left, 128))
            client.sendall(data)
            left -= len(data)
            time.sleep(len(data) / bytes_per_s)


def start(*arguments, **pipes):
    return subprocess.Popen([sys.executable, __file__, *map(str, arguments)], **pipes)


def port_of(process):
    return int(process.stdout.readline())


class Features:
    """The features of a batch, from a server, through a relay to it, or from a helper process."""

    def __init__(self, variant, slow):
        self.processes = []
        delay_s = 1.5 if slow and variant != "relay" else 0.005
        if variant == "helper":
            helper = self.run("answer", delay_s, stdin=subprocess.PIPE)
            self.ask, self.reply = helper.stdin, helper.stdout
            return
        port = port_of(self.run("serve", delay_s))
        if variant == "relay":
            port = port_of(self.run("relay", port, 4000 if slow else 4_000_000))
        self.ask = self.reply = socket.create_connection(("127.0.0.1", port)).makefile("rwb")

    def run(self, *arguments, **pipes):
        self.processes.append(start(*arguments, stdout=subprocess.PIPE, **pipes))
        return self.processes[-1]

    def fetch(self, batch):
        self.ask.write(json.dumps({"batch": batch}).encode() + b"\n")
        self.ask.flush()
        return torch.from_numpy(np.frombuffer(self.reply.read(SIZE), dtype="float32").reshape(ROWS, WIDTH).copy())


def train(variant):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, 1)))
    optimizer = torch.optim.Adam(model.parameters())
    features = Features(variant, slow=rank == 1)
    for step in range(100_000):
        batch = features.fetch(2 * step + rank)
        loss = (model(batch).squeeze(1) - batch.sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=VARIANTS, default="answers")
    parser.add_argument("helper", nargs="*")
    given = parser.parse_args()
    match given.helper:
        case []:
            train(given.variant)
        case ["serve", delay_s]:
            serve(float(delay_s))
        case ["relay", port, bytes_per_s]:
            relay(int(port), float(bytes_per_s))
        case ["answer", delay_s]:
            answer(sys.stdin.buffer, sys.stdout.buffer, float(delay_s))


if __name__ == "__main__":
    main()
