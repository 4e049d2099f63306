"""Data-parallel training on two hosts with a second interface for their containers.

python reproducer.py [--variant own|same|one|bridge]     needs root and `ip`

--variant   own: GLOO_SOCKET_IFNAME=docker0 on both hosts, with a different network on each; same: with the same
            network, as Docker's default; one: on the first host only; bridge: no interface is set, and the hosts'
            names and default routes lead to the bridge of the container network
"""

import argparse
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

GATEWAY = "192.168.57.254"
NAME = "trainer-{}"
INSIDE = {"own": "172.17.{}.1/24", "one": "172.17.{}.1/24", "same": "172.17.0.1/16", "bridge": "10.244.{}.1/24"}
NICS = {"own": ("docker0", "docker0"), "same": ("docker0", "docker0"), "one": ("docker0", "eth0"), "bridge": ("", "")}


# --- the training script, started by torchrun on each host ----------------------------------------------


def batches(seed):
    """A noisy sine, and the samples before each point of it."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    while True:
        start = torch.rand(32, 1, generator=generator) * 6.28
        wave = torch.sin(start + torch.arange(17) / 4) + 0.05 * torch.randn(32, 17, generator=generator)
        yield wave[:, :-1], wave[:, -1:]


def fit(model, data, steps, pause, tell):
    import torch

    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step, (past, coming) in zip(range(steps), data, strict=False):
        loss = torch.nn.functional.mse_loss(model(past), coming)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tell(step, loss.item())
        time.sleep(pause)


def train():
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    rank = int(os.environ["RANK"])
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 1))
    fit(
        model, batches(rank), 20, 0.3, lambda step, loss: print(f"rank {rank} alone {step} loss {loss:.4f}", flush=True)
    )
    dist.init_process_group("gloo")
    fit(
        DistributedDataParallel(model), batches(rank), 100_000, 0.0,
        lambda step, loss: rank == 0 and step % 100 == 0 and print(f"step {step} loss {loss:.4f}", flush=True),
    )  # fmt: skip
    dist.destroy_process_group()


# --- two hosts with a network for containers each -------------------------------------------------------


def add_containers(bed, index, variant):
    """A bridge for containers, with one container that runs."""
    bridge = "cni0" if variant == "bridge" else "docker0"
    inside = INSIDE[variant].format(index + 1)
    bed.ip(index, "link", "add", bridge, "type", "bridge")
    bed.ip(index, "link", "add", "veth1", "type", "veth", "peer", "name", "guest")
    for name in (bridge, "veth1", "guest"):
        bed.ip(index, "link", "set", name, "up")
    bed.ip(index, "link", "set", "veth1", "master", bridge)
    bed.ip(index, "address", "add", inside, "dev", bridge)
    if variant == "bridge":
        router = inside.replace(".1/24", ".254")
        bed.ip(index, "neigh", "replace", router, "lladdr", "02:00:00:00:00:99", "dev", bridge)
        bed.ip(index, "route", "add", "default", "via", router, "dev", bridge)
        bed.call(index, NAME.format(index), f"{inside.partition('/')[0]} {NAME.format(index)}")
    else:
        bed.ip(index, "route", "add", "default", "via", GATEWAY, "dev", "eth0")
        bed.call(index, NAME.format(index), f"{bed.address(index)} {NAME.format(index)}")


def run(variant):
    from hosts import hosts

    with hosts(2, "192.168.57") as bed:
        bed.ip(None, "address", "add", f"{GATEWAY}/24", "dev", "bridge")  # a router that knows no other network
        for index in range(bed.count):
            add_containers(bed, index, variant)
        return bed.job(__file__, sys.argv[1:], interfaces=NICS[variant])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=INSIDE, default="own")
    args = parser.parse_args()
    if "RANK" in os.environ:
        train()
    else:
        sys.exit(run(args.variant))
