"""Hundreds of random tensors; prints what they are, and keeps them."""

import json
import random
import sys
import time

import numpy
import torch

DTYPES = (
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn,
)  # fmt: skip


class Marked(torch.Tensor):
    pass


def make(rng):
    shape = [rng.randint(0, 4) for _ in range(rng.randint(0, 8))]
    tensor = torch.zeros(shape, dtype=rng.choice(DTYPES), device=rng.choice(("cpu", "cpu", "meta")))
    way = rng.randrange(7)
    if way == 0 and tensor.dim() > 1:
        tensor = tensor.transpose(0, -1)
    elif way == 1 and tensor.dim() > 0:
        tensor = tensor[..., ::2]
    elif way == 2 and tensor.is_floating_point():
        tensor = torch.nn.Parameter(tensor)
    elif way == 3:
        tensor = tensor.as_subclass(Marked)
    elif way == 4:
        tensor = tensor.expand(3, *tensor.shape)
    elif way == 5:
        tensor = tensor.detach()
    return tensor


def hold(tensors, arrays, others):
    batch, weight, logits, labels = torch.ones(8, 3), torch.nn.Parameter(torch.ones(5, 2)), tensors[0], arrays[0]
    scalar, nested = torch.tensor(3), torch.nested.nested_tensor([torch.ones(3), torch.ones(4)])
    loss = torch.tensor([0.0, float("nan")], dtype=torch.bfloat16)[1:]
    report = {
        "tensors": [(id(t), list(t.shape), str(t.dtype)[6:], t.device.type) for t in tensors],
        "arrays": [(id(a), len(a)) for a in arrays],
        "others": [id(x) for x in (*others, nested)],
    }
    print(json.dumps(report), flush=True)
    time.sleep(1000)
    return batch, weight, logits, labels, scalar, loss


def churn():
    """Makes and frees tensors of two shapes for as long as it lives."""
    slots = [torch.ones(3, 5) for _ in range(64)]
    print(json.dumps([id(t) for t in slots]), flush=True)
    while True:
        for index in range(64):
            slots[index] = torch.ones(3, 5) if index % 2 else torch.zeros(2, 2, 2, 2, 2, 7, dtype=torch.int64)


if sys.argv[1:] == ["churn"]:
    churn()
rng = random.Random(5)
hold(
    [make(rng) for _ in range(400)],
    [numpy.zeros([rng.randint(0, 9), *([2] * rng.randrange(3))]) for _ in range(20)],
    ["text", 5, None, [1], torch.nn.Linear(2, 2), torch.Tensor, torch.Size([1, 2]), torch.float32],
)
