"""Flight Recorder dumps of large jobs: `hangdoc report` beside torch's own analyser, in time, memory and who is named.

The dumps are made as torch 2.13 makes them for NCCL (version 2.10, protocol 2, names written once), or, with --unlike,
written with protocol 4 and with thread names of its own for each rank: a loop of three collectives in the group of all
ranks and one in groups of eight; one rank never began the last collective. Each side runs in a process of its own,
three times, in turn. Memory is the largest sum over the process and its children, sampled every 20 ms.
"""

from __future__ import annotations

import argparse
import os
import pickle
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.benchmarks.measure import met, table
from tests.support.cli import HANGDOC
from tests.support.paths import ROOT

SIZES = (64, 512, 4096)
ENTRIES = 1000
SIDE = 512  # ranks at which the two are compared
TIMES_FASTER, TIMES_LESS = {False: 10.0, True: 5.0}, 10.0  # by whether the dumps are unlike
LIMIT_S, LIMIT_MIB = {False: 60.0, True: 45.0}, 1024.0
PER_GROUP = 8
CALLS = (
    ("all_reduce", [[4096, 1024]], 0),
    ("_all_gather_base", [[1024]], 1),
    ("broadcast", [[64]], 0),
    ("all_reduce", [[1]], 0),
)
TORCH = "from torch.distributed.flight_recorder.fr_trace import main; main()"


@dataclass(frozen=True, slots=True)
class Run:
    seconds: float
    mib: float
    culprit: str


def frames(line: int) -> list[dict[str, Any]]:
    """A call through eight frames."""
    site = "/opt/env/lib/python3.11/site-packages/torch/distributed"
    inner = [("all_reduce", f"{site}/distributed_c10d.py", 3245), ("wrapper", f"{site}/c10d_logger.py", 83)]
    own = [(f"step_{depth}", f"/job/train/loop_{depth}.py", line + depth) for depth in range(6)]
    return [{"name": name, "filename": file, "line": at} for name, file, at in (*inner, *own)]


def dump(rank: int, world: int, culprit: int, unlike: bool) -> bytes:
    """The pickle of one rank."""
    stacks = [frames(20 + 7 * number) for number in range(len(CALLS))]
    ranks = str(list(range(world)))
    first = rank // PER_GROUP * PER_GROUP
    names = ("0", f"{1 + rank // PER_GROUP}")
    config = {
        names[0]: {"name": names[0], "desc": "default_pg", "ranks": ranks},
        names[1]: {"name": names[1], "desc": "tensor_parallel", "ranks": str(list(range(first, first + PER_GROUP)))},
    }
    count = ENTRIES - (rank == culprit)
    sequences = [0, 0]
    entries = []
    for number in range(count):
        op, sizes, group = CALLS[number % len(CALLS)]
        sequences[group] += 1
        last = number == ENTRIES - 1
        outputs = [[sizes[0][0] * PER_GROUP]] if op == "_all_gather_base" else [list(dims) for dims in sizes]
        entries.append({
            "frames": list(stacks[number % len(CALLS)]), "record_id": number, "pg_id": group,
            "process_group": (names[group], ("default_pg", "tensor_parallel")[group]),
            "thread_name": f"worker-{rank:06}" if unlike else "python", "thread_id": "140157692726144",
            "collective_seq_id": sequences[group], "p2p_seq_id": 0, "op_id": sequences[group],
            "profiling_name": f"nccl:{op}", "time_created_ns": 1795271949893226301 + number * 1000003 + rank,
            "input_sizes": [list(dims) for dims in sizes], "input_dtypes": ["Float"], "output_sizes": outputs,
            "output_dtypes": ["Float"], "state": "started" if last else "completed",
            "time_discovered_started_ns": 1795271949893326301 + number * 1000003 + rank,
            "time_discovered_completed_ns": None if last else 1795271949893426301 + number * 1000003 + rank,
            "retired": not last, "timeout_ms": 600000, "is_p2p": False,
        })  # fmt: skip
    status = {
        name: {"last_enqueued_collective": sequences[i], "last_started_collective": sequences[i],
               "last_completed_collective": sequences[i] - (i == 0 and rank != culprit)}
        for i, name in enumerate(names)
    }  # fmt: skip
    trace = {
        "version": "2.10",
        "pg_config": config,
        "comm_lib_version": "2.27.5",
        "pg_status": status,
        "entries": entries,
    }
    return pickle.dumps(trace, protocol=4 if unlike else 2)


def make(folder: Path, world: int, unlike: bool) -> int:
    """Dumps of so many ranks; the rank at fault."""
    culprit = world * 2 // 3
    for rank in range(world):
        Path(folder, f"nccl_trace_rank_{rank}").write_bytes(dump(rank, world, culprit, unlike))
    return culprit


def run(command: Sequence[str]) -> tuple[float, float, str]:
    """Seconds, MiB at its peak, and what it wrote."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        child = psutil.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, env=environment())
        largest = 0
        while child.poll() is None:
            with suppress(psutil.Error):
                largest = max(largest, sum(one.memory_info().rss for one in (child, *child.children(recursive=True))))
            time.sleep(0.02)
        seconds = time.monotonic() - began
        output.seek(0)
        return seconds, largest / 2**20, output.read()


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


def hangdoc(folder: Path) -> Run:
    seconds, mib, output = run([*HANGDOC, "report", "--json", str(folder)])
    found = re.search(r'"culprits": \[\{"rank": (\d+)', output)
    return Run(seconds, mib, f"rank {found[1]}" if found else "none: " + output[-200:])


def torch(folder: Path) -> Run:
    seconds, mib, output = run([sys.executable, "-c", TORCH, str(folder), "-p", "nccl_trace_rank_"])
    found = re.search(r"missing ranks: \{(\d+)\}|Culprit rank (\d+)", output)
    return Run(seconds, mib, f"rank {found[1] or found[2]}" if found else "none: " + output[-120:].replace("\n", " "))


def middle(runs: Sequence[Run]) -> Run:
    return Run(statistics.median(r.seconds for r in runs), max(r.mib for r in runs), runs[0].culprit)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--largest-for-torch", type=int, default=SIDE)
    parser.add_argument("--unlike", action="store_true", help="no dump is like another: each has to be loaded")
    options = parser.parse_args()
    rows: list[tuple[str, ...]] = [
        ("ranks", "hangdoc s", "MiB", "names", "torchfrtrace s", "MiB", "names", "faster", "memory", "asked")
    ]
    for world in options.sizes:
        folder = Path(tempfile.mkdtemp(prefix="dumps-"))
        try:
            culprit = make(folder, world, options.unlike)
            ours, theirs = [], []
            for _ in range(options.runs):
                ours.append(hangdoc(folder))
                if world <= options.largest_for_torch:
                    theirs.append(torch(folder))
            rows.append(row(world, culprit, middle(ours), middle(theirs) if theirs else None, options.unlike))
        finally:
            shutil.rmtree(folder)
    kind = ", no two alike" if options.unlike else ""
    return 0 if table(f"Flight Recorder dumps, {ENTRIES} entries a rank, one rank at fault{kind}", rows) else 1


def row(world: int, culprit: int, ours: Run, theirs: Run | None, unlike: bool) -> tuple[str, ...]:
    right = "" if ours.culprit == f"rank {culprit}" else " WRONG"
    told = (str(world), f"{ours.seconds:.1f}", f"{ours.mib:.0f}", ours.culprit + right)
    if theirs is None:
        limit_s = LIMIT_S[unlike]
        asked = f"<= {limit_s:.0f} s {met(ours.seconds, limit_s)}, <= {LIMIT_MIB:.0f} MiB {met(ours.mib, LIMIT_MIB)}"
        return (*told, "-", "-", "-", "-", "-", asked)
    faster, less, limit = theirs.seconds / ours.seconds, theirs.mib / ours.mib, TIMES_FASTER[unlike]
    asked = f">= {limit:g}x {met(limit, faster)}, <= 1/10 {met(TIMES_LESS, less)}" if world == SIDE else ""
    return (
        *told,
        f"{theirs.seconds:.1f}",
        f"{theirs.mib:.0f}",
        theirs.culprit,
        f"{faster:.1f}x",
        f"1/{less:.1f}",
        asked,
    )


if __name__ == "__main__":
    sys.exit(main())
