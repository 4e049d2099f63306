"""Train with DDP and write checkpoints in the background, each rank its own shard.

torchrun --nproc-per-node 2 reproducer.py
"""

import argparse
import hashlib
import io
import json
import pathlib
import queue
import tempfile
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class AsyncCheckpointer:
    """Copies the state at once, then serialises, writes and indexes it in a thread while training goes on."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.requests = queue.Queue(maxsize=2)
        self.thread = threading.Thread(target=self._work, name="checkpointer", daemon=True)
        self.thread.start()

    def save(self, step, model, optimizer):
        state = {name: tensor.detach().clone() for name, tensor in model.module.state_dict().items()}
        names = sorted(state)[self.rank :: self.world_size]
        moments = optimizer.state_dict()["state"] if self.rank == 0 else {}
        self.requests.put((step, {"model": {name: state[name] for name in names}, "optimizer": moments}))

    def _work(self):
        while (request := self.requests.get()) is not None:
            step, shard = request
            buffer = io.BytesIO()
            torch.save(shard, buffer)
            data = buffer.getvalue()
            path = self.folder / f"{step:06d}-{self.rank}.pt"
            path.write_bytes(data)
            self._index(step, {"file": path.name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})

    def _index(self, step, mine):
        """One index for all shards: a checkpoint with an index is complete."""
        shards = [None] * self.world_size
        dist.all_gather_object(shards, mine)
        if self.rank == 0:
            (self.folder / f"{step:06d}.json").write_text(json.dumps(shards))
            print(f"checkpoint {step}: {sum(shard['bytes'] for shard in shards)} bytes", flush=True)


class LanguageModel(nn.Module):
    def __init__(self, tokens=128, width=160):
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.rnn = nn.LSTM(width, width, batch_first=True)
        self.out = nn.Linear(width, tokens)

    def forward(self, x):
        return self.out(self.rnn(self.embed(x))[0])


def batch(size=12, length=32):
    start, stride = torch.randint(128, (size, 1)), torch.randint(1, 4, (size, 1))
    return (start + stride * torch.arange(length + 1)) % 128


def train(folder, steps, save_every):
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(LanguageModel())
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    checkpointer = AsyncCheckpointer(folder)
    for step in range(1, steps + 1):
        tokens = batch()
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step % save_every == 0:
            checkpointer.save(step, model, optimizer)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--save-every", type=int, default=20)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory(prefix="checkpoints-") as folder:
        train(folder, args.steps, args.save_every)
    dist.destroy_process_group()
