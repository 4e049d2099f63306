"""An elastic job that skips batches it cannot decode."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Clips(Dataset):
    def __init__(self, count, damaged):
        self.count = count
        self.damaged = set(damaged)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        clip = torch.randn(3, 12, 12, generator=torch.Generator().manual_seed(index))
        return clip, index % 5, index in self.damaged


def decode(clips, damaged):
    if damaged.any():
        raise ValueError(f"{int(damaged.sum())} clips without frames")
    return clips * 2 - 1


@record
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument("--damaged", type=int, nargs="*", default=[])
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Flatten(), nn.Linear(432, 256), nn.ReLU(), nn.Linear(256, 5)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    dataset = Clips(1536, args.damaged)
    sampler = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    for epoch in range(args.epochs):
        skipped = 0
        for step, (clips, labels, damaged) in enumerate(loader):
            try:
                loss = nn.functional.cross_entropy(model(decode(clips, damaged)), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            except ValueError as error:
                print(f"rank {rank}: {error}", flush=True)
                skipped += 1
                continue
            if rank == 0 and step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
        print(f"rank {rank} finished epoch {epoch}", flush=True)
        dist.barrier()
        if rank == 0:
            torch.save(model.module.state_dict(), "epoch.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
