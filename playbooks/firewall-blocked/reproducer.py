"""Data-parallel training on two hosts whose firewalls let only ssh and the store's port in.

python reproducer.py [--variant drop|reject|later]     needs root, `ip` and `iptables`

--variant   drop: other packets are dropped; reject: they are refused; later: the firewalls close while the job trains,
            and then it creates another process group
"""

import argparse
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

NAME = "worker{}"
STEPS = 40  # until the script of `later` makes its second group


# --- the training script, started by torchrun on each host ----------------------------------------------


def digits(generator):
    """Rows of a number's segments, some of them wrong."""
    import torch

    wanted = torch.randint(10, (64,), generator=generator)
    segments = torch.tensor([119, 36, 93, 109, 46, 107, 123, 37, 127, 111])
    lit = (segments[wanted, None] >> torch.arange(7)) & 1
    return (lit ^ (torch.rand(64, 7, generator=generator) < 0.05)).float(), wanted


def step(model, optimizer, generator):
    import torch

    inputs, wanted = digits(generator)
    loss = torch.nn.functional.cross_entropy(model(inputs), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def train(later):
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    rank = int(os.environ["RANK"])
    generator = torch.Generator().manual_seed(rank)
    model = nn.Sequential(nn.Linear(7, 48), nn.ReLU(), nn.Linear(48, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for number in range(20):
        print(f"rank {rank} warm-up {number} loss {step(model, optimizer, generator):.4f}", flush=True)
        time.sleep(0.3)
    dist.init_process_group("gloo")
    shared = DistributedDataParallel(model)
    for number in range(100_000):
        loss = step(shared, optimizer, generator)
        if rank == 0 and number % 10 == 0:
            print(f"step {number} loss {loss:.4f}", flush=True)
        if later:
            time.sleep(0.1)
            if number == STEPS:
                dist.barrier(dist.new_group([0, 1]))
    dist.destroy_process_group()


# --- two hosts, each with a firewall --------------------------------------------------------------------


def close(bed, port, target):
    """Admit connections to the ports of ssh and of the store only; open connections stay."""
    rule = ["iptables", "-w", "-A", "INPUT", "-i", "eth0", "-p", "tcp", "--syn"]
    rule += ["-m", "multiport", "!", "--dports", f"22,{port}", "-j", target]
    for index in range(bed.count):
        bed.run(index, *rule)


def run(variant):
    from hosts import PORT, hosts

    with hosts(2, "10.96.0") as bed:
        for index in range(bed.count):
            bed.call(index, NAME.format(index), f"{bed.address(index)} {NAME.format(index)}")
        if variant != "later":
            close(bed, PORT, "REJECT" if variant == "reject" else "DROP")

        def on_line(line):
            if variant == "later" and line.startswith("step 10 "):
                close(bed, PORT, "DROP")

        return bed.job(__file__, sys.argv[1:], on_line, interfaces=("", ""))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("drop", "reject", "later"), default="drop")
    args = parser.parse_args()
    if "RANK" in os.environ:
        train(args.variant == "later")
    else:
        sys.exit(run(args.variant))
