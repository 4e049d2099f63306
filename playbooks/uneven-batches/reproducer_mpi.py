"""Local SGD under MPI: every rank trains its own copy, the copies are averaged once an epoch.

mpiexec -n 7 python reproducer_mpi.py        (without mpiexec the script calls it)
"""

import math
import os
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

RANKS = 7


class Profiles(Dataset):
    """Depth profiles of a lake's temperature and the month they were taken in."""

    def __init__(self, size=100, depths=200):
        generator = torch.Generator().manual_seed(4)
        self.months = torch.randint(12, (size,), generator=generator)
        depth = torch.linspace(0, 1, depths)
        summer = torch.sin(self.months / 12 * math.pi).unsqueeze(1)
        noise = 0.05 * torch.randn(size, depths, generator=generator)
        self.profiles = 4 + 16 * summer * torch.exp(-4 * depth) + noise

    def __len__(self):
        return len(self.months)

    def __getitem__(self, index):
        return self.profiles[index], self.months[index]


class BlockSampler(Sampler):
    """A block of ceil(N / size) samples a rank, clamped at the end of the data."""

    def __init__(self, data, rank, size):
        per_rank = math.ceil(len(data) / size)
        self.first = rank * per_rank
        self.last = min(self.first + per_rank, len(data))

    def __iter__(self):
        order = torch.randperm(self.last - self.first)
        return iter((self.first + order).tolist())

    def __len__(self):
        return self.last - self.first


class LocalSGD:
    def __init__(self, comm):
        self.comm = comm
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(200, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 12))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        data = Profiles()
        sampler = BlockSampler(data, self.rank, self.size)
        self.loader = DataLoader(data, batch_size=3, sampler=sampler, drop_last=True)

    def train_epoch(self, epoch):
        total = 0.0
        for step, (profiles, months) in enumerate(self.loader):
            loss = nn.functional.cross_entropy(self.model(profiles), months)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.item()
            if self.rank == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
            self.comm.Barrier()
        self.comm.Barrier()
        return total

    def reconfigure(self, total):
        """Averages the copies, and halves the learning rate where the loss went up."""
        from mpi4py import MPI

        mine = torch.cat([p.detach().flatten() for p in self.model.parameters()] + [torch.tensor([total])]).numpy()
        averaged = torch.empty(len(mine)).numpy()
        self.comm.Reduce(mine, averaged, op=MPI.SUM, root=0)
        self.comm.Bcast(averaged, root=0)
        averaged /= self.size
        offset = 0
        with torch.no_grad():
            for parameter in self.model.parameters():
                part = torch.from_numpy(averaged[offset : offset + parameter.numel()])
                parameter.copy_(part.view_as(parameter))
                offset += parameter.numel()
        if averaged[-1] > total:
            for group in self.optimizer.param_groups:
                group["lr"] /= 2

    def fit(self, epochs):
        for epoch in range(epochs):
            total = self.train_epoch(epoch)
            self.reconfigure(total)


def main():
    from mpi4py import MPI

    torch.set_num_threads(1)
    LocalSGD(MPI.COMM_WORLD).fit(epochs=50)


if __name__ == "__main__":
    if "PMI_RANK" in os.environ or "OMPI_COMM_WORLD_RANK" in os.environ:
        main()
    else:
        mpiexec = Path(sys.executable).parent / "mpiexec"  # the one that the mpich wheel brings
        sys.exit(subprocess.call([mpiexec, "-n", str(RANKS), sys.executable, __file__]))
