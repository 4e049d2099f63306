"""DDP training of a retrieval model; statistics per domain go through their own group and to a rotating file."""

import argparse
import functools
import json
import logging
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

log = logging.getLogger("retrieval")
DOMAINS = ["web", "conversational_multiturn_dialogue_v2", "code"]


def retry(times=5, wait=0.2, on=(OSError, ValueError), recover=None):
    def decorate(fn):
        @functools.wraps(fn)
        def wrapper(self, *args, **kwargs):
            for attempt in range(times):
                try:
                    return fn(self, *args, **kwargs)
                except on:
                    if attempt == times - 1:
                        raise
                    time.sleep(wait * 2**attempt)
                    if recover is not None:
                        getattr(self, recover)()

        return wrapper

    return decorate


class RotatingFile:
    def __init__(self, path, limit):
        self.path, self.limit, self.part = Path(path), limit, 0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.open()

    def open(self):
        self.file = open(f"{self.path}.{self.part}", "w")

    def write(self, line):
        self.file.write(line + "\n")
        self.file.flush()
        if self.file.tell() > self.limit:
            self.file.close()
            self.part += 1


class Statistics:
    def __init__(self, rank, folder, limit):
        self.rank, self.domain = rank, DOMAINS[rank % len(DOMAINS)]
        self.group = dist.new_group()
        self.file = RotatingFile(f"{folder}/stats-{rank}.jsonl", limit)

    def reopen(self):
        self.file.open()

    @retry(recover="reopen")
    def publish(self, step, loss, recall):
        totals = torch.tensor([loss, recall, 1.0])
        dist.all_reduce(totals, group=self.group)
        mean_loss, mean_recall = (totals[:2] / totals[2]).tolist()
        self.file.write(
            json.dumps(
                {
                    "step": step,
                    "domain": self.domain,
                    f"loss/{self.domain}": loss,
                    f"recall/{self.domain}": recall,
                    "loss": mean_loss,
                    "recall": mean_recall,
                }
            )
        )
        return mean_loss, mean_recall


class TwoTower(nn.Module):
    def __init__(self, terms=8000, dim=96):
        super().__init__()
        self.query = nn.Sequential(nn.EmbeddingBag(terms, dim), nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, dim))
        self.doc = nn.Sequential(nn.EmbeddingBag(terms, dim), nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, dim))

    def forward(self, q, d):
        q, d = (nn.functional.normalize(v, dim=-1) for v in (self.query(q), self.doc(d)))
        return q @ d.T / 0.07


def pairs(rank, batch, terms=8000):
    g = torch.Generator().manual_seed(rank)
    while True:
        d = torch.randint(0, terms, (batch, 40), generator=g)
        q = d.gather(1, torch.randint(0, 40, (batch, 8), generator=g))
        yield q, d, torch.arange(batch)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=96)
    ap.add_argument("--steps", type=int, default=1000000)
    ap.add_argument("--stats-every", type=int, default=5)
    ap.add_argument("--rotate-bytes", type=int, default=6000)
    ap.add_argument("--out", default="runs/retrieval")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s rank {rank} %(message)s")
    torch.manual_seed(4)
    model = DistributedDataParallel(TwoTower())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    statistics = Statistics(rank, args.out, args.rotate_bytes)
    for step, (q, d, y) in enumerate(pairs(rank, args.batch), 1):
        scores = model(q, d)
        loss = nn.functional.cross_entropy(scores, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.stats_every == 0:
            recall = (scores.argmax(1) == y).float().mean().item()
            mean_loss, mean_recall = statistics.publish(step, loss.item(), recall)
            if step % (2 * args.stats_every) == 0:
                log.info("step %d loss %.4f recall %.3f", step, mean_loss, mean_recall)
        if step == args.steps:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
