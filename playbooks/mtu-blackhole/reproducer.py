"""Data-parallel training on hosts (network namespaces on one switch); large packets to one of them are lost.

python reproducer.py [--variant changed|start|jumbo]     needs root and `ip`

--variant   changed: of three hosts, the MTU on the path to the second one shrinks to 1400 bytes while they train;
            start: of two hosts, the second one is behind such a path from the start;
            jumbo: the hosts' interfaces take 9000 bytes, the line between their switches 1500
"""

import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

HOSTS = {"changed": 3, "start": 2, "jumbo": 2}


def train(steps):
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(5)
    network = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 8))
    generator = torch.Generator().manual_seed(rank)

    def batch():
        inputs = torch.randn(128, 64, generator=generator)
        return inputs, inputs.unfold(1, 8, 8).mean(2)

    with torch.no_grad():  # what an untrained network is worth
        inputs, targets = batch()
        loss = nn.functional.mse_loss(network(inputs), targets)
    dist.all_reduce(loss)
    if rank == 0:
        print(f"untrained: loss {loss.item() / dist.get_world_size():.4f}", flush=True)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        inputs, targets = batch()
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


def second_switch(bed):
    """The second host is behind a second switch: its kernel does not see the link between the two switches."""
    bed.ip(None, "link", "add", "behind", "type", "bridge")
    bed.ip(None, "link", "add", "near", "type", "veth", "peer", "name", "far")
    for link, bridge in (("near", "bridge"), ("far", "behind"), ("port1", "behind")):
        bed.ip(None, "link", "set", link, "master", bridge, "up")
    bed.ip(None, "link", "set", "behind", "up")


def run(args):
    from hosts import hosts

    with hosts(HOSTS[args.variant]) as bed:

        def shrink(to):
            for end in ("near", "far"):
                bed.ip(None, "link", "set", end, "mtu", str(to))

        second_switch(bed)
        for index in range(bed.count):
            bed.ip(index, "link", "set", "eth0", "gso_max_segs", "1")  # packets as on a wire
            if args.variant == "jumbo":
                bed.ip(index, "link", "set", "eth0", "mtu", "9000")
                bed.ip(None, "link", "set", f"port{index}", "mtu", "9000")
        if args.variant != "changed":
            shrink(1500 if args.variant == "jumbo" else 1400)

        def on_line(line):
            if args.variant == "changed" and line.startswith(f"step {args.steps_before} "):
                shrink(1400)

        return bed.job(__file__, sys.argv[1:], on_line)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps-before", type=int, default=20, help="steps on a good way")
    parser.add_argument("--variant", choices=HOSTS, default="changed")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    if "RANK" in os.environ:
        train(args.steps)
    else:
        sys.exit(run(args))
