"""Data parallel training without DDP: gradients are averaged with all_reduce."""

import argparse
import random

import numpy as np
import torch
import torch.distributed as dist
from torch import nn


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(48, 192), nn.ReLU(), nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 1))

    def forward(self, x):
        return self.net(x)


def average(model):
    world = dist.get_world_size()
    flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    dist.all_reduce(flat)
    flat /= world
    offset = 0
    for parameter in model.parameters():
        parameter.grad.copy_(flat[offset : offset + parameter.numel()].view_as(parameter))
        offset += parameter.numel()


def broadcast(model):
    for value in model.state_dict().values():
        dist.broadcast(value, src=0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--same-start", action="store_true")
    parser.add_argument("--steps", type=int, default=200_000)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    seed_all(args.seed + rank)  # every rank shuffles and augments in its own way
    model = Regressor()
    if args.same_start:
        broadcast(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(args.steps):
        x = torch.randn(64, 48)
        loss = nn.functional.mse_loss(model(x), x[:, :5].sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        average(model)
        optimizer.step()
        if rank == 0 and step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if rank == 0 and step % 1000 == 999:
            torch.save(model.state_dict(), "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
