"""Next-character model of a toy language, trained with DDP, on nodes shared with interactive users.

torchrun --nproc-per-node 3 reproducer.py [--variant self|outside|debugger]
"""

import argparse
import ctypes
import os
import random
import signal
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

SUBJECTS = ["I", "you", "she", "the dog", "we", "they", "my sister", "the clocks"]
VERBS = ["see", "walk", "play", "call", "ask", "wait", "paint", "clean"]
PLACES = ["here", "at home", "in the garden", "by the river", "in town", "on Monday"]

# Interactive users come first: a polite job gives way when one logs in, and is continued by a cron job at night.
GIVE_WAY_AT = {1: 30}

# Duty cycle of the limiter: it holds the process for a moment out of every period, for a number of periods.
LIMITER = """
import os, signal, sys, time
pid, busy, held, periods = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
os.kill(pid, signal.SIGSTOP)
for _ in range(periods):
    time.sleep(held)
    os.kill(pid, signal.SIGCONT)
    time.sleep(busy)
    os.kill(pid, signal.SIGSTOP)
"""

# An abandoned debugger: it attached, the process stopped, and the terminal was closed.
DEBUGGER = """
import ctypes, os, signal, sys, time
libc, pid = ctypes.CDLL(None, use_errno=True), int(sys.argv[1].partition("=")[2])
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
if libc.ptrace(16, pid, None, None):  # PTRACE_ATTACH
    sys.exit(os.strerror(ctypes.get_errno()))
os.waitpid(pid, 0x40000000)  # __WALL
time.sleep(3600)
"""
PR_SET_PTRACER = 0x59616D61


def corpus(rank, sentences=4000):
    rng = random.Random(rank)
    text = " ".join(f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(PLACES)}." for _ in range(sentences))
    letters = sorted(set("".join(SUBJECTS + VERBS + PLACES) + " ."))
    index = {letter: i for i, letter in enumerate(letters)}
    return torch.tensor([index[letter] for letter in text]), len(letters)


class CharModel(nn.Module):
    def __init__(self, letters, width=192):
        super().__init__()
        self.embed = nn.Embedding(letters, 48)
        self.rnn = nn.GRU(48, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, letters)

    def forward(self, tokens):
        hidden, _ = self.rnn(self.embed(tokens))
        return self.head(hidden)


def give_way():
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGSTOP)


def limit_cpu(busy, held, periods):
    return subprocess.Popen([sys.executable, "-c", LIMITER, str(os.getpid()), str(busy), str(held), str(periods)])


def attach_debugger():
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)  # where Yama lets only parents trace
    with tempfile.NamedTemporaryFile("w", suffix="-debugger.py", delete=False) as script:
        script.write(DEBUGGER)
    return subprocess.Popen([sys.executable, script.name, f"--attach={os.getpid()}"])


def get_batch(data, batch_size, length):
    starts = torch.randint(len(data) - length - 1, (batch_size,))
    x = torch.stack([data[s : s + length] for s in starts])
    y = torch.stack([data[s + 1 : s + length + 1] for s in starts])
    return x, y


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("self", "outside", "debugger"), default="self")
    parser.add_argument("--steps", type=int, default=5000)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    data, letters = corpus(rank)
    model = DDP(CharModel(letters))
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    lossf = nn.CrossEntropyLoss()
    for it in range(args.steps):
        if GIVE_WAY_AT.get(rank) == it:
            if args.variant == "self":
                give_way()
            elif args.variant == "debugger":
                debugger = attach_debugger()
            else:
                limiter = limit_cpu(busy=0.5, held=0.2, periods=4)
        x, y = get_batch(data, batch_size=24, length=48)
        logits = model(x)
        loss = lossf(logits.flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if rank == 0:
            print(f"iter {it} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()
