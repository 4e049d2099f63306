"""Between two rounds the ranks wait for threads of their own that take their time: an upload with the lock in hand, the
result of a pool, a queue. Other threads are idle, as those of loggers and monitors are."""

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
import torch.nn as nn
from lifetime import Lifetime, parser
from torch.nn.parallel import DistributedDataParallel as DDP


class Uploader:
    """Sends a summary to a server that is in no hurry; while it does, nobody may change the summary."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.busy = threading.Lock()
        self.lines = []

    def add(self, line):
        with self.busy:
            self.lines.append(line)

    def upload(self):
        with self.busy:
            time.sleep(self.seconds)
            self.lines.clear()


def write_events(events):
    while True:
        events.get()


def main():
    options = parser()
    options.add_argument("--wait", type=float, default=40.0)
    args = options.parse_args()
    lifetime = Lifetime(args.seconds)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    events, uploader, pool = queue.Queue(), Uploader(args.wait), ThreadPoolExecutor(2)
    threading.Thread(target=write_events, args=(events,), name="events", daemon=True).start()
    step = 0
    while lifetime.goes_on():
        loss = model(torch.randn(32, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        events.put(step)
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step % 50 == 0:
            if rank == 0:
                print("uploading", flush=True)
                sent = pool.submit(uploader.upload)
                time.sleep(0.2)
                uploader.add(f"step {step}")  # waits for the lock
                sent.result()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
