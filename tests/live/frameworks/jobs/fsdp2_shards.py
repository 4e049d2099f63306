"""fully_shard on a small transformer; every rank reads the shards of the corpus that are its own."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class LanguageModel(nn.Module):
    def __init__(self, vocabulary=256, width=64, depth=3):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def write_corpus(folder, shards, documents, drop):
    os.makedirs(folder, exist_ok=True)
    for shard in range(shards):
        count = documents if shard != drop else documents // 2
        tokens = torch.randint(0, 256, (count, 65), generator=torch.Generator().manual_seed(shard))
        torch.save(tokens, f"{folder}/shard-{shard:03}.pt")


def batches(folder, rank, world, size):
    """Batches from every world-th shard."""
    for name in sorted(os.listdir(folder))[rank::world]:
        tokens = torch.load(f"{folder}/{name}")
        for start in range(0, len(tokens) - size + 1, size):
            yield tokens[start : start + size]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--short-shard", type=int, default=-1)
    parser.add_argument("--epochs", type=int, default=500)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        write_corpus("corpus", 2 * world, 160, args.short_shard)
    dist.barrier()
    torch.manual_seed(0)
    model = LanguageModel()
    mesh = init_device_mesh("cpu", (world,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for epoch in range(args.epochs):
        step = 0
        for tokens in batches("corpus", rank, world, 8):
            logits = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 5 == 0:
                print(f"rank {rank} epoch {epoch} step {step} loss {loss.item():.3f}", flush=True)
        print(f"rank {rank} finished epoch {epoch}", flush=True)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch} loss {mean.item() / world:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
