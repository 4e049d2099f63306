"""DiLoCo-style pre-training of a small conv net: inner SGD on each worker, outer Nesterov step every H steps."""

import argparse
import logging
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

log = logging.getLogger("local_sgd")


class ConvNet(nn.Module):
    def __init__(self, width=24, classes=10):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.GroupNorm(4, width),
            nn.GELU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.GroupNorm(4, 2 * width),
            nn.GELU(),
            nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1),
            nn.GELU(),
        )
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


class Worker:
    """The stream of one worker: its own classes are more frequent than the others."""

    def __init__(self, rank, world, batch):
        self.gen = torch.Generator().manual_seed(1000 + rank)
        self.batch = batch
        weights = torch.ones(10)
        weights[rank * 10 // world : (rank + 1) * 10 // world] = 4
        self.weights = weights
        self.proto = torch.randn(10, 3, 32, 32, generator=torch.Generator().manual_seed(0))

    def next(self):
        y = torch.multinomial(self.weights, self.batch, replacement=True, generator=self.gen)
        x = self.proto[y] + 1.5 * torch.randn(self.batch, 3, 32, 32, generator=self.gen)
        return x, y


class OuterOptimizer:
    def __init__(self, model, lr=0.7, momentum=0.9):
        self.model = model
        self.anchor = [p.detach().clone() for p in model.parameters()]
        self.opt = torch.optim.SGD(self.anchor, lr=lr, momentum=momentum, nesterov=True)

    @torch.no_grad()
    def step(self):
        world = dist.get_world_size()
        deltas = torch.cat([(a - p).flatten() for a, p in zip(self.anchor, self.model.parameters())])
        dist.all_reduce(deltas)
        deltas /= world
        offset = 0
        for a in self.anchor:
            a.grad = deltas[offset : offset + a.numel()].view_as(a).clone()
            offset += a.numel()
        self.opt.step()
        for a, p in zip(self.anchor, self.model.parameters()):
            p.copy_(a)
        return deltas.norm().item()


@torch.no_grad()
def evaluate(model, batches=10):
    stream = Worker(0, 1, 64)
    hits = sum((model(x).argmax(1) == y).sum().item() for x, y in (stream.next() for _ in range(batches)))
    return hits / (64 * batches)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--inner-steps", type=int, default=30)
    ap.add_argument("--rounds", type=int, default=100000)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--out", default="runs/local_sgd")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [worker {rank}] %(message)s")
    os.makedirs(args.out, exist_ok=True)

    torch.manual_seed(7)
    model = ConvNet()
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    outer = OuterOptimizer(model)
    stream = Worker(rank, world, args.batch)
    step = 0
    for rnd in range(args.rounds):
        for _ in range(args.inner_steps):
            x, y = stream.next()
            loss = F.cross_entropy(model(x), y)
            inner.zero_grad()
            loss.backward()
            inner.step()
            step += 1
            if step % 10 == 0:
                log.info("round %d step %d loss %.4f", rnd, step, loss.item())
        moved = outer.step()
        if rank == 0:
            log.info("round %d outer step, pseudo-gradient %.4f, accuracy %.3f", rnd, moved, evaluate(model))
            if rnd % 5 == 4:
                torch.save({"model": model.state_dict(), "round": rnd}, f"{args.out}/model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
