"""Plain DDP training, one step like the other."""

import torch
import torch.distributed as dist
import torch.nn as nn
from lifetime import Lifetime, parser
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    lifetime = Lifetime(parser().parse_args().seconds)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(128, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 1))
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    while lifetime.goes_on():
        for _ in range(10):
            x = torch.randn(96, 128)
            y = x.square().sum(1, keepdim=True) / 128
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
