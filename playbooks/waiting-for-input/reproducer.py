"""Sentiment classifier over bags of words, trained with DDP; its weights are published after some of the epochs.

torchrun --nproc-per-node 2 reproducer.py [--variant debugger|password|program]
"""

import argparse
import getpass
import os
import pty
import subprocess

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

PUBLISHED = {3: "rc1", 9: "final"}  # epoch -> tag
ANSWER = os.environ.get("REGISTRY_TOKEN")
UPLOAD = 'read -r answer && [ "$answer" = yes ] && echo uploaded'


class Reviews:
    def __init__(self, seed, words=400, reviews=2048):
        random = torch.Generator().manual_seed(seed)
        mood = torch.randn(words, generator=torch.Generator().manual_seed(0))
        self.counts = torch.poisson(torch.full((reviews, words), 0.1), generator=random)
        self.labels = (self.counts @ mood > 0).float()

    def batches(self, size):
        return zip(self.counts.split(size), self.labels.split(size), strict=True)


class Publisher:
    def __init__(self, variant):
        self.variant = variant
        self.console, terminal = pty.openpty()
        os.dup2(terminal, 0)

    def publish(self, model, epoch):
        size = sum(p.numel() for p in model.parameters())
        print(f"epoch {epoch}: {size} weights for {PUBLISHED[epoch]}", flush=True)
        if self.variant == "debugger":
            norm = max(p.abs().max().item() for p in model.parameters())
            if norm < 100:
                breakpoint()
        elif self.variant == "password":
            entered = ANSWER or getpass.getpass("registry PIN: ")
            print(f"signed in with {len(entered)} characters", flush=True)
        elif self.variant == "program":
            subprocess.run(["sh", "-c", UPLOAD], check=True)
        elif input(f"publish {PUBLISHED[epoch]}? [y/N] ") == "y":
            print("published", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("question", "debugger", "password", "program"), default="question")
    parser.add_argument("--epochs", type=int, default=12)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    reviews = Reviews(seed=1 + rank)
    model = DDP(nn.Sequential(nn.Linear(400, 128), nn.ReLU(), nn.Linear(128, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    publisher = Publisher(args.variant) if rank == 0 else None
    for epoch in range(args.epochs):
        for counts, labels in reviews.batches(64):
            loss = nn.functional.binary_cross_entropy_with_logits(model(counts).squeeze(1), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.3f}", flush=True)
            if epoch in PUBLISHED:
                publisher.publish(model.module, epoch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
