"""A synchronous parameter server over torch.distributed.rpc: it takes a step once every trainer has sent gradients."""

import argparse
import threading

import torch
import torch.distributed.rpc as rpc
from torch import nn


class ParameterServer:
    instance = None

    def __init__(self, trainers):
        self.trainers = trainers
        self.model = nn.Linear(64, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.future = torch.futures.Future()
        self.lock = threading.Lock()
        self.received = 0
        self.updates = 0

    @staticmethod
    @rpc.functions.async_execution
    def update(gradients):
        server = ParameterServer.instance
        with server.lock:
            for parameter, gradient in zip(server.model.parameters(), gradients):
                parameter.grad = (
                    gradient / server.trainers if server.received == 0 else parameter.grad + gradient / server.trainers
                )
            server.received += 1
            future = server.future
            if server.received == server.trainers:
                server.optimizer.step()
                server.received = 0
                server.updates += 1
                if server.updates % 50 == 0:
                    print(f"{server.updates} updates", flush=True)
                server.future = torch.futures.Future()
                future.set_result([p.detach().clone() for p in server.model.parameters()])
        return future


def files_of(rank, shards):
    """Shards of a trainer."""
    return list(range(shards))[rank - 1 :: 2]


def train(rank, shards):
    model = nn.Linear(64, 1)
    for shard in files_of(rank, shards):
        x = torch.randn(320, 64, generator=torch.Generator().manual_seed(shard))
        for part in x.split(16):
            loss = (model(part) - part.sum(1, keepdim=True)).pow(2).mean()
            model.zero_grad()
            loss.backward()
            values = rpc.rpc_sync(
                "server", ParameterServer.update, args=([p.grad for p in model.parameters()],), timeout=0
            )
            with torch.no_grad():
                for parameter, value in zip(model.parameters(), values):
                    parameter.copy_(value)
        print(f"trainer {rank} shard {shard} loss {loss.item():.3f}", flush=True)
    print(f"trainer {rank} has no shards left", flush=True)


def main():
    import os

    parser = argparse.ArgumentParser()
    parser.add_argument("--shards", type=int, default=100_000)
    args = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank == 0:
        ParameterServer.instance = ParameterServer(world - 1)
    rpc.init_rpc("server" if rank == 0 else f"trainer{rank}", rank=rank, world_size=world)
    if rank:
        train(rank, args.shards)
    rpc.shutdown(timeout=0)


if __name__ == "__main__":
    main()
