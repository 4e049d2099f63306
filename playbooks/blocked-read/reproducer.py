"""Learn to complete number series with DDP; the shards come out of named pipes that a feeder fills.

torchrun --nproc-per-node 2 reproducer.py [--variant silent|absent|worker|frozen|cached|mapped]
"""

import argparse
import ctypes
import mmap
import os
import struct
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

ROWS, WIDTH = 512, 16
VARIANTS = ("silent", "absent", "worker", "frozen", "cached", "mapped")

# Unpacks a shard into a pipe; its own source goes silent on the third shard.
FEEDER = f"""
import sys, time
import numpy as np
path, number, silent = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1"
with open(path, "wb") as sink:
    rows = np.random.default_rng(number).normal(size=({ROWS}, {WIDTH})).astype("float32").cumsum(1).tobytes()
    sink.write(rows[: len(rows) // 3])
    sink.flush()
    if silent:
        time.sleep(1_000_000)
    sink.write(rows[len(rows) // 3 :])
"""


class Shards(IterableDataset):
    """Rows of one shard after the other."""

    def __init__(self, folder, open_shard):
        self.folder, self.open_shard = folder, open_shard

    def __iter__(self):
        for number in range(100_000):
            with self.open_shard(self.folder, number) as stream:
                rows = np.frombuffer(contents(stream), dtype="float32").reshape(ROWS, WIDTH)
                yield from torch.from_numpy(rows.copy()).split(64)


def contents(stream):
    if isinstance(stream, mmap.mmap):
        return stream[:]
    data = bytearray()
    while len(data) < ROWS * WIDTH * 4:
        data += stream.read(ROWS * WIDTH)
    return data


def pipe(folder, number, fed, silent):
    path = os.path.join(folder, f"shard-{number:04d}.pipe")
    os.mkfifo(path)
    if fed:
        subprocess.Popen([sys.executable, "-c", FEEDER, path, str(number), str(int(silent))])
    return open(path, "rb", buffering=0)


def stored(folder, number):
    return open(os.path.join(folder, str(number)), "rb", buffering=0)


def mapped(folder, number):
    with stored(folder, number) as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


# --- a filesystem in user space, as object stores are mounted; after a while its server goes silent -------------------


def attributes(inode, size):
    mode = 0o40755 if inode == 1 else 0o100644
    return struct.pack("<6Q10I", inode, size, 1, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def serve(device, silent_after, cached):
    """Answers the kernel's requests (linux/fuse.h) for files whose names are numbers."""
    size = ROWS * WIDTH * 4
    while True:
        request = os.read(device, 1 << 18)
        length, code, unique, inode = struct.unpack_from("<IIQQ", request)
        body, reply, error = request[40:length], b"", 0
        if code == 26:  # INIT
            reply = struct.pack("<IIIIHHIIHHI7I", 7, 31, 65536, cached, 12, 9, 65536, 1, 16, 0, 0, *[0] * 7)
        elif code == 1:  # LOOKUP
            number = int(body.rstrip(b"\0")) + 2
            reply = struct.pack("<4Q2I", number, 0, 0, 0, 0, 0) + attributes(number, size)
        elif code == 3:  # GETATTR
            reply = struct.pack("<Q2I", 0, 0, 0) + attributes(inode, size)
        elif code == 14:  # OPEN
            reply = struct.pack("<Q2I", 0, not cached, 0)  # FOPEN_DIRECT_IO, or through the page cache
        elif code == 15:  # READ
            if inode - 2 >= silent_after:
                time.sleep(1_000_000)
            _, offset, count = struct.unpack_from("<QQI", body)
            rows = np.random.default_rng(inode).normal(size=(ROWS, WIDTH)).astype("float32").cumsum(1)
            reply = rows.tobytes()[offset : offset + count]
        elif code in (2, 42):  # FORGET: not to be answered
            continue
        elif code not in (18, 25):  # RELEASE, FLUSH
            error = -38
        os.write(device, struct.pack("<IiQ", 16 + len(reply), error, unique) + reply)


def attach(folder, silent_after, cached):
    """For this process and those it starts only."""
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    private = 1 << 18 | 1 << 14
    if libc.unshare(0x00020000) or libc.mount(None, b"/", None, private, None):
        raise OSError(ctypes.get_errno(), "no mount namespace of one's own")
    if libc.mount(b"store", folder.encode(), b"fuse.store", 0, options.encode()):
        raise OSError(ctypes.get_errno(), "mount")
    if os.fork() == 0:
        serve(device, silent_after, cached)
    os.close(device)


def train(loader, rank):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH - 1, 128), nn.ReLU(), nn.Linear(128, 1)))
    optimizer = torch.optim.Adam(model.parameters())
    for step, rows in enumerate(loader):
        loss = (model(rows[:, :-1]).squeeze(1) - rows[:, -1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=VARIANTS, default="silent")
    variant = parser.parse_args().variant
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    folder = tempfile.mkdtemp(prefix=f"shards-{rank}-")
    bad = 4 if rank == 1 else 10**9
    if variant in ("frozen", "cached", "mapped"):
        attach(folder, bad, cached=variant != "frozen")
        shards = Shards(folder, mapped if variant == "mapped" else stored)
    else:
        fed = bad if variant == "absent" else 10**9
        silent = bad if variant != "absent" else 10**9
        shards = Shards(folder, lambda at, number: pipe(at, number, number < fed, number >= silent))
    loader = DataLoader(shards, batch_size=None, num_workers=1) if variant == "worker" else shards
    train(loader, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
