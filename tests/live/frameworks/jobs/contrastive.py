"""Contrastive learning with DDP; the model computes its own loss from two views."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Encoder(nn.Module):
    def __init__(self, width, temperature=0.1):
        super().__init__()
        self.temperature = temperature
        self.net = nn.Sequential(
            nn.Linear(100, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 64)
        )

    def forward(self, x):
        return nn.functional.normalize(self.net(x), dim=1)

    def contrast(self, first, second):
        logits = self(first) @ self(second).T / self.temperature
        return nn.functional.cross_entropy(logits, torch.arange(len(first)))


def unwrap(model):
    """The plain model, wrapped or not."""
    return getattr(model, "module", model)


class Task:
    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = optimizer

    def losses(self, batch):
        noisy = batch + 0.2 * torch.randn_like(batch)
        return unwrap(self.model).contrast(batch, noisy)

    def step(self, batch):
        loss = self.losses(batch)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2000)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(11)
    model = DDP(Encoder(256))
    task = Task(model, torch.optim.Adam(model.parameters(), lr=1e-3))
    torch.manual_seed(100 + rank)
    for epoch in range(args.epochs):
        for step in range(100):
            loss = task.step(torch.randn(32, 100))
            if rank == 0 and step % 25 == 0:
                print(f"epoch {epoch} step {step} loss {loss:.4f}", flush=True)
        dist.barrier()
        if rank == 0:
            torch.save(unwrap(model).state_dict(), "encoder.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
