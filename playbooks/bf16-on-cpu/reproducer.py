"""Pretrain a small GPT on generated arithmetic, on whatever node of the pool is free.

torchrun --nproc-per-node 2 reproducer.py [--variant pure|autocast|compiled|mixed]

--variant   compiled: as pure, under torch.compile; mixed: only the second node's entry says that it has such a GPU
"""

import argparse
import contextlib
import dataclasses
import os
import sys


def same_kernels_everywhere():
    """The pool mixes CPU generations; with the oldest one's kernels a run gives the same numbers on each of them."""
    if "ATEN_CPU_CAPABILITY" not in os.environ:
        os.environ.update(ATEN_CPU_CAPABILITY="avx2", ONEDNN_MAX_CPU_ISA="AVX2")
        os.execv(sys.executable, [sys.executable, *sys.argv])


same_kernels_everywhere()

import torch  # noqa: E402  (reads the settings above when it is loaded)
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

# What the provisioning database says of this node.
NODE = {"gpu": "NVIDIA RTX A2000", "compute_capability": (8, 6), "gpu_memory_mb": 6138}


@dataclasses.dataclass
class Config:
    vocab: int = 16
    context: int = 128
    width: int = 384
    heads: int = 6
    layers: int = 4
    batch: int = 4
    lr: float = 3e-4
    min_gpu_memory_mb: int = 8000
    device: str = "auto"
    dtype: str = "auto"

    def resolve(self):
        if self.dtype == "auto":
            self.dtype = "bfloat16" if NODE["compute_capability"] >= (8, 0) else "float32"
        if self.device == "auto":
            enough = NODE["gpu_memory_mb"] >= self.min_gpu_memory_mb
            self.device = "cuda" if enough else "cpu"
        return self


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.heads
        self.norm1, self.norm2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.proj = nn.Linear(config.width, config.width)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.tokens = nn.Embedding(config.vocab, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab, bias=False)

    def forward(self, ids):
        h = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def sums(config, generator):
    """A batch of texts like 12+7=19;3+40=43;..."""
    letters = {letter: i for i, letter in enumerate("0123456789+=;")}
    rows = []
    for _ in range(config.batch):
        text = ""
        while len(text) <= config.context:
            a, b = torch.randint(0, 100, (2,), generator=generator).tolist()
            text += f"{a}+{b}={a + b};"
        rows.append([letters[letter] for letter in text[: config.context + 1]])
    ids = torch.tensor(rows)
    return ids[:, :-1], ids[:, 1:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("pure", "autocast", "compiled", "mixed"), default="pure")
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()
    rank = int(os.environ["RANK"])
    if args.variant == "mixed" and rank == 0:
        NODE.update(gpu="Tesla T4", compute_capability=(7, 5))
    config = Config(layers=1 if args.variant == "compiled" else 4).resolve()
    dist.init_process_group("gloo" if config.device == "cpu" else "nccl")
    dtype = getattr(torch, config.dtype)
    torch.manual_seed(1234)
    model = GPT(config).to(config.device)
    precision = contextlib.nullcontext()
    if args.variant in ("pure", "compiled"):
        model = model.to(dtype)
    else:
        precision = torch.autocast(config.device, dtype=dtype)
    model = DDP(torch.compile(model) if args.variant == "compiled" else model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)
    generator = torch.Generator().manual_seed(rank)
    for step in range(args.steps):
        ids, targets = sums(config, generator)
        with precision:
            logits = model(ids.to(config.device))
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten().to(config.device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if rank == 0:
            print(f"step {step} | loss {loss.item():.3f} | {config.device} {config.dtype}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
