"""Fit a keypoint regressor on generated poses with plain DDP; one of the two ranks is slower.

python reproducer.py [--variant neighbour|nice|samples|accumulation]

--variant   neighbour: every rank has its own core, and other jobs run on the second core;
            nice: the host is shared with other jobs, and rank 1 was started with a lower priority;
            samples: rank 1 takes twice the samples; accumulation: rank 1 takes twice the micro-batches a step
"""

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys

CORES = sorted(os.sched_getaffinity(0))


# --- the training script -------------------------------------------------------------------------


def poses(count, generator):
    """Flattened noisy outlines of a two-joint arm, and its two angles."""
    import torch

    angles = torch.rand(count, 2, generator=generator) * 3
    reach = torch.linspace(0, 1, 64)
    first = torch.stack((angles[:, :1].cos() * reach, angles[:, :1].sin() * reach), 2)
    second = first[:, -1:] + torch.stack((angles[:, 1:].cos() * reach, angles[:, 1:].sin() * reach), 2)
    outline = torch.cat((first, second), 1).flatten(1)
    return outline + 0.01 * torch.randn(outline.shape, generator=generator), angles


def train(variant, steps):
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    rank = int(os.environ["RANK"])
    odd = rank == 1
    if variant == "neighbour":
        os.sched_setaffinity(0, {CORES[rank % len(CORES)]})
    if variant == "nice" and odd:
        os.nice(10)
    count = 2048 if variant == "samples" and odd else 1024
    parts = 2 if variant == "accumulation" and odd else 1
    dist.init_process_group("gloo")
    torch.manual_seed(5)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 2))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(parts):
            model.require_backward_grad_sync = part == parts - 1
            inputs, targets = poses(count, generator)
            loss = nn.functional.mse_loss(model(inputs), targets) / parts
            loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


# --- the host and what else runs there --------------------------------------------------------------


def settle(core):
    """Run on that core; as root, with a higher priority there."""
    os.sched_setaffinity(0, {core})
    with contextlib.suppress(OSError):
        os.nice(-8)
        with open("/proc/self/autogroup", "w") as file:
            file.write("-8")


def burn(core=None):
    """A foreign process; with `core`, in its own session and bound to that core."""
    command = [sys.executable, "-c", "while True: sum(range(100_000))"]
    if core is None:
        return subprocess.Popen(command)
    return subprocess.Popen(command, start_new_session=True, preexec_fn=lambda: settle(core))


def others(variant):
    if variant == "neighbour":
        return [burn(CORES[1 % len(CORES)]) for _ in range(3)]
    return [burn() for _ in CORES] if variant == "nice" else []


def launch():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    args, processes = parser.parse_args(), []
    try:
        processes += others(args.variant)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
        command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:]]
        ranks = [subprocess.Popen(command, env={**os.environ, **where, "RANK": str(rank)}) for rank in range(2)]
        processes += ranks
        return max(rank.wait() for rank in ranks)
    finally:
        for process in processes:
            process.kill()


parser = argparse.ArgumentParser()
parser.add_argument("--variant", choices=("neighbour", "nice", "samples", "accumulation"), default="neighbour")
parser.add_argument("--steps", type=int, default=100_000)

if __name__ == "__main__":
    args = parser.parse_args()
    sys.exit(train(args.variant, args.steps) if "RANK" in os.environ else launch())
