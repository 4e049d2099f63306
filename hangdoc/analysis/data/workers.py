"""Analysis `helpers`: the helper processes of each rank: their state, and whether the rank waits for them.

Helpers are dataloader and pool workers, tokenizers, feeders. A rank that waits for helpers advances as long as one of
them works. If one is dead, stopped or deadlocked and all others are idle, the rank is stuck.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hangdoc.analysis import Case, Detector, Key
from hangdoc.analysis.network.links import NetworkJob
from hangdoc.analysis.ranks.call_path import CallPath, Step, Steps, Thread, frames_of, is_library, per_path
from hangdoc.analysis.ranks.progress import Look, looks_at
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.analysis.thresholds import (
    ACTIVE_BYTES,
    ACTIVE_S,
    BUSY_HELPER,
    EXPECTED_S,
    IDLE_CORES,
    RECENT_S,
    STALL_S,
    STILL_LOOKS,
    STILL_S,
)
from hangdoc.evidence import FileCall, Helper, Io, Place, Process, Source, Stack, Stacks

# "file:function" of frames in which a rank waits for its helpers
WAITS = re.compile(
    r"torch/utils/data/dataloader\.py:(_try_get_data|_get_data|_next_data|_shutdown_workers)$"
    r"|/multiprocess(ing)?/((pool|queues|connection|synchronize|managers)\.py:|process\.py:join$|popen_\w+\.py:(wait|poll)$)"
    r"|concurrent/futures/(_base|process)\.py:|/joblib/parallel\.py:|/loky/|datasets/utils/py_utils\.py:"
    r"|subprocess\.py:(wait|_wait|_try_wait|communicate|_communicate|call|run)$"
)
LOADER = re.compile(r"torch/utils/data/|/webdataset/|/streaming/|/nvidia/dali/")
POOL = re.compile(r"/multiprocess(ing)?/pool\.py:worker$|concurrent/futures/process\.py:_process_worker$")
# frames in which a worker waits for its next task, or for room in its result queue
IDLE = re.compile(
    r"/multiprocess(ing)?/(queues|connection|synchronize|pool)\.py:|concurrent/futures/process\.py:|selectors\.py:|/loky/"
)
ROOT = re.compile(r"/(multiprocess(ing)?/process\.py:_bootstrap|concurrent/futures/process\.py:_process_worker)$")
LOADER_NAME = "pt_data_worker"  # of its thread: torch/utils/data/_utils/worker.py, torch 2.13
SERVICE = re.compile(r"resource_tracker|forkserver")  # processes that only serve multiprocessing itself
# Kinds of worker; the facts describe the worker whose kind comes first.
KINDS = ("stopped", "locked", "blocked", "busy", "sleeping", "starting", "dead", "other", "idle")


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """One rank and its helpers. `state` to `leaf` describe the one helper that explains most. None: not seen."""

    count: int | None = None  # number of helpers
    waits: bool | None = None  # its main thread waits for helpers
    waiting_s: float | None = None  # seconds of that wait so far, within the window
    share: float | None = None  # share of the looks in which it waited for helpers, or was in its loader, 0..1
    frame: str | None = None  # frame in which it waits: "_try_get_data (dataloader.py:1131)"
    active: int | None = None  # helpers that worked within RECENT_S
    busy: int | None = None  # helpers that used at least BUSY_HELPER
    cores: float | None = None  # cores used by all helpers together
    state: str | None = None  # stopped | locked | blocked | busy | sleeping | starting | dead | lost | other | idle
    pid: int | None = None
    process_state: str | None = None  # state in /proc: S R D T t Z X
    site: str | None = None  # its innermost user frame: "load (data.py:31)"
    text: str | None = None  # source line at that site
    leaf: str | None = None  # its innermost frame
    stuck: bool | None = None  # the rank waits for helpers, and none of them will ever deliver
    advancing: bool | None = None  # the rank waits, and helpers work for it, or the wait is too short to tell


UNSEEN = WorkerFacts()


class WorkersDetector(Detector[WorkerFacts, None]):
    rank_facts = WorkerFacts
    seen_by = ("io", "aftermath")

    def derive(self, case: Case) -> tuple[dict[Key, WorkerFacts], None]:
        return {key: _facts(case, key) for key in case.ranks}, None


def _facts(case: Case, key: Key) -> WorkerFacts:
    looks = looks_at(case, key)
    series: list[tuple[float, Io]] = [(at, io) for at, io in case.series(key, "io") if isinstance(io, Io)]
    if not looks or not series or case.ranks[key].alive is False:
        return UNSEEN
    waiting_s = _waiting_s(looks)
    waits = waiting_s is not None
    recent = _recent(series)
    workers = workers_of(case, key, recent)
    stack = case.facts(StackFacts)[key]
    frame = _frame(looks[-1].path.steps)
    # In subprocess.py a rank waits for another program; elsewhere it waits for workers of its own.
    awaited = [w for w in workers if w.own or "(subprocess.py" in (frame or "")]
    if "(dataloader.py" in (frame or ""):  # other processes that it has forked have nothing to do with its loader
        awaited = [w for w in awaited if w.helper.comm == LOADER_NAME] or awaited
    concerned = [w for w in workers if w in awaited or not w.own]
    shown = min(concerned, key=lambda w: (KINDS.index(w.kind), -w.cores), default=None)
    stuck = waits and not stack.waits and _cannot_go_on(case, key, waiting_s or 0.0, recent, awaited)
    kind = ("lost" if stuck and shown.kind == "idle" else shown.kind) if shown else None
    active = [w for w in workers if w.active and (w in awaited or w.cores >= BUSY_HELPER)]
    site = user_line(shown.steps) if shown else None
    return WorkerFacts(
        count=len(workers),
        waits=waits,
        waiting_s=waiting_s,
        share=sum(waits_for_helpers(look.path) or is_loading(look.path) for look in looks) / len(looks),
        frame=frame,
        active=len(active),
        busy=sum(worker.cores >= BUSY_HELPER for worker in workers),
        cores=sum(worker.cores for worker in workers),
        state=kind,
        pid=shown.helper.pid if shown else None,
        process_state=shown.helper.state if shown else None,
        site=site.site if site else None,
        text=site.place.text if site and site.place else None,
        leaf=shown.steps[-1].site if shown and shown.steps else None,
        stuck=stuck or None,
        advancing=_advances(case, bool(active), waiting_s, stuck)
        and not stack.waits
        # A rank that waits for its helpers does not compute, even if a thread that manages them does.
        and stack.phase not in (("stopped", "exited") if waits else ("compute", "stopped", "exited")),
    )


def _recent(series: Sequence[tuple[float, Io]]) -> Sequence[tuple[float, Io]]:
    """The looks of the last RECENT_S and the one before, three at least: on a busy host seconds pass between them."""
    older = sum(series[-1][0] - at > RECENT_S for at, _ in series)
    return series[max(0, min(older - 1, len(series) - int(STILL_LOOKS))) :]


def is_stall(case: Case, watched_s: float) -> bool:
    """True if a wait seen for `watched_s` seconds is too long for an ordinary pause."""
    idle_s = case.job(NetworkJob).idle_s or 0.0
    return watched_s >= STALL_S or (watched_s >= STILL_S and idle_s >= STALL_S)


@per_path
def waits_for_helpers(path: CallPath) -> bool:
    """A frame inside the innermost user frame waits for helpers."""
    for step in reversed(path.steps):
        if WAITS.search(name_of(step)):
            return True
        if not is_library(step.file):
            return False
    return False


@per_path
def is_loading(path: CallPath) -> bool:
    """A frame belongs to a data loader."""
    return any(LOADER.search(step.file) for step in path.steps)


def _frame(steps: Steps) -> str | None:
    """The frame that shows the reason for the wait: the loader's, else the innermost waiting frame."""
    waiting = [step for step in steps if WAITS.search(name_of(step))]
    loading = [step for step in waiting if LOADER.search(step.file)]
    return (loading or waiting)[-1].site if waiting else None


def _waiting_s(looks: Sequence[Look]) -> float | None:
    """Seconds for which all looks up to the newest found the rank waiting. None: the newest did not."""
    since = None
    for look in reversed(looks):
        if not waits_for_helpers(look.path):
            break
        since = look.at_s
    return None if since is None else looks[-1].at_s - since


def _cannot_go_on(
    case: Case, key: Key, waiting_s: float, recent: Sequence[tuple[float, Io]], workers: Sequence[Worker]
) -> bool:
    """No helper works, and at least one is unable to."""
    watched_s = min(waiting_s, recent[-1][0] - recent[0][0])
    if not is_stall(case, watched_s) or any(worker.active for worker in workers):
        return False
    known = {worker.helper.pid for worker in workers}
    if len({tuple(h.pid for h in io.helpers if h.pid in known) for _, io in recent}) > 1 or not workers:
        return False
    kinds = {worker.kind for worker in workers}
    if not kinds <= {"stopped", "dead", "locked", "idle"}:
        return False
    return bool(kinds & {"stopped", "dead", "locked"}) or _lost(case, key, workers)


def _lost(case: Case, key: Key, workers: Sequence[Worker]) -> bool:
    """The rank waits for a process pool in which every worker waits for a task: a dead worker took the task along."""
    stacks = case.record(key, "stacks")
    if not isinstance(stacks, Stacks) or not all(any(POOL.search(name_of(s)) for s in w.steps) for w in workers):
        return False
    own = (f"{frame.file}:{frame.function}" for stack in stacks.threads for frame in stack.frames)
    return not any(POOL.search(name) for name in own)  # otherwise the rank may wait for a thread pool


def _advances(case: Case, active: bool, waiting_s: float | None, stuck: bool) -> bool:
    """Helpers work, or the wait is still too short to prove otherwise."""
    return active or (waiting_s is not None and not stuck and not is_stall(case, waiting_s))


# --- each worker ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Worker:
    """One helper process."""

    helper: Helper
    active: bool  # it worked within the window
    cores: float  # cores used
    kind: str  # one of KINDS
    own: bool  # created by multiprocessing; false: another program that the rank started
    steps: Steps  # call path of its main thread, from where it became a worker


def workers_of(case: Case, key: Key, recent: Sequence[tuple[float, Io]]) -> list[Worker]:
    """The helpers of a rank. `recent`: instants and `io` records of the last RECENT_S."""
    end, newest = recent[-1]
    stacks, source = _stacks(case, key, recent[0][0])
    first: dict[int, tuple[float, Helper]] = {}
    for at, io in recent:
        for helper in io.helpers:
            first.setdefault(helper.pid, (at, helper))
    blocked = {call.pid for call in newest.calls if call.kind not in ("pipe", "socket") and _is_blocked(call, recent)}
    own, services = _children(case, key)
    long_idle = (case.job(NetworkJob).idle_s or 0.0) >= EXPECTED_S
    workers = []
    for helper in newest.helpers:
        if helper.pid in services:
            continue
        at, before = first[helper.pid]
        ran_s, seconds = helper.cpu_s - before.cpu_s, end - at
        # A timed sleep ends by itself; in another program it counts only if the program woke up within the window. If
        # the job has long been idle, whatever the sleeper polls for does not come.
        woke = helper.sleeps == "time" and (helper.pid in own or helper.switches != before.switches) and not long_idle
        polls = long_idle and ran_s < IDLE_CORES * seconds
        moved = (helper.moved or 0) - (before.moved or 0)
        fresh = at > recent[0][0]  # started within the window
        active = helper.state not in "ZXTt" and (
            (ran_s >= ACTIVE_S and not polls) or moved >= ACTIVE_BYTES or woke or fresh or helper.state == "R"
        )
        seen = [h.locked for _, io in recent[1:] for h in io.helpers if h.pid == helper.pid]
        locked = len(seen) > 1 and all(seen)
        steps = worker_story(stacks.get(helper.pid, ()), source)
        kind = _kind(helper, active, locked, helper.pid in blocked, steps)
        cores = ran_s / seconds if seconds > 0 else 0.0
        workers.append(Worker(helper, active, cores, kind, helper.pid in own, steps))
    idle = {(w.helper.comm, w.helper.sleeps) for w in workers if w.kind == "idle"}
    return [replace(w, kind=_kind_of_unseen(w, idle)) for w in workers]


def _kind_of_unseen(worker: Worker, idle: set[tuple[str, str | None]]) -> str:
    """Of many workers only some stacks are read: a worker without one that sleeps like the idle ones is idle."""
    like_idle = worker.kind == "other" and not worker.steps and (worker.helper.comm, worker.helper.sleeps) in idle
    return "idle" if like_idle else worker.kind


def _children(case: Case, key: Key) -> tuple[set[int], set[int]]:
    """PIDs of multiprocessing's workers of this program, and of the processes that serve multiprocessing itself."""
    process = case.record(key, "cpu")
    if not isinstance(process, Process):
        return set(), set()
    commands = {child.pid: " ".join(child.command) for child in process.children}
    own = " ".join(process.command)
    services = {pid for pid, command in commands.items() if SERVICE.search(command)}
    workers = {pid for pid, command in commands.items() if command == own or "spawn_main(" in command or not command}
    return workers - services, services


def _is_blocked(call: FileCall, recent: Sequence[tuple[float, Io]]) -> bool:
    """The thread was in this call throughout the window."""
    same = (call.tid, call.call, call.path, call.switches)
    return all(any((c.tid, c.call, c.path, c.switches) == same for c in io.calls) for _, io in recent)


def _kind(helper: Helper, active: bool, locked: bool, blocked: bool, steps: Steps) -> str:
    if helper.state in "Tt":
        return "stopped"
    if helper.state in "ZX":
        return "dead"
    if locked:
        return "locked"
    own = steps and not IDLE.search(name_of(steps[-1]))
    if blocked and (own or helper.state == "D" or not steps):
        return "blocked"
    if is_importing(steps):
        return "starting"
    if helper.sleeps == "time" and (active or own):
        return "sleeping"
    if active:
        return "busy"
    return "idle" if steps and not own else "other"


def _stacks(case: Case, key: Key, since_s: float) -> tuple[dict[int, Sequence[Stack]], Source | None]:
    """Newest stacks of each helper, and the source of their lines."""
    found: dict[int, Sequence[Stack]] = {}
    places: dict[str, Place] = {}
    for shot, rank in case.rounds(key):
        stacks, source = rank.records.get("stacks"), rank.records.get("source")
        if isinstance(stacks, Stacks) and shot.at_s >= since_s:
            found.update(dict(stacks.children))
            places.update(source.places if isinstance(source, Source) and stacks.children else {})
    return found, Source(places)


def worker_story(threads: Sequence[Stack], source: Source | None) -> Steps:
    """Call path of the main thread, from where it became a worker: a forked worker keeps its parent's frames."""
    main = next((stack for stack in threads if stack.name == "MainThread"), threads[0] if threads else None)
    if main is None:
        return ()
    names = [f"{frame.file}:{frame.function}" for frame in main.frames]
    roots = [i for i, name in enumerate(names) if ROOT.search(name)]
    inner = main.frames[: roots[0] + 1] if roots else main.frames
    worker = Stack(main.tid, main.name, inner)
    return Thread(CallPath(frames_of(worker), source), worker)


def is_importing(steps: Steps) -> bool:
    """The worker still imports modules, so it makes no data yet."""
    return any(step.file.startswith("<frozen importlib") for step in steps)


def user_line(steps: Steps) -> Step | None:
    """The innermost step in the user's own code."""
    return next((step for step in reversed(steps) if not is_library(step.file)), None)


def name_of(step: Step) -> str:
    """`file:function`, the form that the patterns match."""
    return f"{step.file}:{step.function}"


ANALYSIS = WorkersDetector()
