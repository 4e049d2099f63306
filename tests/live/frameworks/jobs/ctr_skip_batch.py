"""Click-through-rate model on tabular logs, plain DDP."""

import argparse
import logging
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

log = logging.getLogger("ctr")


class ClickLogs(Dataset):
    def __init__(self, rows, fields, unset=(84532,), seed=7):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(rows, fields, generator=g)
        w = torch.randn(fields, generator=g) / fields**0.5
        self.y = (self.x @ w + 0.3 * torch.randn(rows, generator=g) > 0.4).float()
        for row in unset:
            self.x[row, 12] = float("nan")

    def __len__(self):
        return self.x.size(0)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class CTRNet(nn.Module):
    def __init__(self, fields, width):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(fields, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(-1)


def train_epoch(epoch, model, loader, optimizer, args):
    model.train()
    seen, skipped, started = 0, 0, time.time()
    for step, (x, y) in enumerate(loader):
        logits = model(x)
        loss = F.binary_cross_entropy_with_logits(logits, y)
        if not torch.isfinite(loss):
            skipped += 1
            continue
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        seen += y.numel()
        if step % args.log_every == 0:
            log.info("epoch %d step %d loss %.4f %.0f rows/s", epoch, step, loss.item(), seen / (time.time() - started))
    return seen, skipped


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rows", type=int, default=200_000)
    p.add_argument("--fields", type=int, default=64)
    p.add_argument("--width", type=int, default=1024)
    p.add_argument("--batch-size", type=int, default=256)
    p.add_argument("--epochs", type=int, default=20)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--log-every", type=int, default=5)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [rank {rank}] %(message)s")
    torch.manual_seed(0)

    data = ClickLogs(args.rows, args.fields)
    sampler = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    model = DDP(CTRNet(args.fields, args.width))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    log.info("training on %d rows, %d steps per epoch", len(data), len(loader))

    for epoch in range(args.epochs):
        seen, skipped = train_epoch(epoch, model, loader, optimizer, args)
        log.info("epoch %d done: %d rows used, %d batches skipped", epoch, seen, skipped)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
