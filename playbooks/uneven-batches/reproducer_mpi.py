"""Seven MPI processes fit boiling points, each with weights of its own that are averaged after every epoch.

mpiexec -n 7 python reproducer_mpi.py        (pip install mpi4py mpich; without mpiexec the script calls it)
"""

import argparse
import math
import os
import pathlib
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler


class Molecules(Dataset):
    def __init__(self, size):
        generator = torch.Generator().manual_seed(3)
        self.counts = torch.randint(0, 12, (size, 6), generator=generator).float()
        weights = torch.tensor([12.0, 1.0, 16.0, 14.0, 32.0, 35.5])
        self.boiling = (self.counts @ weights).sqrt() * 18 + 5 * torch.randn(size, generator=generator)

    def __len__(self):
        return len(self.counts)

    def __getitem__(self, index):
        return self.counts[index] / 12, self.boiling[index] / 400


class ShareSampler(Sampler):
    """An even share of the samples for every process, the same ones in each epoch in another order."""

    def __init__(self, data, rank, size):
        share = math.ceil(len(data) / size)
        self.first = rank * share
        self.last = min(self.first + share, len(data))
        self.epoch = 0

    def __len__(self):
        return self.last - self.first

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.epoch)
        return iter((self.first + torch.randperm(len(self), generator=generator)).tolist())


class Fit:
    def __init__(self, comm, samples, batch_size):
        self.comm = comm
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        data = Molecules(samples)
        self.sampler = ShareSampler(data, self.rank, self.size)
        self.loader = DataLoader(data, batch_size=batch_size, sampler=self.sampler, drop_last=True)
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05)

    def train_step(self, counts, boiling, updates=20):
        for _ in range(updates):
            loss = nn.functional.mse_loss(self.net(counts).squeeze(1), boiling)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()

    def run_epoch(self, epoch):
        self.sampler.epoch = epoch
        losses = []
        for step, (counts, boiling) in enumerate(self.loader):
            losses.append(self.train_step(counts, boiling))
            if self.rank == 0:
                print(f"epoch {epoch} step {step} loss {losses[-1]:.5f}", flush=True)
            self.comm.Barrier()  # nobody runs ahead
        return sum(losses) / len(losses)

    def reconfigure(self, loss):
        """The mean weights for everybody, and a smaller step once the fit is good."""
        weights = nn.utils.parameters_to_vector(self.net.parameters()).detach()
        total = self.comm.reduce((loss, weights), op=lambda a, b: (a[0] + b[0], a[1] + b[1]), root=0)
        if self.rank == 0:
            total = total[0] / self.size, total[1] / self.size
        loss, weights = self.comm.bcast(total, root=0)
        nn.utils.vector_to_parameters(weights, self.net.parameters())
        for group in self.optimizer.param_groups:
            group["lr"] = 0.05 if loss > 0.01 else 0.01
        return loss

    def run(self, epochs):
        for epoch in range(epochs):
            loss = self.run_epoch(epoch)
            self.comm.Barrier()
            loss = self.reconfigure(loss)
            if self.rank == 0:
                print(f"epoch {epoch} mean loss {loss:.5f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=50)
    args = parser.parse_args()
    if not {"PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK"} & set(os.environ):
        mpiexec = str(pathlib.Path(sys.executable).with_name("mpiexec"))  # the one that the wheel brings
        os.execv(mpiexec, [mpiexec, "-n", "7", sys.executable, *sys.argv])
    from mpi4py import MPI

    torch.set_num_threads(1)
    Fit(MPI.COMM_WORLD, args.samples, args.batch_size).run(args.epochs)
