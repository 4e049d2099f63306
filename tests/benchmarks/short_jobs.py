"""Memory of a live watch without options while short jobs come and go, each with a source file of its own.

python -m benchmarks.short_jobs [--jobs 100] [--ranks 8]

A job ends once the watch has told of it and has looked at it for a moment. The ranks are fakes, without torch. Run by
root, all of it runs in a PID namespace of its own, where the watch finds no other job. Exit code 1 where a limit is
missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.footprint import memory_mib
from benchmarks.measure import HANGDOC, cpu_s, met, table
from jobs import ROOT

SCRIPT = Path(__file__).parent / "jobs" / "short.py"
LIMIT_MIB = 80.0  # the largest RSS
GROWTH = 1.10  # of the RSS after the tenth job
WARM = 10  # jobs, after which it is flat
BESIDE = 3  # jobs at a time
SEEN_S = 3.0  # a job goes on for so long after the watch has told of it
SOURCE_BYTES = 150_000
START_S = 60.0  # within which the watch must tell of a job

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

    number: int
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
    functions, size = [], 0
    while size < SOURCE_BYTES:
        functions.append(FUNCTION.format(job=job, n=len(functions), odd=2 + len(functions) % 5))
        size += len(functions[-1])
    path, head = folder / f"train_{job}.py", "".join(functions)
    path.write_text(head + TRAIN)
    return path, head.count("\n") + 2


def started(folder: Path, number: int, size: int) -> Job:
    path, line = source(folder, number)
    with socket.create_server(("127.0.0.1", 0)) as store, socket.create_server(("127.0.0.1", 0)) as data:
        doors = [store.fileno(), data.fileno()]
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.getsockname()[1]), "WORLD_SIZE": str(size)}
        ranks = [
            subprocess.Popen(
                [sys.executable, "-S", str(SCRIPT), str(path), str(line), str(doors[0]), str(doors[1])]
                if rank == 0
                else [sys.executable, "-S", str(SCRIPT), str(path), str(line), "-1", str(data.getsockname()[1])],
                env={**where, "RANK": str(rank), "LOCAL_RANK": str(rank), "PATH": os.defpath},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=doors if rank == 0 else (),
            )
            for rank in range(size)
        ]  # fmt: skip
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline().strip() == "ready"
    return Job(number, ranks, path)


class Watch:
    """`hangdoc watch --json`, and which processes it has told of."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [*HANGDOC, "watch", "--json"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.started = 0  # jobs it has told of
        self.events: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            self.events.append(event["event"])
            self.started += event["event"] == "started"


def churn(jobs: int, size: int, folder: Path, beside: int = BESIDE) -> tuple[list[float], float, Watch]:
    """RSS (MiB) when each job had ended, the largest of all, and the watch, which is over."""
    alive = [started(folder, number, size) for number in range(beside)]
    watch, after = Watch(), list[float]()
    number = beside
    while alive:
        told = min(watch.started, number)  # in the order in which they were started
        for job in alive:
            if job.seen_s is None and job.number < told:
                job.seen_s = time.monotonic()
        job = alive[0]
        if job.seen_s is not None and time.monotonic() - job.seen_s >= SEEN_S:
            if number < jobs:
                alive.append(started(folder, number, size))
                number += 1
            alive.pop(0).end()
            after.append(memory_mib(watch.process.pid)[1])
            if "-v" in sys.argv:
                print(job.number, f"{after[-1]:.1f}", len(alive), watch.started, flush=True)
        elif job.seen_s is None and time.monotonic() - job.started_s > START_S:
            raise SystemExit(f"the watch has not told of job {job.number} within {START_S:g} s: {watch.events[-20:]}")
        time.sleep(0.05)
    return after, 0.0, watch


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--jobs", type=int, default=100)
    options.add_argument("--ranks", type=int, default=8)
    options.add_argument("-v", action="store_true")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        after, _, watch = churn(given.jobs, given.ranks, Path(folder))
        print([f"{x:.1f}" for x in after])
    return 0


if __name__ == "__main__":
    sys.exit(main())
