"""torch.compile: every rank compiles for a good while before its first step (a cold cache: TMPDIR is the job's own)."""

import torch
import torch.distributed as dist
import torch.nn as nn
from lifetime import Lifetime, parser
from torch.nn.parallel import DistributedDataParallel as DDP


class Mixer(nn.Module):
    """Blocks that differ from one another, so that each is compiled for itself."""

    def __init__(self, width, depth):
        super().__init__()
        activations = [torch.sin, torch.tanh, nn.functional.gelu, nn.functional.silu, torch.sigmoid]
        self.layers = nn.ModuleList(nn.Linear(width + i, width + i + 1) for i in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width + i + 1) for i in range(depth))
        self.activations = [activations[i % len(activations)] for i in range(depth)]

    def forward(self, x):
        for layer, norm, activation in zip(self.layers, self.norms, self.activations):
            x = activation(norm(layer(x)))
            x = x * torch.softmax(x, -1) + x.cumsum(-1) / x.shape[-1]
        return x.mean(-1)


def main():
    options = parser()
    options.add_argument("--depth", type=int, default=12)
    args = options.parse_args()
    lifetime = Lifetime(args.seconds)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(torch.compile(Mixer(96, args.depth)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if rank == 0:
        print("compiling", flush=True)
    step = 0
    while lifetime.goes_on():
        loss = (model(torch.randn(64, 96)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
