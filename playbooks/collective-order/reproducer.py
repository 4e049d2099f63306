"""Multi-task and adversarial training with one process group per part of the model.

torchrun --nproc-per-node 2 reproducer.py [--variant tasks|gan]
"""

import argparse
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn


def flat(parameters):
    return torch.cat([p.grad.reshape(-1) for p in parameters])


def average(parameters, group):
    """One message for all gradients of a part."""
    parameters = list(parameters)
    message = flat(parameters)
    dist.all_reduce(message, group=group)
    message /= dist.get_world_size(group)
    offset = 0
    for p in parameters:
        p.grad.copy_(message[offset : offset + p.numel()].view_as(p))
        offset += p.numel()


# --- two tasks over one trunk -------------------------------------------------------------------------


@dataclass
class Task:
    name: str
    head: nn.Module
    group: object
    weight: float
    history: list = field(default_factory=list)


class MultiTask:
    def __init__(self, rank):
        self.rank = rank
        torch.manual_seed(11)
        self.trunk = nn.Sequential(nn.Linear(32, 256), nn.Tanh(), nn.Linear(256, 128), nn.Tanh())
        self.trunk_group = dist.new_group()
        # one group a task: later some ranks will train one of them only
        self.tasks = {
            "depth": Task("depth", nn.Linear(128, 16), dist.new_group(), 1.0),
            "normals": Task("normals", nn.Linear(128, 24), dist.new_group(), 1.25),
        }
        heads = [p for task in self.tasks.values() for p in task.head.parameters()]
        self.optimizer = torch.optim.SGD([*self.trunk.parameters(), *heads], lr=0.02)
        self.generator = torch.Generator().manual_seed(70 + rank)
        self.truth = {name: torch.randn(32, task.head.out_features) * 0.2 for name, task in self.tasks.items()}

    def batch(self, size=16):
        x = torch.randn(size, 32, generator=self.generator)
        noise = {n: 0.3 * torch.randn(size, t.shape[1], generator=self.generator) for n, t in self.truth.items()}
        return x, {name: torch.tanh(x @ truth) + noise[name] for name, truth in self.truth.items()}

    def losses(self, x, targets):
        features = self.trunk(x)
        return {
            name: task.weight * (task.head(features) - targets[name]).pow(2).mean() for name, task in self.tasks.items()
        }

    def step(self):
        losses = self.losses(*self.batch())
        self.optimizer.zero_grad()
        sum(losses.values()).backward()
        average(self.trunk.parameters(), self.trunk_group)
        # the hardest task first, it has the longest way to go
        for name in sorted(losses, key=lambda name: losses[name].item(), reverse=True):
            average(self.tasks[name].head.parameters(), self.tasks[name].group)
        self.optimizer.step()
        for name, loss in losses.items():
            self.tasks[name].history.append(loss.item())

    def run(self, steps):
        for step in range(steps):
            self.step()
            if self.rank == 0:
                told = "  ".join(f"{name} {task.history[-1]:.4f}" for name, task in self.tasks.items())
                print(f"step {step}  loss {told}", flush=True)


# --- generator and discriminator ----------------------------------------------------------------------


def real_samples(size):
    angle = torch.rand(size) * 6.283
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(size, 2)


def train_discriminator(generator, discriminator, optimizer, group):
    real, fake = real_samples(128), generator(torch.randn(128, 8)).detach()
    loss = nn.functional.softplus(-discriminator(real)).mean() + nn.functional.softplus(discriminator(fake)).mean()
    optimizer.zero_grad()
    loss.backward()
    average(discriminator.parameters(), group)
    optimizer.step()
    return loss.item()


def train_generator(generator, discriminator, optimizer, group):
    loss = nn.functional.softplus(-discriminator(generator(torch.randn(128, 8)))).mean()
    optimizer.zero_grad()
    loss.backward()
    average(generator.parameters(), group)
    optimizer.step()
    return loss.item()


def train_gan(rank, steps, ahead_after=60):
    torch.manual_seed(5)
    generator = nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
    discriminator = nn.Sequential(
        nn.Linear(2, 256), nn.LeakyReLU(0.2), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)
    )
    generator_group, discriminator_group = dist.new_group(), dist.new_group()
    g_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.9))
    d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.9))
    torch.manual_seed(rank)
    behind = 0
    for it in range(steps):
        # a discriminator that falls behind gets its update before the generator moves on
        if it < ahead_after or behind > 0:
            d_loss = train_discriminator(generator, discriminator, d_optimizer, discriminator_group)
            g_loss = train_generator(generator, discriminator, g_optimizer, generator_group)
        else:
            g_loss = train_generator(generator, discriminator, g_optimizer, generator_group)
            d_loss = train_discriminator(generator, discriminator, d_optimizer, discriminator_group)
        behind = behind + 1 if d_loss > 1.2 + 0.15 * rank else 0
        if rank == 0:
            print(f"it {it} d_loss {d_loss:.4f} g_loss {g_loss:.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("tasks", "gan"), default="tasks")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    if args.variant == "tasks":
        MultiTask(dist.get_rank()).run(steps=5000)
    else:
        train_gan(dist.get_rank(), steps=5000)
    dist.destroy_process_group()
