"""A rank that hangdoc pauses goes on, whatever ends hangdoc, its agent or py-spy, at any moment.

HANGDOC_KILLS says how often they are ended.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hangdoc.system import procfs, programs
from tests.support.other_user import Stranger, stranger
from tests.support.paths import PROGRAMS, ROOT
from tests.support.polling import until
from tests.support.process_state import STOPPED, threads, tracer

KILLS = int(os.environ.get("HANGDOC_KILLS", "60"))
GOES_ON_S = 1.0  # within which hangdoc must have ended, and the rank must go on
CODES = {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}
RANK = """
import threading
def wait(): lock.acquire()
lock = threading.Lock()
lock.acquire()
for _ in range(40): threading.Thread(target=wait, daemon=True).start()
print("ready", flush=True)
wait()
"""


@pytest.fixture(scope="module")
def rank() -> Iterator[Stranger]:
    with stranger(RANK, environment={"RANK": "0", "WORLD_SIZE": "2"}) as found:
        yield found


def held(pid: int) -> bool:
    return bool(STOPPED & set(threads(pid).values())) or tracer(pid) != 0


def shortest_hold_s(pid: int) -> float:
    """How long hangdoc holds the rank on this machine: of five times, the shortest."""
    shortest = GOES_ON_S
    for _ in range(5):
        until(lambda: held(pid), every_s=0.001)
        began_s = time.monotonic()
        until(lambda: not held(pid), every_s=0.001)
        shortest = min(shortest, time.monotonic() - began_s)
    return shortest


class Examiner:
    """Starts hangdocs that examine a rank, one at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def start(self, what: str) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


@contextmanager
def examiner(pid: int, *spy: str) -> Iterator[Examiner]:
    process = subprocess.Popen(
        [sys.executable, str(PROGRAMS / "examiner.py"), str(pid), *spy],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield Examiner(process)
        finally:
            for child in procfs.children(process.pid):
                os.kill(child, signal.SIGKILL)


@pytest.fixture
def stuck_spy(tmp_path: Path) -> str:
    """A py-spy that never releases the rank."""
    path, real = tmp_path / "py-spy", programs.py_spy()
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {PROGRAMS / "stuck_py_spy.py"} {real} "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.timeout(60 + 2 * KILLS)
@pytest.mark.parametrize("spy", ["real", "stuck"])
@pytest.mark.parametrize("what", ["watch", "agent", "daemon"])
def test_after_any_end_of_hangdoc_at_any_moment_no_rank_is_stopped(
    rank: Stranger, what: str, spy: str, stuck_spy: str
) -> None:
    """Half are ended while they hold the rank, the others at any moment."""
    rng = random.Random(f"{what} {spy} {KILLS}")
    while_held = 0
    ended_s = released_s = 0.0
    ends: Counter[str] = Counter()
    with examiner(rank.pid) as examining:
        hangdoc = examining.start(what)
        hold_s = shortest_hold_s(rank.pid)
        os.kill(hangdoc, signal.SIGKILL)
        examining.answer()
    with examiner(rank.pid, *[stuck_spy] * (spy == "stuck")) as examining:
        for number in range(KILLS // 4):
            hangdoc = examining.start(what)
            if number % 2:
                until(lambda: held(rank.pid), every_s=0.001)
            time.sleep(rng.uniform(0, hold_s) if number % 2 else rng.uniform(0.05, 0.4))
            with_what = signal.SIGKILL if what == "daemon" else rng.choice(list(CODES))  # SIGTERM: it takes its time
            while_held += held(rank.pid)
            began_s = time.monotonic()
            os.kill(hangdoc, with_what)
            code = examining.answer()
            ended_s = max(ended_s, time.monotonic() - began_s)
            until(lambda: not held(rank.pid), within_s=GOES_ON_S, every_s=0.001)
            released_s = max(released_s, time.monotonic() - began_s)
            assert code in (CODES[with_what], -with_what), signal.Signals(with_what)  # the latter: it had just started
            ends[signal.Signals(with_what).name] += 1
    assert while_held >= KILLS // 16, "hardly ever ended while it held the rank: the test shows nothing"
    assert ended_s < GOES_ON_S
    assert rank.process.poll() is None
    print(f"{what}, py-spy {spy}: {dict(ends)}, {while_held} of them while it held the rank ({hold_s:.3f} s);", end=" ")
    print(f"ended after {ended_s:.3f} s at most, the rank released after {released_s:.3f} s at most")
