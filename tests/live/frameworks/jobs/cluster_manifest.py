"""Data-parallel text classifier; workers find each other through the manifest of the cluster."""

import argparse
import logging
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

log = logging.getLogger("classifier")

# Written by provision.sh on every worker.
MANIFESTS = {
    "worker-0": {"revision": 12, "coordinator": "127.0.0.1", "members": ["worker-0", "worker-1", "worker-2"]},
    "worker-1": {
        "revision": 11,
        "coordinator": "127.0.0.1",
        "members": ["worker-0", "worker-1", "worker-2", "worker-3"],
    },
    "worker-2": {"revision": 12, "coordinator": "127.0.0.1", "members": ["worker-0", "worker-1", "worker-2"]},
}


class Cluster:
    def __init__(self, name, port):
        self.name = name
        manifest = MANIFESTS[name]
        self.members = manifest["members"]
        self.revision = manifest["revision"]
        self.address = f"tcp://{manifest['coordinator']}:{port}"

    @property
    def rank(self):
        return self.members.index(self.name)

    def join(self):
        log.info("%s (manifest %d) is joining %s", self.name, self.revision, self.address)
        dist.init_process_group("gloo", init_method=self.address, rank=self.rank, world_size=len(self.members))
        log.info("%s joined as %d of %d", self.name, dist.get_rank(), dist.get_world_size())


class BagOfWords(nn.Module):
    def __init__(self, vocab=20000, dim=64, classes=6):
        super().__init__()
        self.words = nn.EmbeddingBag(vocab, dim)
        self.out = nn.Sequential(nn.Linear(dim, 256), nn.ReLU(), nn.Linear(256, classes))

    def forward(self, ids):
        return self.out(self.words(ids))


def batches(rank, size, vocab=20000, classes=6):
    g = torch.Generator().manual_seed(rank)
    while True:
        label = torch.randint(0, classes, (size,), generator=g)
        ids = torch.randint(0, vocab // classes, (size, 60), generator=g) * classes + label[:, None]
        noise = torch.rand(size, 60, generator=g) < 0.6
        yield torch.where(noise, torch.randint(0, vocab, (size, 60), generator=g), ids), label


def train(args):
    torch.manual_seed(0)
    model = DistributedDataParallel(BagOfWords())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step, (ids, label) in enumerate(batches(dist.get_rank(), args.batch), 1):
        loss = nn.functional.cross_entropy(model(ids), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            log.info("step %d loss %.4f", step, loss.item())
        if step == args.steps:
            break


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--steps", type=int, default=1000000)
    ap.add_argument("--port", type=int, default=0)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    port = args.port or int(os.environ["MASTER_PORT"]) % 20000 + 20000
    Cluster(f"worker-{os.environ['LOCAL_RANK']}", port).join()
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
