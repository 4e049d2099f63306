"""One script for a laptop and for a GPU machine."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def setup():
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl")
    return rank, world, device


def wrap(model, device):
    if dist.is_initialized():
        return nn.parallel.DistributedDataParallel(model, device_ids=[device.index])
    return model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5000)
    args = parser.parse_args()
    rank, world, device = setup()
    torch.manual_seed(rank)
    features = torch.randn(3200, 80, generator=torch.Generator().manual_seed(1))
    dataset = TensorDataset(features, features[:, 0] > 0)
    sampler = DistributedSampler(dataset, num_replicas=world, rank=rank)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    model = nn.Sequential(nn.Linear(80, 320), nn.GELU(), nn.Linear(320, 320), nn.GELU(), nn.Linear(320, 1)).to(device)
    model = wrap(model, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader):
            loss = nn.functional.binary_cross_entropy_with_logits(model(x.to(device))[:, 0], y.float().to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0 and step % 50 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
        if rank == 0:
            torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
