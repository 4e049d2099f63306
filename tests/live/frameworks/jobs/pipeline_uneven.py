"""Three-stage GPipe training of a transformer LM; the head with its large vocabulary lives on the last stage."""

import argparse
import json
import logging
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

CONFIG = {
    "vocab": 6000,
    "dim": 96,
    "heads": 4,
    "length": 48,
    "batch": 16,
    "microbatches": 4,
    "blocks": [1, 2, 1],
    "lr": 1e-3,
    "steps": 1000000,
}
log = logging.getLogger("pipeline")


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        h = self.n1(x)
        mask = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.n2(x))


class Part(nn.Module):
    def __init__(self, cfg, index, last):
        super().__init__()
        self.embed = nn.Embedding(cfg["vocab"], cfg["dim"]) if index == 0 else None
        self.blocks = nn.ModuleList(Block(cfg["dim"], cfg["heads"]) for _ in range(cfg["blocks"][index]))
        self.head = nn.Sequential(nn.LayerNorm(cfg["dim"]), nn.Linear(cfg["dim"], cfg["vocab"])) if last else None

    def forward(self, x):
        if self.embed is not None:
            x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(x)


def lm_loss(logits, target):
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


class Corpus:
    def __init__(self, cfg, seed=0):
        self.cfg = cfg
        self.gen = torch.Generator().manual_seed(seed)
        self.table = torch.randint(0, cfg["vocab"], (cfg["vocab"],), generator=self.gen)

    def batch(self):
        ids = torch.randint(0, self.cfg["vocab"], (self.cfg["batch"], 1), generator=self.gen)
        out = [ids]
        for _ in range(self.cfg["length"]):
            out.append(self.table[out[-1]])
        ids = torch.cat(out, 1)
        return ids[:, :-1], ids[:, 1:]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--config", type=json.loads, default={})
    args = ap.parse_args()
    cfg = {**CONFIG, **args.config}
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s stage {rank} %(message)s")
    torch.manual_seed(rank)
    part = Part(cfg, rank, rank == world - 1)
    stage = PipelineStage(part, rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, cfg["microbatches"], loss_fn=lm_loss)
    optimizer = torch.optim.AdamW(part.parameters(), lr=cfg["lr"])
    corpus = Corpus(cfg)
    log.info("%d parameters", sum(p.numel() for p in part.parameters()))
    began = time.time()
    for step in range(1, cfg["steps"] + 1):
        ids, target = corpus.batch()
        optimizer.zero_grad()
        losses = []
        if rank == 0:
            schedule.step(ids)
        elif rank == world - 1:
            schedule.step(target=target, losses=losses)
        else:
            schedule.step()
        optimizer.step()
        if losses and step % 5 == 0:
            loss = torch.stack(losses).mean().item()
            log.info("step %d loss %.4f %.2f steps/s", step, loss, step / (time.time() - began))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
