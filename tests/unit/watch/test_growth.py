"""Nothing that the live watch keeps grows with the jobs that come and go.

The watch is a real one, of processes that are made for it: each job has processes, a port, files and a lock of its own.
What it keeps is found by walking every object that can be reached from it, and from the modules of hangdoc, and not by
a list of caches: a new cache is found as well. Containers at one place (an attribute, or an item of a container at one
place) count as one, of which the longest tells.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import _lru_cache_wrapper, partial
from itertools import pairwise
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import pytest

from hangdoc.analysis.facts import schema
from hangdoc.diagnose import Judge
from hangdoc.evidence import Snapshot
from hangdoc.rules.library import Library
from hangdoc.system import procfs, rtnetlink
from hangdoc.watch import live
from hangdoc.watch.live import Event, Live
from hangdoc.watch.session import Session, WatchOptions
from hangdoc.watch.sources import LocalSource
from probes import load as load_probes

OURS = ("hangdoc", "probes")
PLAIN = (str, bytes, int, float, Enum, type(None))
WINDOWS = ((4, 5), (6, 7), (8, 9), (10, 11), (12, 13))  # the walk is made after so many jobs
JOBS = WINDOWS[-1][-1]
# Waits for a lock of its own, for the others at the store (in a file of torch's name), and for a lock file.
RANK = """
import os, socket, sys, threading, time
folder, rank = sys.argv[1], int(os.environ["RANK"])
lock = threading.Lock()
def stuck():
    with lock:
        pass
path, scope = folder + "/torch/distributed/rendezvous.py", {"threading": threading}
exec(compile(open(path).read(), path, "exec"), scope)
lock.acquire()
threading.Thread(target=stuck, daemon=True).start()
threading.Thread(target=scope["_create_tcp_store"], args=(threading.Event(),), daemon=True).start()
door = socket.socket(fileno=int(sys.argv[2]))
data, lock_file = open(folder + "/data.bin", "wb"), folder + "/build.lock"
open(lock_file, "w").close()
print("ready", flush=True)
while os.path.exists(lock_file):
    time.sleep(0.02)
"""
STORE = """def _create_tcp_store(event):
    event.wait()
"""
PROBES = load_probes()
# One entry for each type of record that hangdoc defines.
BY_TYPE = ("hangdoc.evidence.memory._fields",)
# What the last two rounds saw, which varies; tests/unit/redaction shows that older rounds are forgotten.
ROUND = ("Mask._known", "Mask._before")
# What is kept of parsed sources is bounded by tests of its own.
PARSED = ("SourceProbe._modules", "LocksProbe._modules", "TypesProbe._known")


class Over(Exception):
    """Enough jobs have come and gone."""


class Jobs:
    """One job after the other, the next one begun before the last one ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._told = threading.Semaphore(0)  # of jobs that the watch has begun to watch
        self._ranks: list[subprocess.Popen[str]] = []  # of every job so far
        self._first = self._start(0)

    def run(self) -> None:
        before = self._first
        for number in range(1, JOBS + 1):
            self._told.acquire()
            job = self._start(number)
            self._end(*before)
            before = job
        self._told.acquire()
        self._end(*before)

    def started(self) -> None:
        self._told.release()

    def close(self) -> None:
        """End what still runs."""
        for rank in self._ranks:
            rank.kill()
            rank.wait(20)

    def _start(self, number: int) -> tuple[Path, list[subprocess.Popen[str]]]:
        folder = self._folder / f"job-{number}"
        (folder / "torch" / "distributed").mkdir(parents=True)
        (folder / "torch" / "distributed" / "rendezvous.py").write_text(
            "def _create_tcp_store(event):\n    event.wait()"
        )
        script = folder / f"train_{number}.py"
        script.write_text(RANK)
        with socket.create_server(("127.0.0.1", 0)) as door:
            master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(door.getsockname()[1])}
            ranks = [
                subprocess.Popen(
                    [sys.executable, "-S", str(script), str(folder), str(door.fileno())],
                    env={"PATH": os.defpath, "RANK": str(rank), "WORLD_SIZE": "2", **master},
                    pass_fds=[door.fileno()], stdout=subprocess.PIPE, text=True,
                )
                for rank in range(2)
            ]  # fmt: skip
            self._ranks += ranks
            for rank in ranks:
                assert rank.stdout is not None
                assert rank.stdout.readline() == "ready\n"
        return folder, ranks

    def _end(self, folder: Path, ranks: list[subprocess.Popen[str]]) -> None:
        (folder / "build.lock").unlink()
        for rank in ranks:
            rank.wait(20)
            assert rank.stdout is not None
            rank.stdout.close()


@pytest.mark.timeout(180)
@pytest.mark.slow("thirteen jobs start and end, one after the other")
def test_what_is_kept_does_not_grow_with_the_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "CHECK_S", 0.0)
    nothing: dict[str, list[object]] = {"addresses": [], "default": [], "links": [], "rates": []}
    monkeypatch.setattr(rtnetlink, "query", lambda: nothing)
    monkeypatch.setattr(procfs, "numbers", partial(only_our_processes, procfs.numbers))
    sizes: dict[int, dict[str, int]] = {}  # by the number of jobs that have ended
    jobs, over, said = Jobs(tmp_path), 0, list[str]()
    thread = threading.Thread(target=jobs.run, daemon=True)

    def heard(event: Event) -> None:
        nonlocal over
        said.append(event.kind)
        if event.kind == "started":
            session.look_closer()
            jobs.started()
        over += event.kind == "job_ended"
        if event.kind == "job_ended" and over >= WINDOWS[0][0]:
            sizes[over] = longest({"session": session, "watched": watch.watched})
        if over == JOBS:
            raise Over

    here = LocalSource((os.getpid(),))
    options = WatchOptions((os.getpid(),), interval_s=0.05)
    thread.start()
    session = Session(here.find(), None)
    session.look()
    watch = Live(options, session, Judge(Library((), ()), schema()), heard, lambda verdict: None)
    try:
        with pytest.raises(Over):
            watch.run()
        jobs.started()  # it may wait for the job whose start was not heard
        thread.join(20)
        assert not thread.is_alive()
    finally:
        jobs.close()
    assert said.count("started") >= JOBS
    # What one round saw varies from look to look; what leaks is longer in every window than at its shortest before.
    least = [
        {
            place: min(sizes[job].get(place, 0) for job in window)
            for window_sizes in sizes.values()
            for place in window_sizes
        }
        for window in WINDOWS
    ]
    grown = {
        place: [window[place] for window in least]
        for place in least[-1]
        if all(before[place] < after[place] for before, after in pairwise(least))
    }
    assert not grown


def only_our_processes(numbers: Callable[..., list[int]], path: str, most: int | None = None) -> list[int]:
    """What `procfs.numbers` finds; of /proc only this process and those below it, as strangers come and go."""
    found = numbers(path, most)
    return [pid for pid in found if os.getpid() in procfs.lineage(pid)] if path == "/proc" else found


def longest(roots: Mapping[str, object]) -> dict[str, int]:
    """By place the length of the longest container there."""
    found: dict[str, int] = {}
    modules = {name: module for name, module in sys.modules.items() if name.split(".")[0] in OURS}
    waiting: list[tuple[str, Any]] = [*roots.items(), *modules.items()]
    seen: set[int] = set()
    while waiting:
        place, thing = waiting.pop()
        if id(thing) in seen or place.endswith((*PARSED, *BY_TYPE, *ROUND)) or isinstance(thing, PLAIN):
            continue
        seen.add(id(thing))
        if isinstance(thing, Snapshot):
            # How many of its own ranks had just ended varies; each probe may say so once of each rank and of the host.
            assert len(thing.unseen) <= len(PROBES) * (len(thing.ranks) + 1), thing.unseen
            waiting += ((at, part) for at, part in parts(place, thing) if not at.endswith(".unseen"))
            continue
        if isinstance(thing, (Mapping, list, tuple, set, frozenset, deque)):
            found[place] = max(found.get(place, 0), len(thing))
        elif isinstance(thing, _lru_cache_wrapper) and thing.cache_info().maxsize is None:
            found[place] = thing.cache_info().currsize
        elif isinstance(most := getattr(thing, "_most", None), int):  # it says how long it may become
            assert len(thing) <= most, place
            continue
        waiting += parts(place, thing)
    return found


def parts(place: str, thing: Any) -> Iterator[tuple[str, Any]]:
    """What a thing holds, and where."""
    if isinstance(thing, Mapping):
        yield from ((f"{place}{{}}", part) for part in (*thing.keys(), *thing.values()))
    elif isinstance(thing, (list, tuple, set, frozenset, deque)):
        yield from ((f"{place}[]", part) for part in thing)
    elif isinstance(thing, FunctionType):
        yield from ((f"{place}()", cell.cell_contents) for cell in thing.__closure__ or () if cell != type(cell)())
    elif isinstance(thing, MethodType):
        yield place, thing.__self__
    elif isinstance(thing, partial):
        yield place, (thing.func, thing.args)
    elif isinstance(thing, ModuleType):
        if thing.__name__.split(".")[0] in OURS:
            yield from (
                (f"{thing.__name__}.{name}", part) for name, part in list(vars(thing).items()) if name[:2] != "__"
            )
    elif isinstance(thing, type):
        if thing.__module__.split(".")[0] in OURS:
            name = f"{thing.__module__}.{thing.__qualname__}"
            yield from ((f"{name}.{at}", part) for at, part in list(vars(thing).items()) if at[:2] != "__")
    else:
        kind = type(thing)
        named = [slot for base in kind.__mro__ for slot in vars(base).get("__slots__", ())]
        held = {name: getattr(thing, name) for name in named if name[:2] != "__" and hasattr(thing, name)}
        yield from ((f"{kind.__module__}.{kind.__name__}.{name}", part) for name, part in held.items())
        yield from (
            (f"{kind.__module__}.{kind.__name__}.{name}", part)
            for name, part in list(getattr(thing, "__dict__", {}).items())
        )
