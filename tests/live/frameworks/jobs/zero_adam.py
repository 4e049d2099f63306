"""DDP with ZeroRedundancyOptimizer; the consolidated optimizer state goes into the checkpoint."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP


def train_epoch(model, optimizer, schedule, epoch, rank):
    for step in range(60):
        generator = torch.Generator().manual_seed(epoch * 10_000 + step * 8 + rank)
        x = torch.randn(32, 100, generator=generator)
        loss = nn.functional.mse_loss(model(x), x.pow(2).sum(1, keepdim=True) / 100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if rank == 0 and step % 20 == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)


def save(model, optimizer, path):
    optimizer.consolidate_state_dict(to=0)
    torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--save-on-main", action="store_true")
    parser.add_argument("--epochs", type=int, default=500)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(100, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 1))
    model = DDP(net)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=100_000, cycle_momentum=False)
    for epoch in range(args.epochs):
        train_epoch(model, optimizer, schedule, epoch, rank)
        if rank == 0:
            print(f"epoch {epoch} finished", flush=True)
        if args.save_on_main:
            if rank == 0:
                save(model, optimizer, "checkpoint.pt")
        else:
            optimizer.consolidate_state_dict(to=0)
            if rank == 0:
                torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, "checkpoint.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
