"""A day of a healthy job of 8 ranks, recorded: bytes on disk, and what `hangdoc report` takes to judge it.

python -m tests.benchmarks.recording [--hours 24] [--keep DIR]

The day is synthetic: the looks of a real capture, its ranks doubled to 8, shown to the real recorder again and again at
the rate of a calm live watch, with counters that go on growing and ages that differ. The last reading is of a day that
ends with the stall of another capture. Exit code 1 where a limit is not kept.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from hangdoc.evidence import RankEvidence, Snapshot
from hangdoc.evidence.record import Record
from hangdoc.recording.recorder import Recorder, read
from hangdoc.watch.pace import CALM_FACTOR
from hangdoc.watch.session import WatchOptions
from tests.benchmarks.measure import met, table
from tests.support.cli import HANGDOC
from tests.support.paths import RECORDINGS, ROOT

LIMIT_S, LIMIT_MIB = 10.0, 200.0
RANKS = 8
CALM_CAPTURE = RECORDINGS / "tp_dp.jsonl.zst"  # healthy, 4 ranks
STALL_CAPTURE = ROOT / "playbooks" / "uneven-batches" / "capture.jsonl.zst"
GROWING = frozenset(
    (
        *("bytes_sent", "bytes_acked", "bytes_received", "segments_out", "delivered", "data_segments_out", "busy_s"),
        *("cpu_s", "system_s", "age_s", "run_delay_s", "voluntary", "involuntary", "delivery_rate"),
    )
)
HEAD = ("the day", "looks", "MiB on disk", "CPU ms a write", "report s", "peak MiB", "said")
BEGAN = datetime(2026, 1, 2, tzinfo=timezone.utc)


def looks(capture: Path, ranks: int) -> list[Snapshot]:
    """The looks of a capture with as many ranks as wanted, copies of those it has."""
    (recording,) = read(capture)
    return [replace(shot, ranks=tuple(_copies(shot.ranks, ranks))) for shot in recording.snapshots]


def _copies(ranks: Sequence[RankEvidence], count: int) -> Iterator[RankEvidence]:
    for number in range(count):
        one = ranks[number % len(ranks)]
        pid = one.target.pid + 1000 * (number // len(ranks))
        yield replace(one, target=replace(one.target, pid=pid, rank=number, world_size=count, job="day"))


def day(capture: Path, hours: float, every_s: float) -> Iterator[Snapshot]:
    """The looks of so many hours."""
    shots, draw = looks(capture, RANKS), random.Random(0)
    for number in range(int(hours * 3600 / every_s)):
        shot = shots[number % len(shots)]
        at_s = number * every_s
        ranks = tuple(replace(rank, records=_later(rank.records, at_s, draw)) for rank in shot.ranks)
        taken = (BEGAN + timedelta(seconds=at_s)).isoformat(timespec="milliseconds")
        yield replace(shot, at_s=at_s, time=taken, ranks=ranks)


def _later(records: Any, at_s: float, draw: random.Random) -> dict[str, Any]:
    return {
        name: _grown(record, at_s, draw) if name in ("cpu", "sockets", "io") else record
        for name, record in records.items()
    }


def _grown(value: Any, at_s: float, draw: random.Random) -> Any:
    """A record with counters that have grown, and ages of about a step."""
    if isinstance(value, tuple):
        return tuple(_grown(one, at_s, draw) for one in value)
    if not isinstance(value, Record):
        return value
    changed: dict[str, Any] = {}
    for name in value.__struct_fields__:
        item = getattr(value, name)
        if isinstance(item, (tuple, Record)):
            changed[name] = _grown(item, at_s, draw)
        elif isinstance(item, float) and name.startswith("last_"):
            changed[name] = round(draw.random() / 10, 3)
        elif isinstance(item, (int, float)) and not isinstance(item, bool) and name in GROWING and item:
            changed[name] = item + type(item)(at_s * 100 * (1 + draw.random() / 100))
    return replace(value, **changed)


def write(folder: Path, hours: float, stalls: bool) -> tuple[int, float]:
    """Record it; returns how many looks, and CPU seconds of one write."""
    count, used = 0, 0.0
    clock = time.monotonic()
    every_s = WatchOptions().interval_s * CALM_FACTOR
    with patch("time.monotonic", lambda: clock), Recorder(folder, "node-a") as recorder:
        for shot in day(CALM_CAPTURE, hours, every_s):
            clock += every_s
            began = time.process_time()
            recorder.snapshot(shot)
            used += time.process_time() - began
            count += 1
        if stalls:
            (stall,) = read(STALL_CAPTURE)
            for shot in stall.snapshots:
                recorder.snapshot(replace(shot, at_s=shot.at_s + hours * 3600))
            for verdict in stall.verdicts:
                recorder.verdict(verdict)
    return count, used / max(count, 1)


def judged(folder: Path) -> tuple[float, float, list[str]]:
    """Seconds, peak MiB and statuses of `hangdoc report`."""
    began = time.monotonic()
    child = subprocess.Popen([*HANGDOC, "report", "--json", str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    out = child.stdout.read()
    _, _, usage = os.wait4(child.pid, 0)
    took = time.monotonic() - began
    found = [json.loads(line) for line in out.splitlines()]
    said = [" ".join([one["status"], *(best["playbook"] for best in one["findings"][:1])]) for one in found]
    return took, usage.ru_maxrss / 1024, said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--keep", type=Path, help="leave the recordings here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root, rows, missed = args.keep or Path(name), [HEAD], False
        for title, stalls in (("healthy", False), ("with a stall at its end", True)):
            folder = root / title.replace(" ", "-")
            looked, write_s = write(folder, args.hours, stalls)
            size = sum(file.stat().st_size for file in folder.iterdir())
            took, peak, said = judged(folder)
            within = met(took, LIMIT_S), met(peak, LIMIT_MIB)
            missed = missed or "MISSED" in within
            numbers = str(looked), f"{size / 2**20:.1f}", f"{write_s * 1000:.1f}"
            rows.append((title, *numbers, f"{took:.1f} ({within[0]})", f"{peak:.0f} ({within[1]})", ", ".join(said)))
    table(f"A recording of {args.hours:g} h of {RANKS} ranks, judged", rows)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
