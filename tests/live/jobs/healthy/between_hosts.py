"""Healthy training between two hosts (network namespaces): what the network does there is nobody's fault.

python between_hosts.py --how loses_little|narrow|bulk     needs root, `ip`, `iptables` and `tc`

loses_little: one packet in a hundred is lost; narrow: the line is slow, but gradients cross it while the next ones are
worked out, and nobody waits; bulk: every step sends megabytes, over a fast line.
"""

import argparse
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), *[".."] * 4, "playbooks"))

WIDTH = {"loses_little": 256, "narrow": 256, "bulk": 2048}
STEP_S = 0.2  # of work, while the gradients of the step before are on their way


def network(width):
    from torch import nn

    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))


def error(model, rows=256):
    import torch

    inputs = torch.randn(rows, 64)
    return (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()


def together(model):
    """A step with the gradients of all ranks."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        optimizer.zero_grad()
        loss = error(model)
        loss.backward()
        optimizer.step()
        yield loss.item()


def one_behind(model):
    """A step with the gradients of the step before, which were averaged meanwhile."""
    import torch
    import torch.distributed as dist

    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    sizes = [parameter.numel() for parameter in model.parameters()]
    underway = None
    while True:
        optimizer.zero_grad()
        until = time.monotonic() + STEP_S
        while time.monotonic() < until:
            loss = error(model)
            loss.backward()
        fresh = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        if underway is not None:
            work, average = underway
            work.wait()
            for parameter, part in zip(model.parameters(), average.split(sizes)):
                parameter.grad = part.view_as(parameter) / dist.get_world_size()
            optimizer.step()
        underway = dist.all_reduce(fresh, async_op=True), fresh
        yield loss.item()


def main(how):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    torch.manual_seed(2)
    train = one_behind if how == "narrow" else together
    for step, loss in enumerate(train(network(WIDTH[how]))):
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"{time.strftime('%X')} step {step} loss {loss:.3f}", flush=True)


def run(how):
    from hosts import hosts

    with hosts(2) as bed:
        for index in range(2):
            if how == "loses_little":
                bed.ip(index, "link", "set", "eth0", "gso_max_segs", "1")  # packets as on a wire
                lost = ["-m", "statistic", "--mode", "random", "--probability", "0.01", "-j", "DROP"]
                bed.run(index, "iptables", "-A", "INPUT", "-i", "eth0", *lost)
            elif how == "narrow":
                shaper = ["tbf", "rate", "30mbit", "burst", "32kb", "limit", "400kb"]
                bed.run(index, "tc", "qdisc", "add", "dev", "eth0", "root", *shaper)
        return bed.job(__file__, sys.argv[1:])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", choices=WIDTH, default="loses_little")
    args = parser.parse_args()
    sys.exit(main(args.how) if "RANK" in os.environ else run(args.how))
