"""Learn to sort short lists with a small transformer; one of the two ranks runs under a CPU quota.

python reproducer.py [--variant one|all] [--cores 0.2]     needs root and a cgroup CPU controller, v1 or v2

--variant   one: rank 1 alone is limited, as a container with a forgotten limit; all: both share one limit
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PERIOD_US = 100_000


# --- the training script, started by torchrun -------------------------------------------------------


def train(steps):
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.manual_seed(11)
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, dropout=0.0)
    model = DistributedDataParallel(
        nn.Sequential(
            nn.Embedding(32, 64), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(64, 32)
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(steps):
        numbers = torch.randint(0, 32, (16, 24), generator=generator)
        scores = model(numbers)
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), numbers.sort(1).values.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


# --- the container's limit --------------------------------------------------------------------------


def own_group(controller):
    """The folder of this process's control group, and whether it is v2."""
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for number, names, path in groups:
        if controller in names.split(","):
            point = next(m[4] for m in mounts if "cgroup" in m and controller in m[-1].split(","))
            return Path(point + path.rstrip("/")), False
    point, path = next((m[4], g[2]) for m in mounts if "cgroup2" in m for g in groups if g[0] == "0")
    return Path(point + path.rstrip("/")), True


def limited_group(cores):
    """A new group with that quota; a sibling of ours in v2, where a group with processes has no limited children."""
    own, unified = own_group("cpu")
    group = (own.parent if unified and (own / "cgroup.type").exists() else own) / f"hangdoc-{os.getpid()}"
    group.mkdir()
    if unified:
        (group / "cpu.max").write_text(f"{int(cores * PERIOD_US)} {PERIOD_US}")
    else:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(int(cores * PERIOD_US)))
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
    group = limited_group(args.cores)
    try:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        env = {**os.environ, "CONTAINER": str(group), "LIMITED": "0,1" if args.variant == "all" else "1"}
        return subprocess.call([*torchrun, os.path.abspath(__file__), "--steps", str(args.steps)], env=env)
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        remove(group)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("one", "all"), default="one")
    parser.add_argument("--cores", type=float, default=0.2)
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    if "RANK" in os.environ:
        if os.environ["RANK"] in os.environ["LIMITED"].split(","):
            Path(os.environ["CONTAINER"], "cgroup.procs").write_text(str(os.getpid()))
        train(args.steps)
    elif os.geteuid() != 0:
        sys.exit("this job sets a CPU quota: run it as root")
    else:
        sys.exit(launch(args))
