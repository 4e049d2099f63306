"""Learn to continue chat lines from a stream; each rank reads the channels that are its own.

torchrun --nproc-per-node 3 reproducer_stream.py
"""

import argparse
import itertools
import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

WORDS = "a the and we you they go see make take give good new long last here now then what who how when".split()
STOP = len(WORDS)
LENGTH = 16


def channel(number, lines=420):
    rng = random.Random(number)
    for _ in range(lines):
        yield rng.choices(range(len(WORDS)), k=rng.randint(3, 24))


class ChatStream(IterableDataset):
    """Lines long enough to learn from, cut to LENGTH words."""

    def __init__(self, channels, shortest=6):
        self.channels = channels
        self.shortest = shortest

    def __iter__(self):
        for line in itertools.chain.from_iterable(map(channel, self.channels)):
            if len(line) >= self.shortest:
                yield torch.tensor((line + [STOP] * LENGTH)[:LENGTH])


class Continuation(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.embed = nn.Embedding(STOP + 1, width)
        layer = nn.TransformerEncoderLayer(width, 4, 256, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(width, STOP + 1)

    def forward(self, words):
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
        return self.out(self.blocks(self.embed(words), mask=mask, is_causal=True))


class Meter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def add(self, value):
        self.total += value
        self.count += 1

    def over_ranks(self):
        both = torch.tensor([self.total, self.count], dtype=torch.float64)
        everyone = [torch.zeros_like(both) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, both)
        total, count = torch.stack(everyone).sum(0).tolist()
        return total / count


def run(args):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(Continuation())
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    stream = ChatStream(range(rank, args.channels, dist.get_world_size()))
    loader = DataLoader(stream, batch_size=args.batch_size, drop_last=True)
    for epoch in range(args.epochs):
        meter = Meter()
        for i, words in enumerate(loader):
            logits = model(words[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            meter.add(loss.item())
            if rank == 0 and i % 5 == 0:
                print(f"epoch {epoch} batch {i} loss {loss.item():.4f}", flush=True)
        mean = meter.over_ranks()
        if rank == 0:
            print(f"epoch {epoch} mean loss {mean:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--channels", type=int, default=4)
    options.add_argument("--epochs", type=int, default=20)
    options.add_argument("--batch-size", type=int, default=10)
    options.add_argument("--lr", type=float, default=1e-3)
    run(options.parse_args())
