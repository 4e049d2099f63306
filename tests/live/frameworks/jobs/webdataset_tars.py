"""DDP over tar shards with WebDataset; shards come through a command, as from an object store."""

import argparse
import io
import os
import tarfile

import numpy as np
import torch
import torch.distributed as dist
import webdataset as wds
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def write_shards(folder, count, samples):
    os.makedirs(folder)
    rng = np.random.default_rng(0)
    for shard in range(count):
        with tarfile.open(f"{folder}/train-{shard:04}.tar", "w") as tar:
            for sample in range(samples):
                label = int(rng.integers(10))
                features = rng.normal(size=256).astype(np.float32)
                features[label * 20] += 4
                buffer = io.BytesIO()
                np.save(buffer, features)
                for ending, data in (("npy", buffer.getvalue()), ("cls", str(label).encode())):
                    info = tarfile.TarInfo(f"{shard:04}{sample:04}.{ending}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))


def loader(urls, workers):
    pipeline = wds.WebDataset(urls, nodesplitter=wds.split_by_node, shardshuffle=False, empty_check=False)
    pipeline = pipeline.decode().to_tuple("npy", "cls").batched(16, partial=False)
    return wds.WebLoader(pipeline, batch_size=None, num_workers=workers)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mount", default="", help="a pipe that the store fills with the last shard")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=3000)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        write_shards("shards", 8, 160)
        if args.mount:
            os.mkfifo(args.mount)
    dist.barrier()
    urls = [f"pipe:cat shards/train-{shard:04}.tar" for shard in range(8)]
    if args.mount:
        urls[-1] = f"pipe:cat {args.mount}"
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = loader(urls, args.workers)
    for epoch in range(args.epochs):
        for step, (features, labels) in enumerate(batches):
            features, labels = torch.as_tensor(features), torch.as_tensor(labels)
            loss = nn.functional.cross_entropy(model(features), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 9:
                print(f"rank {rank} epoch {epoch} step {step} loss {loss.item():.3f}", flush=True)
        if rank == 0:
            print(f"epoch {epoch} done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
