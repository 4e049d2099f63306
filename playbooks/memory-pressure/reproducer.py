"""Learn to score game positions from a memory-mapped shard per rank; one rank's container is a little too small.

python reproducer.py [--short-mb 120]     needs root and a cgroup memory controller, v1 or v2
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from array import array
from pathlib import Path

ROW = 4096  # bytes: 32 x 32 float32
ROWS = 80_000


# --- the training script, started by torchrun -------------------------------------------------------


def shard(rank):
    """This rank's positions, mapped: the kernel reads a page when it is touched."""
    import torch

    path = Path(os.environ["SHARDS"], f"positions-{rank}.f32")
    return torch.from_file(str(path), shared=True, size=ROWS * ROW // 4).view(ROWS, 1024)


def train(steps):
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(2)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    positions = shard(rank)
    generator = torch.Generator().manual_seed(rank)
    for step in range(steps):
        rows = torch.randint(0, ROWS, (16,), generator=generator)
        inputs = positions[rows]
        loss = nn.functional.mse_loss(model(inputs), inputs.mean(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.5f}", flush=True)
    dist.destroy_process_group()


# --- the data and the container ---------------------------------------------------------------------


def write_shards(folder):
    block = array("f", (random.random() for _ in range(64 * ROW // 4))).tobytes()
    for rank in range(2):
        with open(Path(folder, f"positions-{rank}.f32"), "wb") as file:
            for _ in range(ROWS // 64):
                file.write(block)
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # whoever reads it first pays for it


def own_group(controller):
    """The folder of this process's control group, and whether it is v2."""
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for _, names, path in groups:
        if controller in names.split(","):
            point = next(m[4] for m in mounts if "cgroup" in m and controller in m[-1].split(","))
            return Path(point + path.rstrip("/")), False
    point, path = next((m[4], g[2]) for m in mounts if "cgroup2" in m for g in groups if g[0] == "0")
    return Path(point + path.rstrip("/")), True


def limited_group(limit):
    own, unified = own_group("memory")
    group = (own.parent if unified and (own / "cgroup.type").exists() else own) / f"hangdoc-{os.getpid()}"
    group.mkdir()
    (group / ("memory.max" if unified else "memory.limit_in_bytes")).write_text(str(limit))
    return group


def remove(group):
    for _ in range(50):
        try:
            for pid in (group / "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            return group.rmdir()
        except OSError:
            time.sleep(0.1)


def launch(args):
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))
    group = limited_group(ROWS * ROW + (args.process_mb - args.short_mb << 20))
    try:
        with tempfile.TemporaryDirectory() as folder:
            write_shards(folder)
            env = {**os.environ, "CONTAINER": str(group), "SHARDS": folder}
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
            return subprocess.call([*torchrun, os.path.abspath(__file__), "--steps", str(args.steps)], env=env)
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        remove(group)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--short-mb", type=int, default=120, help="by how much the container is too small")
    parser.add_argument("--process-mb", type=int, default=160, help="what the process needs beside its data")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    if "RANK" in os.environ:
        if os.environ["RANK"] == "1":
            Path(os.environ["CONTAINER"], "cgroup.procs").write_text(str(os.getpid()))
        train(args.steps)
    elif os.geteuid() != 0:
        sys.exit("this job sets a memory limit: run it as root")
    else:
        sys.exit(launch(args))
