"""Rank 0 writes a checkpoint of a second or two every so many steps; the others run into the next collective."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from lifetime import Lifetime, parser
from torch.nn.parallel import DistributedDataParallel as DDP


def save(model, optimizer, step, path):
    torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


if __name__ == "__main__":
    options = parser()
    options.add_argument("--every", type=int, default=20)
    args = options.parse_args()
    lifetime = Lifetime(args.seconds)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    # A wide, seldom touched embedding: much to save, little to compute.
    model = DDP(nn.Sequential(nn.EmbeddingBag(60_000, 128, sparse=False), nn.Linear(128, 2)))
    optimizer = torch.optim.Adam(model.parameters())
    path = os.path.join(tempfile.gettempdir(), "checkpoint.pt")
    step = 0
    while lifetime.goes_on():
        step += 1
        words = torch.randint(60_000, (64, 40))
        loss = nn.functional.cross_entropy(model(words), words.sum(1) % 2)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step % args.every == 0:
                for copy in range(3):
                    save(model, optimizer, step, f"{path}.{copy}")
                print(f"saved at step {step}", flush=True)
