"""Training of a small forecaster of made-up load curves, continued from a checkpoint where there is one.

torchrun --nproc-per-node 3 reproducer.py [--variant continued|averaged|plain|functional]
"""

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

HOURS = 96


class Curves(Dataset):
    """Daily and weekly waves with noise; the label is the next day."""

    def __init__(self, size=3072):
        generator = torch.Generator().manual_seed(3)
        phase = torch.rand(size, 1, generator=generator) * 6.28
        hours = torch.arange(HOURS + 24)
        waves = torch.sin(hours * 6.28 / 24 + phase) + 0.4 * torch.sin(hours * 6.28 / 168 + 2 * phase)
        self.curves = waves + 0.1 * torch.randn(size, HOURS + 24, generator=generator)

    def __len__(self):
        return len(self.curves)

    def __getitem__(self, index):
        return self.curves[index, :HOURS], self.curves[index, HOURS:]


class Forecaster(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(HOURS, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 24)

    def forward(self, x):
        return self.head(self.norm(self.body(x)))


class Tensors:
    """The forecaster in a functional style: its parameters are a dict of tensors."""

    def __init__(self, model):
        self.tensors = {name: one.detach().clone().requires_grad_() for name, one in model.named_parameters()}
        self.skeleton = model.to("meta")

    def __call__(self, x):
        return torch.func.functional_call(self.skeleton, self.tensors, (x,))

    def parameters(self):
        return list(self.tensors.values())


class Objective:
    """Squared error of a model's forecast."""

    def __init__(self, model):
        self.model = model

    def __call__(self, x, y):
        return (self.model(x) - y).square().mean()


def restore(model, folder):
    """Continue from the last checkpoint on this host."""
    file = os.path.join(folder, f"last-{os.environ['LOCAL_RANK']}.pt")
    if os.path.exists(file):
        model.load_state_dict(torch.load(file, weights_only=True))


def keep(folder):
    """What an earlier run left behind on this host."""
    torch.manual_seed(77)
    model, data = Forecaster(), Curves(64).curves
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for _ in range(30):
        optimizer.zero_grad()
        Objective(model)(data[:, :HOURS], data[:, HOURS:]).backward()
        optimizer.step()
    torch.save(model.state_dict(), os.path.join(folder, f"last-{dist.get_world_size() - 1}.pt"))


def average(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def train(variant, folder, epochs=20_000, batch_size=32):
    rank = dist.get_rank()
    torch.manual_seed(rank if variant in ("averaged", "functional", "plain") else 0)
    data = Curves()
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, batch_size=batch_size, sampler=sampler, drop_last=True)
    model = Tensors(Forecaster()) if variant == "functional" else Forecaster()
    objective = Objective(model)
    if variant == "continued":
        network = DistributedDataParallel(model)
        objective = Objective(network)
        restore(network.module, folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader):
            loss = objective(x, y)
            optimizer.zero_grad()
            loss.backward()
            if variant in ("averaged", "functional"):
                average(model)
            optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch} loss {mean.item() / dist.get_world_size():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("continued", "averaged", "plain", "functional"), default="continued")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as name:
        keep(name)
        train(args.variant, name)
    dist.destroy_process_group()
