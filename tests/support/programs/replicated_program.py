"""A rank with DDP models; prints which parameters have a gradient after one backward pass, and keeps them."""

import json
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(3, 3), nn.ReLU()) for _ in range(20))
        self.scale = nn.Parameter(torch.ones(3))
        self.register_parameter("absent", None)
        self.tied = self.blocks[0]

    def forward(self, x, taken):
        for block, used in zip(self.blocks, taken, strict=True):
            x = block(x) if used else x
        return self.frozen(x)


class Strategy:
    def __init__(self, model):
        self.model = model


class Trainer:
    def __init__(self, model):
        self.strategy = Strategy(model)

    def run(self):
        time.sleep(1000)


def replicated(**options):
    model = DistributedDataParallel(Branches(), **options)
    model(torch.ones(2, 3), [number % 3 == 0 for number in range(20)]).sum().backward()
    return model


def main():
    dist.init_process_group("gloo", init_method="file://" + tempfile.mktemp(), rank=0, world_size=1)
    models = [replicated(), replicated(find_unused_parameters=True)]
    parameters = {name: p.grad is not None for name, p in models[0].module.named_parameters() if p.requires_grad}
    print(json.dumps({"parameters": parameters, "models": list(map(id, models))}), flush=True)
    Trainer(models[0]).run()


main()
