"""FSDP2 on a streamed datasets.IterableDataset, with async DCP checkpoints and an asyncio log shipper."""

import argparse
import asyncio
import json
import logging
import os
import threading
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from datasets import IterableDataset
from datasets.distributed import split_dataset_by_node
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

log = logging.getLogger("stream")


def documents(shards):
    for shard in shards:
        g = torch.Generator().manual_seed(shard)
        for _ in range(5000):
            first = torch.randint(0, 512, (1,), generator=g)
            yield {"ids": ((first + torch.arange(65) * (1 + shard % 5)) % 512).tolist()}
            time.sleep(0.002)


class Shipper:
    """Sends records to the collector in batches; here the collector is a file."""

    def __init__(self, path, period=2.0):
        self.path, self.period, self.buffer = path, period, []
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_until_complete, args=(self._run(),), daemon=True, name="shipper").start()

    async def _run(self):
        while True:
            await asyncio.sleep(self.period)
            batch, self.buffer = self.buffer, []
            if batch:
                with open(self.path, "a") as out:
                    out.writelines(json.dumps(r) + "\n" for r in batch)

    def put(self, **record):
        self.loop.call_soon_threadsafe(self.buffer.append, record)


class Mixer(nn.Module):
    def __init__(self, vocab=512, dim=96, layers=3):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
            for _ in range(layers)
        )
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


def batches(rank, world, batch, workers):
    stream = IterableDataset.from_generator(documents, gen_kwargs={"shards": list(range(64))})
    stream = split_dataset_by_node(stream, rank=rank, world_size=world).shuffle(seed=1, buffer_size=200)
    loader = DataLoader(stream.with_format("torch"), batch_size=batch, num_workers=workers, drop_last=True)
    while True:
        yield from loader


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=1000000)
    ap.add_argument("--save-every", type=int, default=40)
    ap.add_argument("--out", default="runs/stream")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s rank {rank} %(message)s")
    logging.getLogger("datasets").setLevel(logging.ERROR)
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    model = Mixer()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    save_group = dist.new_group(backend="gloo")
    os.makedirs(args.out, exist_ok=True)
    shipper = Shipper(f"{args.out}/log.jsonl") if rank == 0 else None
    pending = None
    for step, batch in enumerate(batches(rank, world, 16, 1), 1):
        ids = batch["ids"]
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if shipper:
            shipper.put(step=step, loss=loss.item(), at=time.time())
        if step % 5 == 0:
            log.info("step %d loss %.4f", step, loss.item())
        if step % args.save_every == 0:
            if pending is not None:
                pending.result()
            state = dict(zip(("model", "optim"), get_state_dict(model, optimizer)))
            pending = dcp.async_save(
                state, checkpoint_id=f"{args.out}/step_{step % (2 * args.save_every)}", process_group=save_group
            )
            log.info("checkpoint of step %d started", step)
        if step == args.steps:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
