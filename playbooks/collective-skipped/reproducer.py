"""Classify sensor windows with DDP; a step that fails is dropped, so that a bad window does not end the run.

torchrun --nproc-per-node 2 reproducer.py [--variant error|nan]

--variant   error: a recording on one rank has another number of channels; nan: one with gaps, so that its loss is NaN
"""

import argparse
import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CHANNELS, LENGTH, BATCH = 8, 256, 32
log = logging.getLogger("train")


def windows(rank, variant):
    """Batches of windows; after a while, one rank comes to a recording of another device."""
    chance = torch.Generator().manual_seed(rank)
    for number in range(1_000_000):
        other = rank == 1 and number >= 40
        batch = torch.randn(BATCH, CHANNELS + (2 if other and variant == "error" else 0), LENGTH, generator=chance)
        if other and variant == "nan":
            batch[:, 0] = float("nan")
        yield batch, batch[:, 1].mean(1) > 0


def step(model, optimizer, batch, labels):
    loss = nn.functional.binary_cross_entropy_with_logits(model(batch).squeeze(1), labels.float())
    if not torch.isfinite(loss):
        return None
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("error", "nan"), default="error")
    variant = parser.parse_args().variant
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [nn.Conv1d(CHANNELS, 64, 9), nn.ReLU(), nn.Conv1d(64, 64, 9), nn.ReLU()]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 1)))
    optimizer = torch.optim.Adam(model.parameters())
    trained = dropped = 0
    for batch, labels in windows(rank, variant):
        try:
            loss = step(model, optimizer, batch, labels)
        except RuntimeError as error:
            log.info("dropped a batch: %s", error)
            loss = None
        if loss is None:
            dropped += 1
            continue
        trained += 1
        if rank == 0 and trained % 10 == 0:
            print(f"step {trained} loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
