"""Regression on hospital data: every site has another number of records, so the epochs use Join."""

import argparse
import logging
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

log = logging.getLogger("sites")
SITES = [("north", 9000), ("lake", 2500), ("harbour", 6200), ("hill", 4000)]


def site_records(index, columns=48):
    name, rows = SITES[index % len(SITES)]
    g = torch.Generator().manual_seed(index)
    x = torch.randn(rows, columns, generator=g)
    w = torch.randn(columns, generator=torch.Generator().manual_seed(99))
    y = torch.tanh(x @ w / 4) + 0.1 * torch.randn(rows, generator=g)
    return name, TensorDataset(x, y)


class Risk(nn.Module):
    def __init__(self, columns=48, hidden=640):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(columns, hidden),
            nn.SiLU(),
            nn.Dropout(0.1),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(-1)


def train_epoch(epoch, model, loader, optimizer):
    model.train()
    last = 0.0
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = loss.item()
        if i % 20 == 0:
            log.info("epoch %d step %d loss %.4f", epoch, i, last)
    log.info("epoch %d: %d own batches done", epoch, len(loader))
    return last


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=100000)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--out", default="runs/sites")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    name, records = site_records(rank)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {name}({rank}) %(message)s")
    log.info("%d records", len(records))
    os.makedirs(args.out, exist_ok=True)
    torch.manual_seed(1)
    model = DistributedDataParallel(Risk())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(records, batch_size=args.batch, shuffle=True)
    for epoch in range(args.epochs):
        with Join([model]):
            last = train_epoch(epoch, model, loader, optimizer)
        counts = torch.tensor([last * len(records), float(len(records))])
        dist.all_reduce(counts)
        if rank == 0:
            log.info("epoch %d finished, weighted loss %.4f", epoch, (counts[0] / counts[1]).item())
            torch.save(model.module.state_dict(), f"{args.out}/risk.pt")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
