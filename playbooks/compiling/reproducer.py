"""Sentiment of product reviews with a compiled model and DDP; reviews come in all lengths.

torchrun --nproc-per-node 2 reproducer.py [--variant lengths|one|anew]

lengths: every batch is as long as its longest review, and the model is compiled for each length. one: one rank has
buckets that were never padded. anew: a helper that compiles is called in every step.
"""

import argparse
import random

import torch
import torch._dynamo
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

VOCABULARY = 800
PADDED = 96

# Somebody saw the warning that the limit was hit, and raised the limit.
torch._dynamo.config.recompile_limit = 5000
torch._dynamo.config.accumulated_recompile_limit = 50000


class Reviews:
    """Token ids of reviews; the stars are decided by a few words."""

    def __init__(self, seed, ragged):
        self.random = random.Random(seed)
        self.ragged = ragged

    def batch(self, size=12):
        length = self.random.randint(24, 400) if self.ragged else PADDED
        tokens = torch.tensor([[self.random.randrange(VOCABULARY) for _ in range(length)] for _ in range(size)])
        return tokens, (tokens < VOCABULARY // 3).float().mean(1).gt(0.33).long()


class Encoder(nn.Module):
    def __init__(self, width=64, layers=4):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.mix = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norm = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.head = nn.Linear(width, 2)

    def forward(self, tokens):
        x = self.embed(tokens)
        for mix, norm in zip(self.mix, self.norm):
            weights = torch.softmax(x @ x.transpose(1, 2) / x.shape[-1] ** 0.5, -1)
            x = x + F.gelu(norm(mix(weights @ x)))
        return self.head(x.mean(1))


def smoothed_loss(logits, stars):
    """Compiled where it is used, so that it is fast."""

    @torch.compile(backend="aot_eager")
    def loss(logits, stars):
        soft = torch.full_like(logits, 0.05).scatter(1, stars[:, None], 0.95)
        for power in range(1, 40):
            soft = soft + torch.sin(soft * power) * 1e-4
        return -(soft * F.log_softmax(logits, -1)).sum(-1).mean()

    torch._dynamo.reset()  # it once complained about too many versions of it
    return loss(logits, stars)


def train(variant, rank, steps):
    reviews = Reviews(rank, ragged=variant == "lengths" or (variant == "one" and rank == 1))
    encoder = Encoder()
    if variant != "anew":
        encoder = torch.compile(encoder, dynamic=False, backend="aot_eager")
    model = DDP(encoder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    objective = smoothed_loss if variant == "anew" else F.cross_entropy
    for step in range(steps):
        tokens, stars = reviews.batch()
        loss = objective(model(tokens), stars)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("lengths", "one", "anew"), default="lengths")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train(args.variant, dist.get_rank(), steps=100_000)
    dist.destroy_process_group()
