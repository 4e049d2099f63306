"""DDP over shards that each rank downloads from a file server, one after the other."""

import argparse
import io
import multiprocessing
import os
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Store(BaseHTTPRequestHandler):
    """Serves /SHARD; the disk below it loses some of its blocks."""

    lost = ()

    def do_GET(self):
        shard = int(self.path.strip("/"))
        buffer = io.BytesIO()
        torch.save(torch.randn(640, 64, generator=torch.Generator().manual_seed(shard)), buffer)
        data = buffer.getvalue()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if shard in self.lost:
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            time.sleep(3600)
        self.wfile.write(data)

    def log_message(self, *args):
        pass


def serve(ports, lost):
    Store.lost = lost
    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    ports.put(server.server_port)
    server.serve_forever()


def start_store(lost):
    context = multiprocessing.get_context("spawn")
    ports = context.SimpleQueue()
    context.Process(target=serve, args=(ports, lost), daemon=True).start()
    return ports.get()


def fetch(port, shard):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{shard}") as answer:
        return torch.load(io.BytesIO(answer.read()))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lost", type=int, nargs="*", default=[])
    parser.add_argument("--shards", type=int, default=20_000)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    store = [start_store(args.lost) if rank == 0 else None]
    dist.broadcast_object_list(store, src=0)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for shard in range(rank, args.shards, world):
        print(f"rank {rank} pid {os.getpid()} fetches shard {shard}", flush=True)
        for x in fetch(store[0], shard).split(32):
            loss = nn.functional.mse_loss(model(x), x.norm(dim=1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"shard {shard} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
