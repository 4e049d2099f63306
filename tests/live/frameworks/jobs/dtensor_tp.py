"""Tensor parallel MLP blocks with DTensor; checkpoints with torch.distributed.checkpoint."""

import argparse

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class FeedForward(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Network(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.blocks = nn.ModuleList(FeedForward(width) for _ in range(depth))
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def checkpoint(model, step, rank, main_only):
    folder = f"checkpoints/step-{step}"
    if main_only:
        if rank == 0:
            print(f"saving {folder}", flush=True)
            dcp.save({"model": model.state_dict()}, checkpoint_id=folder)
            print(f"saved {folder}", flush=True)
        return
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=folder)
    if rank == 0:
        print(f"saved {folder}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--save-every", type=int, default=60)
    parser.add_argument("--save-on-main", action="store_true")
    parser.add_argument("--steps", type=int, default=50_000)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    model = Network(128, 3)
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    for step in range(1, args.steps):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(32, 128, generator=generator)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step % args.save_every == 0:
            checkpoint(model, step, rank, args.save_on_main)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
