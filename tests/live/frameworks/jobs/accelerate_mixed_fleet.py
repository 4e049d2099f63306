"""Click-through model with accelerate on a stream of impressions; batch size by the memory of the device."""

import argparse
import logging

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from torchmetrics.classification import BinaryAUROC

log = logging.getLogger("ctr")
FLEET = {
    0: {"name": "A100-80G", "memory_gb": 80},
    1: {"name": "A100-80G", "memory_gb": 80},
    2: {"name": "A100-40G", "memory_gb": 40},
}
FIELDS = [4000, 1000, 300, 50, 24, 7]


class Impressions(IterableDataset):
    def __init__(self, shard, seed=0):
        self.shard, self.seed = shard, seed

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + self.shard)
        taste = [torch.randn(n, generator=torch.Generator().manual_seed(k)) for k, n in enumerate(FIELDS)]
        while True:
            rows = torch.stack([torch.randint(0, n, (1024,), generator=g) for n in FIELDS], 1)
            logit = sum(t[rows[:, k]] for k, t in enumerate(taste)) - 1
            clicks = (torch.rand(1024, generator=g) < logit.sigmoid()).float()
            yield from zip(rows, clicks)


class DeepFM(nn.Module):
    def __init__(self, dim=16, hidden=512):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, dim) for n in FIELDS)
        self.first = nn.ModuleList(nn.Embedding(n, 1) for n in FIELDS)
        self.deep = nn.Sequential(
            nn.Linear(dim * len(FIELDS), hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def forward(self, rows):
        e = torch.stack([t(rows[:, k]) for k, t in enumerate(self.tables)], 1)
        pairs = (e.sum(1).square() - e.square().sum(1)).sum(1) / 2
        linear = sum(t(rows[:, k]) for k, t in enumerate(self.first)).squeeze(-1)
        return pairs + linear + self.deep(e.flatten(1)).squeeze(-1)


def batch_size_for(device, largest=256):
    """The largest power of two whose activations fit, as measured on the 80 GB cards."""
    size = largest
    while size * 0.28 > device["memory_gb"]:
        size //= 2
    return size


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=1000000)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s rank {rank} %(message)s")
    device = FLEET[rank]
    batch = batch_size_for(device)
    log.info("%s, batch size %d", device["name"], batch)
    torch.manual_seed(0)
    model = DeepFM()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    model, optimizer = accelerator.prepare(model, optimizer)
    loader = DataLoader(Impressions(rank), batch_size=batch)
    auroc = BinaryAUROC(thresholds=200)
    for step, (rows, clicks) in enumerate(loader, 1):
        logits = model(rows)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, clicks)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        auroc.update(logits.detach().sigmoid(), clicks.int())
        if step % 20 == 0:
            log.info("step %d loss %.4f", step, loss.item())
        if step % 200 == 0:
            score = auroc.compute().item()
            auroc.reset()
            if accelerator.is_main_process:
                log.info("step %d auroc %.4f", step, score)
        if step == args.steps:
            break
    accelerator.end_training()


if __name__ == "__main__":
    main()
