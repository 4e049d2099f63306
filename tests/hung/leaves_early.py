"""The last rank has a batch less than the others: it waits in a barrier for those who wait for its gradients."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, optimizer, batches):
    for step, x in enumerate(batches):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DDP(nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = [torch.randn(8, 16) for _ in range(12 - (rank == size - 1))]
    train(model, optimizer, batches)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
