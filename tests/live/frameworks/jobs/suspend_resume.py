"""A job on borrowed machines: a rank suspends itself when the owner wants its machine back."""

import argparse
import os
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Owner:
    """Looks for the file with which the owner asks for a machine; SIGCONT resumes the rank later."""

    def __init__(self, path):
        self.path = path

    def yield_machine(self):
        if os.path.exists(self.path):
            os.remove(self.path)
            os.kill(os.getpid(), signal.SIGSTOP)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--owner-returns", type=int, nargs=2, metavar=("RANK", "STEP"), default=(-1, -1))
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    owner = Owner(f"wanted-{rank}")
    torch.manual_seed(0)
    model = DDP(nn.LSTM(32, 128, num_layers=2, batch_first=True))
    head = DDP(nn.Linear(128, 32))
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=1e-3)
    for step in range(args.steps):
        x = torch.randn(16, 20, 32, generator=torch.Generator().manual_seed(step * 8 + rank))
        hidden, _ = model(x)
        loss = nn.functional.mse_loss(head(hidden[:, :-1]), x[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if (rank, step) == tuple(args.owner_returns):
            open(owner.path, "w").close()
        owner.yield_machine()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
