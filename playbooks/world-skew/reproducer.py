"""A job on three hosts; one of them was started from an older script.

python reproducer.py [--variant size|options|precision|launcher|folder|prefix]

--variant   size: the last host was told a larger WORLD_SIZE; options: one was given another --update-every;
            precision: one has another compute type in its environment; launcher: two launchers, told 3 hosts and 2;
            folder: ranks meet in a file, in a folder with the name of the settings, and one has other settings;
            prefix: ranks meet in a part of the store with a name that each computes from its environment
"""

import argparse
import hashlib
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

HOSTS = 3


# --- the training script ---------------------------------------------------------------------------------


class Learner:
    """A regression, with its gradients summed over ranks once in a few batches."""

    def __init__(self, dtype, update_every):
        import torch
        from torch import nn

        self.net = nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 1)).to(dtype)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05)
        self.dtype, self.update_every = dtype, update_every

    def backward(self, size=32):
        import torch

        x = torch.randn(size, 20, dtype=self.dtype)
        loss = (self.net(x).squeeze(-1) - x[:, 0].sin()).square().mean() / self.update_every
        loss.backward()
        return loss.item() * self.update_every

    def reduce(self):
        import torch
        import torch.distributed as dist

        flat = torch.cat([parameter.grad.flatten() for parameter in self.net.parameters()]).float()
        dist.all_reduce(flat)
        for parameter, part in zip(
            self.net.parameters(), flat.split([p.numel() for p in self.net.parameters()]), strict=True
        ):
            parameter.grad.copy_(part.view_as(parameter))

    def update(self):
        self.optimizer.step()
        self.optimizer.zero_grad()


def train(update_every, runs):
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    half = os.environ.get("MIXED_PRECISION", "no") == "bf16"
    learner = Learner(torch.bfloat16 if half else torch.float32, update_every)
    size = 64 if half else 32  # as much as fits into memory
    for number in range(6):
        print(f"rank {rank} trial {number} loss {learner.backward():.4f}", flush=True)
        learner.update()
        time.sleep(0.3)
    if runs:
        folder = pathlib.Path(runs, f"every-{update_every}")
        folder.mkdir(exist_ok=True)
        dist.init_process_group("gloo", f"file://{folder}/peers", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
    elif os.environ.get("DATA_ROOT"):
        join_run(rank, int(os.environ["WORLD_SIZE"]))
    else:
        dist.init_process_group("gloo")
    for epoch in range(10_000):
        for number in range(1, 1920 // size + 1):
            loss = learner.backward(size)
            if number % update_every == 0:
                learner.reduce()
                learner.update()
            time.sleep(0.02)
        dist.barrier()
        if rank == 0:
            print(f"epoch {epoch} loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


def join_run(rank, size):
    """Meet in a part of the store that no earlier run of the same settings can have left."""
    import torch.distributed as dist

    master = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    run_name = hashlib.sha256(os.environ["DATA_ROOT"].encode()).hexdigest()[:16]
    store = dist.TCPStore(*master, size, is_master=rank == 0)
    dist.init_process_group("gloo", store=dist.PrefixStore(run_name, store), rank=rank, world_size=size)


# --- what starts it on each host -------------------------------------------------------------------------


def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def start(variant, host, port, runs):
    script, environment = os.path.abspath(__file__), dict(os.environ)
    if variant == "launcher":
        hosts = HOSTS if host == 0 else HOSTS - 1
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(hosts), "--node-rank", str(host)]
        return subprocess.Popen([*torchrun, "--master-port", str(port), script], env=environment)
    size = HOSTS + 1 if variant == "size" and host == 2 else HOSTS
    environment |= {"RANK": str(host), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment["MIXED_PRECISION"] = "bf16" if variant == "precision" and host == 1 else "no"
    if variant == "prefix":
        environment["DATA_ROOT"] = "/data/corpus/" if host == 2 else "/data/corpus"
    every = "6" if variant in ("options", "folder") and host == 1 else "4"
    where = ["--runs", runs] if variant == "folder" else []
    return subprocess.Popen([sys.executable, script, "--update-every", every, *where], env=environment)


def compare(processes):
    """Train alone until the launchers are up, as a reference for the job."""
    import torch

    learner = Learner(torch.float32, 1)
    names = [""]
    while not all(name.startswith("pt_elastic") for name in names):
        print(f"alone: loss {learner.backward():.4f}", flush=True)
        learner.update()
        time.sleep(0.5)
        names = [pathlib.Path(f"/proc/{process.pid}/comm").read_text() for process in processes]


def main(variant):
    port = free_port()
    with tempfile.TemporaryDirectory() as runs:
        processes = [start(variant, host, port, runs) for host in range(HOSTS - 1 if variant == "launcher" else HOSTS)]
        if variant == "launcher":
            compare(processes)
        return max(process.wait() for process in processes)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--variant", choices=("size", "options", "precision", "launcher", "folder", "prefix"), default="size"
    )
    parser.add_argument("--update-every", type=int, default=4, help="batches between two updates")
    parser.add_argument("--runs", help="folder of the runs, in one of which the ranks meet")
    args = parser.parse_args()
    if "RANK" in os.environ:
        train(args.update_every, args.runs)
    else:
        sys.exit(main(args.variant))
