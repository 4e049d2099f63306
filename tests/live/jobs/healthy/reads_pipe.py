"""Rows come out of a pipe in bursts two seconds apart, threads of each rank listen at a FIFO and at a terminal for
commands, and a checkpoint takes five seconds to an uploader that takes its time.
"""

import os
import pty
import struct
import subprocess
import sys
import tempfile
import threading

import torch
import torch.distributed as dist
from lifetime import Lifetime, parser
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

FEEDER = """
import os, struct, time
while True:
    os.write(1, struct.pack("512f", *[k % 17 for k in range(512)]) * 4)
    time.sleep(2)
"""
UPLOADER = """
import sys, time
while sys.stdin.buffer.read(8192):
    time.sleep(0.02)
"""


def listen(path, asked):
    while True:
        with open(path) as commands:
            asked.extend(commands)


def type_in(asked):
    _, terminal = pty.openpty()
    os.dup2(terminal, 0)
    asked.extend(sys.stdin)


def rows(feeder):
    while True:
        data = feeder.stdout.read(512 * 4)
        yield torch.tensor(struct.unpack("512f", data)).view(32, 16)


def upload(model):
    uploader = subprocess.Popen([sys.executable, "-c", UPLOADER], stdin=subprocess.PIPE)
    torch.save(model.state_dict(), uploader.stdin)
    uploader.stdin.close()
    uploader.wait()


def main():
    options = parser()
    options.add_argument("--every", type=int, default=60)
    args = options.parse_args()
    lifetime = Lifetime(args.seconds)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    asked = []
    fifo = os.path.join(tempfile.mkdtemp(), "commands")
    os.mkfifo(fifo)
    threading.Thread(target=listen, args=(fifo, asked), daemon=True).start()
    threading.Thread(target=type_in, args=(asked,), daemon=True).start()
    model = DDP(nn.Sequential(nn.Linear(16, 1024), nn.ReLU(), nn.Linear(1024, 480), nn.ReLU(), nn.Linear(480, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    feeder = subprocess.Popen([sys.executable, "-c", FEEDER], stdout=subprocess.PIPE)
    for step, x in enumerate(rows(feeder)):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 4 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if rank == 0 and step % args.every == args.every - 1:
            print("uploading", flush=True)
            upload(model.module)
            print("uploaded", flush=True)
        if not lifetime.goes_on():
            break
    feeder.kill()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
