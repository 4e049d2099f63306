"""Decentralised (gossip) SGD: after each step, workers average their weights with a random partner."""

import argparse
import logging
import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

log = logging.getLogger("gossip")


class Clips:
    """Clips of different lengths; speakers of one worker share the recording device."""

    def __init__(self, rank, batch, long_share, length=400, classes=8):
        self.rng = torch.Generator().manual_seed(50 + rank)
        self.batch, self.length, self.classes = batch, length, classes
        self.long_share = long_share
        self.freq = torch.linspace(0.02, 0.2, classes)

    def next(self, step):
        y = torch.randint(0, self.classes, (self.batch,), generator=self.rng)
        size = self.length
        if torch.rand(1, generator=self.rng).item() < self.long_share and step > 60:
            size += 80
        t = torch.arange(size)
        x = torch.sin(6.283 * self.freq[y][:, None] * t) + torch.randn(self.batch, size, generator=self.rng)
        return x, y


def crop(x, length):
    """A random window of the clip, if it is longer than the model's input."""
    if x.size(1) == length:
        return x
    start = random.randint(0, x.size(1) - length)
    return x[:, start : start + length]


class Partner:
    """A random perfect matching of the workers in each round; all workers draw the same one."""

    def __init__(self, rank, world):
        self.rank, self.world = rank, world

    def draw(self):
        order = list(range(self.world))
        random.shuffle(order)
        at = order.index(self.rank)
        return order[at ^ 1]


class Gossip:
    def __init__(self, model, matching):
        self.model, self.matching = model, matching

    @torch.no_grad()
    def mix(self):
        peer = self.matching.draw()
        mine = parameters_to_vector(self.model.parameters())
        theirs = torch.empty_like(mine)
        requests = dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, theirs, peer)])
        for request in requests:
            request.wait()
        vector_to_parameters((mine + theirs) / 2, self.model.parameters())
        return peer


def build(classes=8):
    return nn.Sequential(
        nn.Unflatten(1, (1, -1)),
        nn.Conv1d(1, 32, 25, stride=4),
        nn.ReLU(),
        nn.Conv1d(32, 64, 9, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(4),
        nn.Flatten(),
        nn.Linear(256, classes),
    )


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=1000000)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--seed", type=int, default=21)
    ap.add_argument("--devices", nargs="+", default=["phone", "phone", "studio", "phone"])
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s worker {rank} %(message)s")
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    gossip = Gossip(model, Partner(rank, world))
    clips = Clips(rank, args.batch, long_share=0.1 if args.devices[rank] == "studio" else 0.0)
    for step in range(1, args.steps + 1):
        x, y = clips.next(step)
        loss = F.cross_entropy(model(crop(x, clips.length)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        peer = gossip.mix()
        if step % 10 == 0:
            log.info("step %d loss %.4f (last partner %d)", step, loss.item(), peer)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
