"""Trains a small model until a bias is infinite, and prints its parameters.

`variable`: the model is in a local variable. `trainer`: it is an attribute of one. `drops`: two gradients of each
parameter take turns, as `zero_grad` and `backward` let them.
"""

import json
import sys
import time

import torch
from torch import nn

HOW = sys.argv[1]


class Block(nn.Module):
    def __init__(self, width, **more):
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False, **more)
        self.norm = nn.LayerNorm(width, **more)
        self.register_buffer("steps", torch.zeros(8))
        self.register_parameter("absent", None)

    def forward(self, x):
        return self.norm(self.linear(x)) + x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, 16).requires_grad_(False)
        self.blocks = nn.ModuleList(Block(16) for _ in range(20))
        self.scales = nn.ParameterDict({"scale": nn.Parameter(torch.rand(40, dtype=torch.bfloat16))})
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x) * self.scales["scale"][:10].float()


class Trainer:
    def __init__(self, model):
        self.parts = 1
        self.model = model


def told(parameter):
    data = parameter.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
    gradient = None if parameter.grad is None else parameter.grad.reshape(-1).view(torch.uint8).numpy().tobytes().hex()
    return {
        "address": id(parameter),
        "shape": list(parameter.shape),
        "dtype": str(parameter.dtype)[6:],
        "trainable": parameter.requires_grad,
        "version": parameter._version,
        "data": data.hex(),
        "gradient": gradient,
    }


def hold(trainer, loss):
    print(json.dumps({name: told(p) for name, p in trainer.model.named_parameters()}), flush=True)
    trained = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
    made = [[torch.full_like(one, value).cumsum(0) for one in trained] for value in (1.0, 2.0)]
    while HOW == "drops":
        for gradients in made:
            for parameter, gradient in zip(trained, gradients, strict=True):
                parameter.grad = gradient
            time.sleep(0.003)
            trainer.model.zero_grad()
    time.sleep(1000)
    return loss


def run(model):
    criterion = nn.CrossEntropyLoss()  # a module without parameters
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    for _ in range(3):
        optimizer.zero_grad()
        criterion(model(torch.arange(8)), torch.arange(8)).backward()
        optimizer.step()
    with torch.no_grad():
        model.head.bias[2] = float("inf")
    trainer = Trainer(model)
    if HOW == "trainer":
        model = None
    hold(trainer, criterion)
    return model


torch.manual_seed(4)
run(Model())
