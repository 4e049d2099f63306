"""How long a healthy job lives: until it is killed, or for `--seconds`, ended by all its ranks together."""

import argparse
import time

import torch
import torch.distributed as dist


def parser():
    options = argparse.ArgumentParser()
    options.add_argument("--seconds", type=float, default=float("inf"))
    return options


class Lifetime:
    """`while lifetime.goes_on():` is a small collective, so ask now and then, on every rank."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def goes_on(self):
        flag = torch.tensor([time.monotonic() < self.end], dtype=torch.int32)
        dist.broadcast(flag, 0)
        return bool(flag.item())
