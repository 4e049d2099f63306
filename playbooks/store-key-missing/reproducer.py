"""Sparse gradients through the store: each rank publishes its rows and reads those of the others."""

from __future__ import annotations

import argparse
import pickle
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

Rows = tuple[torch.Tensor, torch.Tensor]


def exchange(store: dist.Store, step: int, rank: int, world: int, mine: Rows) -> list[Rows]:
    """The rows of all ranks; none are sent where a batch touched none."""
    if mine[0].numel():
        store.set(f"rows/{step}/{rank}", pickle.dumps(mine))
    return [pickle.loads(store.get(f"rows/{step}/{peer}")) for peer in range(world)]  # noqa: S301


def train(rank: int, world: int, store: dist.Store, empty_at: int) -> None:
    table = nn.Embedding(4000, 32)
    data = torch.Generator().manual_seed(rank)
    for step in range(100_000):
        size = 0 if rank == 1 and step == empty_at else int(torch.randint(1, 64, (1,), generator=data))
        ids = torch.randint(0, 4000, (size,), generator=data)
        table.zero_grad()
        loss = table(ids).pow(2).sum()
        loss.backward()
        rows = ids.unique()
        gradient = table.weight.grad
        assert gradient is not None
        for of, values in exchange(store, step, rank, world, (rows, gradient[rows])):
            table.weight.data[of] -= 0.01 * values
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--empty-at", type=int, default=150, help="step in which a batch of rank 1 is empty")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    store.set_timeout(timedelta(minutes=30))
    train(dist.get_rank(), dist.get_world_size(), store, args.empty_at)
    dist.destroy_process_group()
