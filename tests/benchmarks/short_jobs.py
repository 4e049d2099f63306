"""Memory of a live watch without options while short jobs come and go, each with a source file of its own.

Part of `benchmarks.footprint`. A job ends once the watch has told of it and of the next one, and has looked at it for a
moment. The ranks are fakes, without torch.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.benchmarks.measure import memory_mib, met
from tests.support.cli import HANGDOC
from tests.support.paths import ROOT

SCRIPT = Path(__file__).parent / "jobs" / "short.py"
LIMIT_MB = 80.0  # the largest RSS
GROWTH = 1.10  # of the RSS after the tenth job
WARM = 10  # jobs
BESIDE = 5  # jobs at a time: the watch looks for new ones every 10 s
SEEN_S = 3.0  # a job goes on for so long after the watch has told of it
SOURCE_BYTES = 150_000
START_S = 120.0  # within which the watch must tell of a job
FIRST_PORT = 20_000  # below those that the kernel gives away
MIB = 1 << 20

FUNCTION = """
def prepare_{job}_{n}(batch, scale={n}):
    total = 0.0
    for index, value in enumerate(batch):
        if value > scale and index % {odd}:
            total += value * {n}.5 - scale
        else:
            total -= [value, scale, index][index % 3] / (index + 1)
    return {{"job": "{job}", "total": total, "scale": scale, "names": ("first", "second", "third_{n}")}}
"""
TRAIN = '''
def train(rank, peers, kept):
    """A step is a message to everyone and one from everyone."""
    step, batch = 0, list(range(64))
    while True:
        step += 1
        if rank == 0 and select.select([sys.stdin], [], [], 0)[0]:
            return
        for peer in peers:
            peer.sendall(step.to_bytes(8, "little") * 8)
        for peer in peers:
            if not peer.recv(64):
                return
        loss = sum(batch) / step
        time.sleep(0.05)
'''


@dataclass(slots=True)
class Job:
    """The ranks of one job, and its source file."""

    name: str  # as the watch calls it: where its ranks meet
    ranks: list[subprocess.Popen[str]]
    source: Path
    seen_s: float | None = None  # when the watch told of it
    started_s: float = field(default_factory=time.monotonic)

    def end(self) -> None:
        for rank in self.ranks:
            assert rank.stdin is not None
            rank.stdin.close()
        for rank in self.ranks:
            rank.wait(20)
        self.source.unlink()


def source(folder: Path, job: int) -> tuple[Path, int]:
    """A new file, and the first line of what runs of it."""
    functions: list[str] = []
    size = 0
    while size < SOURCE_BYTES:
        functions.append(FUNCTION.format(job=job, n=len(functions), odd=2 + len(functions) % 5))
        size += len(functions[-1])
    path, head = folder / f"train_{job}.py", "".join(functions)
    path.write_text(head + TRAIN)
    return path, head.count("\n") + 2


def started(
    folder: Path, number: int, size: int, script: Path = SCRIPT, environment: Mapping[str, str] | None = None
) -> Job:
    """A job at a port that no job before it had: it is known by that. `script`: a copy of SCRIPT with another name."""
    path, line = source(folder, number)
    address = "127.0.0.1", FIRST_PORT + number
    with socket.create_server(address) as store, socket.create_server(("127.0.0.1", 0)) as data:
        doors = [store.fileno(), data.fileno()]
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.getsockname()[1]), "WORLD_SIZE": str(size)}
        ranks = [
            subprocess.Popen(
                [sys.executable, "-S", str(script), str(path), str(line), str(doors[0]), str(doors[1])]
                if rank == 0
                else [sys.executable, "-S", str(script), str(path), str(line), "-1", str(data.getsockname()[1])],
                env={**where, "RANK": str(rank), "LOCAL_RANK": str(rank), "PATH": os.defpath, **(environment or {})},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=doors if rank == 0 else (),
            )
            for rank in range(size)
        ]  # fmt: skip
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline().strip() == "ready"
    return Job(f"127.0.0.1:{where['MASTER_PORT']}", ranks, path)


class Watch:
    """`hangdoc watch --json`, and of which jobs it has told."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [*HANGDOC, "watch", "--json"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.told: set[str] = set()
        self.last: deque[str] = deque(maxlen=20)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            self.last.append(line)
            if event["event"] == "started":
                self.told.add(event["job"])


def churn(jobs: int, size: int, folder: Path) -> tuple[list[float], float]:
    """RSS when each job had ended, and the largest of all (MiB)."""
    alive = [started(folder, number, size) for number in range(BESIDE)]
    watch = Watch()
    after: list[float] = []
    number, largest = BESIDE, 0.0
    try:
        while alive:
            for job in alive:
                if job.seen_s is None and job.name in watch.told:
                    job.seen_s = time.monotonic()
            first = alive[0]
            # The watch ends with the last job that it knows.
            others = len(alive) == 1 or any(job.seen_s is not None for job in alive[1:])
            if first.seen_s is not None and time.monotonic() - first.seen_s >= SEEN_S and others:
                largest, now = memory_mib(watch.process.pid)
                after.append(now)
                if number < jobs:
                    alive.append(started(folder, number, size))
                    number += 1
                alive.pop(0).end()
            elif first.seen_s is None and time.monotonic() - first.started_s > START_S:
                raise RuntimeError(f"the watch has not told of job {first.name}, but: {''.join(watch.last)}")
            time.sleep(0.05)
    finally:
        watch.process.kill()
        watch.process.wait()
        for job in alive:
            job.end()
    return after, largest


def rows(jobs: int, size: int) -> list[tuple[str, str, str, str]]:
    """What the run came to, beside the limits."""
    with tempfile.TemporaryDirectory() as folder:
        after, largest = churn(jobs, size, Path(folder))
    tenth, later = after[WARM - 1], max(after[WARM:], default=0.0)
    grown, largest_mb = later / tenth, largest * MIB / 1e6
    return [
        ("", "", "limit", ""),
        (f"RSS when {WARM} jobs had ended", f"{tenth * MIB / 1e6:.1f} MB", "", ""),
        (
            "largest when a later one had",
            f"{100 * grown - 100:+.1f} %",
            f"{100 * GROWTH - 100:+.0f} %",
            met(grown, GROWTH),
        ),
        ("largest at any time", f"{largest_mb:.1f} MB", f"{LIMIT_MB:g} MB", met(largest_mb, LIMIT_MB)),
    ]


if __name__ == "__main__":
    for row in rows(*map(int, sys.argv[1:])):
        print(*row, sep="\t")
