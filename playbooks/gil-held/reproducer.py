"""Train a small denoiser with DDP; samples pass through a filter written in C, which a vendor delivers as a library.

torchrun --nproc-per-node 3 reproducer.py [--variant sleeps|spins|thread]
"""

import argparse
import ctypes
import os
import subprocess
import tempfile
import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

LENGTH = 128
LICENSED = 2  # the rank whose device the filter is calibrated on
FIRST_CALIBRATION = 30

FILTER = """
static volatile int ready = 0;

int calibrate(int tries) {
    while (!ready)              /* set by the interrupt handler of the device */
        tries = tries * 1103515245 + 12345;
    return tries;
}

float smooth(float a, float b) { return 0.5f * (a + b); }
"""


def build(folder):
    """The filter as a library; its functions work on Python's own objects, so they are called with PyDLL."""
    source, library = os.path.join(folder, "filter.c"), os.path.join(folder, "libfilter.so")
    with open(source, "w") as file:
        file.write(FILTER)
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    lib = ctypes.PyDLL(library)
    lib.smooth.argtypes, lib.smooth.restype = (ctypes.c_float, ctypes.c_float), ctypes.c_float
    return lib


class Device:
    """The vendor's device: it answers a calibration by a signal that the C library waits for."""

    def __init__(self, variant):
        self.variant = variant
        self.libc = ctypes.PyDLL(None)
        self.filter = build(tempfile.mkdtemp()) if variant == "spins" else None

    def calibrate(self):
        if self.filter:
            return self.filter.calibrate(os.getpid())
        return self.libc.pause()

    def keep_calibrated(self):
        time.sleep(1.0)
        self.calibrate()


class Denoiser(nn.Module):
    def __init__(self, width=160):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(LENGTH, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.decode = nn.Linear(width, LENGTH)

    def forward(self, noisy):
        return noisy + self.decode(self.encode(noisy))


def watch_temperature(log):
    """Every laboratory computer has one of these."""
    while True:
        log.append(os.getloadavg()[0])
        time.sleep(0.5)


def fit(model, variant, rank):
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    time_axis = torch.linspace(0, 6.28, LENGTH)
    device = Device(variant) if rank == LICENSED else None
    if device:
        threading.Thread(target=watch_temperature, args=([],), name="temperature", daemon=True).start()
    for number in range(1_000_000):
        if device and number == FIRST_CALIBRATION:
            if variant == "thread":
                threading.Thread(target=device.keep_calibrated, name="calibration", daemon=True).start()
            else:
                device.calibrate()
        clean = torch.sin(time_axis * torch.randint(1, 9, (32, 1)))
        loss = nn.functional.mse_loss(model(clean + 0.3 * torch.randn_like(clean)), clean)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(f"update {number} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("sleeps", "spins", "thread"), default="sleeps")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    fit(DDP(Denoiser()), options.variant, dist.get_rank())
    dist.destroy_process_group()
