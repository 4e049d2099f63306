"""DDP on a model whose experts are chosen per batch, with a barrier before every checkpoint."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Experts(nn.Module):
    """Send the batch through the expert of its language."""

    def __init__(self, width, names):
        super().__init__()
        self.names = names
        self.stem = nn.Linear(32, width)
        self.experts = nn.ModuleDict(
            {name: nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for name in names}
        )
        self.head = nn.Linear(width, 1)

    def forward(self, x, languages):
        hidden = self.stem(x)
        parts = []
        for name in self.names:
            chosen = torch.tensor([language == name for language in languages])
            if chosen.any():
                parts.append(self.head(self.experts[name](hidden[chosen])))
        return torch.cat(parts)


def batch(step, rank, rare_from):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    names = ["en", "de", "fr"]
    languages = [names[i % 3] for i in range(24)]
    if rank == 2 and step >= rare_from:
        languages = ["en" if language == "fr" else language for language in languages]
    return torch.randn(24, 32, generator=generator), languages


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--rare-from", type=int, default=10**9)
    parser.add_argument("--find-unused", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Experts(128, ["en", "de", "fr"]), find_unused_parameters=args.find_unused)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        x, languages = batch(step, rank, args.rare_from)
        loss = model(x, languages).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step % 50 == 0:
            dist.barrier()
            if rank == 0:
                torch.save(model.module.state_dict(), "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
