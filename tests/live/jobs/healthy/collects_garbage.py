"""Long garbage collections: each rank holds millions of small objects in cycles and collects at its own times."""

import gc
import random

import torch
import torch.distributed as dist
from lifetime import Lifetime, parser
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Sample:
    def __init__(self, text, previous):
        self.text = text
        self.words = text.split()
        self.previous = previous
        self.meta = {"owner": self, "length": len(self.words)}


def load_samples(count, rng):
    samples, previous = [], None
    for _ in range(count):
        previous = Sample(" ".join(str(rng.randrange(100)) for _ in range(6)), previous)
        samples.append(previous)
    return samples


def main():
    lifetime = Lifetime(parser().parse_args().seconds)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    rng = random.Random(rank)
    samples = load_samples(300_000, rng)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 256), nn.ReLU(), nn.Linear(256, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    step = 0
    while lifetime.goes_on():
        step += 1
        batch = rng.sample(samples, 256)
        x = torch.tensor([[float(word) for word in sample.words] for sample in batch])
        loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rng.random() < 0.05:
            gc.collect()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
