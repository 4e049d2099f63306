"""An interactive fine-tuning service: rank 0 reads the next request from a socket, the others wait in broadcast.

Rank 0 prints its port; a request is a line with a number of steps.
"""

import socketserver

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Service:
    def __init__(self):
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 64)))
        self.optimizer = torch.optim.RMSprop(self.model.parameters())
        self.rank = dist.get_rank()
        if self.rank == 0:
            self.server = socketserver.TCPServer(("127.0.0.1", 0), socketserver.StreamRequestHandler)
            print(f"listening on port {self.server.server_address[1]}", flush=True)

    def next_request(self):
        """Number of steps wanted, 0 at the end; the same on every rank."""
        request = [None]
        if self.rank == 0:
            connection, _ = self.server.get_request()
            with connection, connection.makefile() as lines:
                request[0] = int(lines.readline() or 0)
        dist.broadcast_object_list(request, src=0)
        return request[0]

    def run(self, steps):
        for _ in range(steps):
            batch = torch.randn(256, 64)
            loss = (self.model(batch) - batch.roll(1, 1)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        if self.rank == 0:
            print(f"done {steps} steps, loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    service = Service()
    service.run(50)
    while steps := service.next_request():
        service.run(steps)
    dist.destroy_process_group()
