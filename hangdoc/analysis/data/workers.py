"""The helper processes of a rank: what each of them does, from what the last seconds of looks saw of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hangdoc.analysis import Case, Key
from hangdoc.analysis.ranks.call_path import CallPath, Step, call_path, is_library
from hangdoc.evidence import FileCall, Helper, Io, Place, Process, Source, Stack, Stacks

ACTIVE_S = 0.03  # CPU time within the looks: more than a worker that polls its queue uses
ACTIVE_BYTES = 256
# in which a worker waits for its next task, or for room to put a result
IDLE = re.compile(
    r"/multiprocess(ing)?/(queues|connection|synchronize|pool)\.py:|concurrent/futures/process\.py:|selectors\.py:|/loky/"
)
ROOT = re.compile(r"/(multiprocess(ing)?/process\.py:_bootstrap|concurrent/futures/process\.py:_process_worker)$")
SERVANT = re.compile(r"resource_tracker|forkserver")
TELLING = ("stopped", "locked", "blocked", "busy", "sleeping", "starting", "dead", "other", "idle")


@dataclass(frozen=True, slots=True)
class Worker:
    """One helper and what is known of it."""

    helper: Helper
    active: bool
    cores: float
    kind: str  # one of TELLING
    ours: bool  # multiprocessing made it; else it is another program that the rank started
    steps: CallPath  # of its main thread, below where it became a worker


def workers_of(case: Case, key: Key, recent: Sequence[tuple[float, Io]]) -> list[Worker]:
    """The helpers of a rank, by the looks of the last seconds (`recent`: instants and records of probe `io`)."""
    end, newest = recent[-1]
    stacks, source = _stacks(case, key, recent[0][0])
    first: dict[int, tuple[float, Helper]] = {}
    for at, io in recent:
        for helper in io.helpers:
            first.setdefault(helper.pid, (at, helper))
    standing = {call.pid for call in newest.calls if call.kind not in ("pipe", "socket") and _stands(call, recent)}
    ours, servants = _made(case, key)
    workers = []
    for helper in newest.helpers:
        if helper.pid in servants:
            continue
        at, before = first[helper.pid]
        ran_s, seconds = helper.cpu_s - before.cpu_s, end - at
        # A sleep ends by itself; another program may sleep for reasons of its own.
        woke = helper.sleeps == "time" and (helper.pid in ours or helper.switches != before.switches)
        moved = (helper.moved or 0) - (before.moved or 0)
        fresh = at > recent[0][0]  # it was started just now
        active = helper.state not in "ZXTt" and (
            ran_s >= ACTIVE_S or moved >= ACTIVE_BYTES or woke or fresh or helper.state == "R"
        )
        seen = [h.locked for _, io in recent[1:] for h in io.helpers if h.pid == helper.pid]
        locked = len(seen) > 1 and all(seen)
        steps = worker_story(stacks.get(helper.pid, ()), source)
        kind = _kind(helper, active, locked, helper.pid in standing, steps)
        cores = ran_s / seconds if seconds > 0 else 0.0
        workers.append(Worker(helper, active, cores, kind, helper.pid in ours, steps))
    idle = {(w.helper.comm, w.helper.sleeps) for w in workers if w.kind == "idle"}
    return [replace(w, kind=_as_its_like(w, idle)) for w in workers]


def _as_its_like(worker: Worker, idle: set[tuple[str, str | None]]) -> str:
    """Not every worker of many is looked at: one that sleeps as the idle ones do is idle."""
    alike = worker.kind == "other" and not worker.steps and (worker.helper.comm, worker.helper.sleeps) in idle
    return "idle" if alike else worker.kind


def _made(case: Case, key: Key) -> tuple[set[int], set[int]]:
    """Children that multiprocessing made of this program, and those that only serve multiprocessing itself."""
    process = case.record(key, "cpu")
    if not isinstance(process, Process):
        return set(), set()
    commands = {child.pid: " ".join(child.command) for child in process.children}
    own = " ".join(process.command)
    servants = {pid for pid, command in commands.items() if SERVANT.search(command)}
    workers = {pid for pid, command in commands.items() if command == own or "spawn_main(" in command or not command}
    return workers - servants, servants


def _stands(call: FileCall, recent: Sequence[tuple[float, Io]]) -> bool:
    """The thread has been in that call through all of the last seconds."""
    same = (call.tid, call.call, call.path, call.switches)
    return all(any((c.tid, c.call, c.path, c.switches) == same for c in io.calls) for _, io in recent)


def _kind(helper: Helper, active: bool, locked: bool, stands: bool, steps: CallPath) -> str:
    if helper.state in "Tt":
        return "stopped"
    if helper.state in "ZX":
        return "dead"
    if locked:
        return "locked"
    own = steps and not IDLE.search(name_of(steps[-1]))
    if stands and (own or helper.state == "D" or not steps):
        return "blocked"
    if starts(steps):
        return "starting"
    if active:
        return "sleeping" if helper.sleeps == "time" else "busy"
    return "idle" if steps and not own else "other"


def _stacks(case: Case, key: Key, since_s: float) -> tuple[dict[int, Sequence[Stack]], Source | None]:
    """The newest stacks seen of each helper, and the source of their lines."""
    found: dict[int, Sequence[Stack]] = {}
    places: dict[str, Place] = {}
    for shot, rank in case.rounds(key):
        stacks, source = rank.records.get("stacks"), rank.records.get("source")
        if isinstance(stacks, Stacks) and shot.at_s >= since_s:
            found.update(dict(stacks.children))
            places.update(source.places if isinstance(source, Source) and stacks.children else {})
    return found, Source(places)


def worker_story(threads: Sequence[Stack], source: Source | None) -> CallPath:
    """The frames of the main thread below where it became a worker: a forked one has its parent's above."""
    main = next((stack for stack in threads if stack.name == "MainThread"), threads[0] if threads else None)
    if main is None:
        return ()
    names = [f"{frame.file}:{frame.function}" for frame in main.frames]
    roots = [i for i, name in enumerate(names) if ROOT.search(name)]
    inner = main.frames[: roots[0] + 1] if roots else main.frames
    return call_path(Stack(main.tid, main.name, inner), source, None)


def starts(steps: CallPath) -> bool:
    """It imports what it needs: no data is made yet."""
    return any(step.file.startswith("<frozen importlib") for step in steps)


def user_line(steps: CallPath) -> Step | None:
    """The innermost line of the user's own code."""
    return next((step for step in reversed(steps) if not is_library(step.file)), None)


def name_of(step: Step) -> str:
    """`file:function`, as the patterns have it."""
    return f"{step.file}:{step.function}"
