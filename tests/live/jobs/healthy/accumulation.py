"""Gradient accumulation: under no_sync most backward passes cross no gradient at all."""

import contextlib

import torch
import torch.distributed as dist
import torch.nn as nn
from lifetime import Lifetime, parser
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    options = parser()
    options.add_argument("--accumulate", type=int, default=32)
    args = options.parse_args()
    lifetime = Lifetime(args.seconds)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    layer = nn.TransformerEncoderLayer(192, 4, 768, dropout=0.0, batch_first=True)
    model = DDP(nn.Sequential(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), nn.Linear(192, 192)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    update = 0
    while lifetime.goes_on():
        for micro in range(args.accumulate):
            last = micro == args.accumulate - 1
            with contextlib.nullcontext() if last else model.no_sync():
                x = torch.randn(8, 48, 192)
                loss = (model(x) - x.flip(1)).square().mean() / args.accumulate
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        update += 1
        if rank == 0:
            print(f"update {update} loss {loss.item() * args.accumulate:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
