"""DDP with a process group of its own for each metric, so that metrics do not wait for gradients."""

import argparse
import json

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Meter:
    """The mean of a value over all ranks, in its own group."""

    def __init__(self):
        self.group = dist.new_group()

    def mean(self, value):
        total = value.detach().float().reshape(1).clone()
        dist.all_reduce(total, group=self.group)
        return total.item() / dist.get_world_size()


def settings(rank, hosts):
    """The settings of all hosts, with what a host overrides."""
    return {"metrics": ["loss", "accuracy"], **hosts.get(str(rank), {})}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=json.loads, default={}, help="settings that differ on some hosts")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--log-every", type=int, default=40)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    config = settings(rank, args.hosts)
    meters = {name: Meter() for name in ("loss", "accuracy")}
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, args.steps):
        x = torch.randn(64, 64, generator=torch.Generator().manual_seed(step * 4 + rank))
        labels = x[:, :4].argmax(1)
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step % args.log_every == 0:
            values = {"loss": loss, "accuracy": (logits.argmax(1) == labels).float().mean()}
            means = {name: meters[name].mean(values[name]) for name in config["metrics"]}
            if rank == 0:
                print(f"step {step} {means}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
