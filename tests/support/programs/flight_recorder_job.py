"""A gloo job whose last rank skips a collective in one step; every rank dumps its Flight Recorder when it fails.

Arguments: the folder for the dumps, and `pickle` or `json`.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

STEPS, SKIPPED, TIMEOUT_S = 12, 8, 3
C10D: Any = _distributed_c10d  # its stub does not know all of it


def train(rank: int) -> None:
    weights, metric = torch.ones(10), torch.ones(5)
    for step in range(STEPS):
        dist.all_reduce(weights)
        if rank < dist.get_world_size() - 1 or step != SKIPPED:
            dist.broadcast(metric, 0)
        dist.all_reduce(metric)


def main() -> None:
    folder, form = Path(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    rank = dist.get_rank()
    try:
        train(rank)
    except RuntimeError as error:
        print(error)
    name = f"comm_lib_trace_rank_{rank}"
    (folder / name).write_bytes(C10D._dump_fr_trace() if form == "pickle" else C10D._dump_fr_trace_json())


if __name__ == "__main__":
    main()
