"""DDP training of a recurrent forecaster which rolls back to the last snapshot on node-local scratch after a spike."""

import argparse
import logging
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

log = logging.getLogger("forecast")


class Scratch:
    """Snapshots on the local disk of the node, within a quota."""

    def __init__(self, folder, quota_mb):
        self.folder = Path(folder)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.quota = quota_mb * 2**20

    def used(self):
        return sum(p.stat().st_size for p in self.folder.iterdir())

    def save(self, step, state):
        if self.used() >= self.quota:
            log.debug("scratch is full, no snapshot of step %d", step)
            return
        torch.save(state, self.folder / f"step_{step:06d}.pt")
        for old in sorted(self.folder.glob("step_*.pt"))[:-3]:
            old.unlink()

    def latest(self):
        return torch.load(sorted(self.folder.glob("step_*.pt"))[-1])


class Forecaster(nn.Module):
    def __init__(self, series=16, hidden=160):
        super().__init__()
        self.rnn = nn.GRU(series, hidden, num_layers=2, batch_first=True)
        self.out = nn.Linear(hidden, series)

    def forward(self, x):
        return self.out(self.rnn(x)[0])


def windows(rank, batch, length=32, series=16):
    g = torch.Generator().manual_seed(rank)
    speed = torch.linspace(0.05, 0.6, series)
    step = 0
    while True:
        step += 1
        phase = torch.rand(batch, 1, series, generator=g) * 6.283
        x = torch.sin(torch.arange(length + 1)[None, :, None] * speed + phase)
        x = x + 0.1 * torch.randn(x.shape, generator=g)
        if step == 95:
            x = x * 25
        yield x[:, :-1], x[:, 1:]


class Run:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(0)
        self.model = DistributedDataParallel(Forecaster())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        quota = args.scratch_mb[self.rank % len(args.scratch_mb)]
        self.scratch = Scratch(f"{args.out}/scratch-{self.rank}", quota)
        self.mean = None

    def state(self, step):
        return {"model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict(), "step": step}

    def rollback(self, step):
        state = self.scratch.latest()
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        log.info("step %d: loss spiked, rolled back", step)

    def step(self, x, y):
        loss = nn.functional.mse_loss(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        return total.item() / self.world

    def train(self):
        for step, (x, y) in enumerate(windows(self.rank, self.args.batch), 1):
            loss = self.step(x, y)
            if self.mean is not None and loss > 10 * self.mean:
                self.rollback(step)
                continue
            self.mean = loss if self.mean is None else 0.95 * self.mean + 0.05 * loss
            if step % 10 == 0:
                log.info("step %d loss %.5f", step, loss)
            if step % self.args.save_every == 0:
                self.scratch.save(step, self.state(step))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--save-every", type=int, default=20)
    ap.add_argument("--scratch-mb", type=int, nargs="+", default=[512, 4, 512])
    ap.add_argument("--out", default="runs/forecast")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s rank {dist.get_rank()} %(message)s")
    Run(args).train()


if __name__ == "__main__":
    main()
