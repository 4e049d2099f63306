"""Data-parallel training on two hosts; GLOO_SOCKET_IFNAME is not right for both of them.

python reproducer.py [--variant other|caret|restarts|single]     needs root and `ip`

--variant   other: both are set to the interface of the first host, which the second host lacks; caret: both are set
            to `^lo`, which only NCCL understands; restarts: as `other`, with a loop instead of a launcher, which
            restarts a rank when it ends; single: it is not set on the first host, and its name does not resolve
"""

import argparse
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

NAME = "gpu{}"
NICS = ("ens5", "enp3s0")
SOCKET_IFNAMES = {
    "other": ("ens5", "ens5"),
    "caret": ("^lo", "^lo"),
    "restarts": ("ens5", "ens5"),
    "single": ("", "enp3s0"),
}


# --- the training script, started by torchrun on each host ----------------------------------------------


class Walk:
    """Learns where a random walk with a drift goes next."""

    def __init__(self, rank):
        import torch
        from torch import nn

        self.generator = torch.Generator().manual_seed(rank)
        self.net = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 1))

    def steps(self, net, count, pause=0.0):
        import torch

        optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
        for number in range(count):
            walk = (0.1 + torch.randn(64, 9, generator=self.generator)).cumsum(1)
            loss = torch.nn.functional.smooth_l1_loss(net(walk[:, :8]), walk[:, 8:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(pause)
            yield number, loss.item()


def train():
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    rank = int(os.environ["RANK"])
    walk = Walk(rank)
    for number, loss in walk.steps(walk.net, 40, 0.3):
        print(f"rank {rank} dry run {number} loss {loss:.4f}", flush=True)
    dist.init_process_group("gloo")
    for number, loss in walk.steps(DistributedDataParallel(walk.net), 100_000):
        if rank == 0 and number % 100 == 0:
            print(f"step {number} loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


# --- two hosts whose interfaces have other names ---------------------------------------------------------


def again(bed, port, told):
    """Restart a rank like a supervisor that ignores the other ranks."""
    loop = ["sh", "-c", 'until "$@"; do sleep 0.5; done', "loop", sys.executable, os.path.abspath(__file__)]
    where = {"MASTER_ADDR": bed.address(0), "MASTER_PORT": port, "WORLD_SIZE": str(bed.count)}
    for index, interface in enumerate(told):
        bed.start(index, *loop, RANK=str(index), GLOO_SOCKET_IFNAME=interface, **where)
    return bed.wait()


def run(variant):
    from hosts import PORT, hosts

    with hosts(2, "192.168.59", NICS) as bed:
        for index in range(bed.count):
            name = NAME.format(index)
            bed.call(index, name, *([] if variant == "single" else [f"{bed.address(index)} {name}"]))
        if variant == "restarts":
            return again(bed, PORT, SOCKET_IFNAMES[variant])
        return bed.job(__file__, sys.argv[1:], interfaces=SOCKET_IFNAMES[variant])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=SOCKET_IFNAMES, default="other")
    args = parser.parse_args()
    if "RANK" in os.environ:
        train()
    else:
        sys.exit(run(args.variant))
