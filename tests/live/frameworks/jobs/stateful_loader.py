"""DDP with torchdata's StatefulDataLoader, whose state goes into the checkpoint."""

import argparse
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import Dataset
from torch.utils.data.distributed import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader


class Index:
    """Where each record is; refreshed by a thread as records arrive."""

    def __init__(self):
        self.lock = threading.Lock()
        self.version = 0

    def refresh(self, seconds):
        while True:
            with self.lock:
                self.version += 1
                time.sleep(seconds)
            time.sleep(0.05)

    def find(self, number):
        with self.lock:
            return number * 4096


class Records(Dataset):
    def __init__(self, count, index=None, decode_s=0.0):
        self.count = count
        self.index = index
        self.decode_s = decode_s

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        if self.index:
            self.index.find(number)
        if self.decode_s:
            time.sleep(self.decode_s)
        generator = torch.Generator().manual_seed(number)
        features = torch.randn(128, generator=generator)
        return features, features[:4].sum().reshape(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--live-index", type=int, default=-1, help="this rank has an index that grows")
    parser.add_argument("--remote", type=int, default=-1, help="this rank reads from the remote copy")
    parser.add_argument("--epochs", type=int, default=1000)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    index = Index() if rank == args.live_index else None
    dataset = Records(2400, index, decode_s=0.04 if rank == args.remote else 0.0)
    sampler = DistributedSampler(dataset)
    loader = StatefulDataLoader(dataset, batch_size=8, sampler=sampler, num_workers=args.workers)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        if index and epoch == 1:
            threading.Thread(target=index.refresh, args=(0.5,), daemon=True).start()
            time.sleep(0.1)
        for step, (features, target) in enumerate(loader):
            loss = nn.functional.mse_loss(model(features), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0 and step % 25 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
        if rank == 0:
            torch.save({"model": model.module.state_dict(), "loader": loader.state_dict()}, "last.pt")
            print(f"epoch {epoch} saved", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
