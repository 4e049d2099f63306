"""One rank downloads a vocabulary from a slow mirror, the lock of the cache in hand; the other waits for the lock."""

import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
from filelock import FileLock
from lifetime import Lifetime, parser
from torch.nn.parallel import DistributedDataParallel as DDP

MIRROR = """
import http.server, sys, time
class Slow(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        for _ in range(int(sys.argv[1])):
            self.wfile.write(b"x" * 4096)
            time.sleep(0.2)
    def log_message(self, *_):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), Slow)
print(server.server_port, flush=True)
server.serve_forever()
"""


def download(port, target):
    part = target.with_suffix(".part")
    urllib.request.urlretrieve(f"http://127.0.0.1:{port}/vocabulary", part)
    part.rename(target)


def vocabulary(cache, rank, seconds):
    """From the cache, else from the mirror: whoever comes first fetches it."""
    target = cache / "vocabulary.bin"
    with FileLock(f"{target}.lock"):
        if not target.exists():
            mirror = subprocess.Popen(
                [sys.executable, "-c", MIRROR, str(int(5 * seconds))], stdout=subprocess.PIPE, text=True
            )
            print("downloading", flush=True)
            download(mirror.stdout.readline().strip(), target)
            mirror.kill()
    return target.read_bytes()


def main():
    options = parser()
    options.add_argument("--download-seconds", type=float, default=40.0)
    args = options.parse_args()
    lifetime = Lifetime(args.seconds)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.barrier()
    time.sleep(0.3 * rank)
    words = vocabulary(Path(os.environ.get("TMPDIR", "/tmp")), rank, args.download_seconds)
    model = DDP(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    step = 0
    while lifetime.goes_on():
        batch = torch.frombuffer(bytearray(words[: 64 * 32]), dtype=torch.uint8).float().view(32, 64) / 255
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
