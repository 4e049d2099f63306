"""Analysis `helpers`: what the helper processes of each rank do, and whether the rank waits for them.

Helpers are dataloader and pool workers, tokenisers, feeders. A rank that waits for helpers goes on as long as one of
them works; where one is dead, stopped or deadlocked and no other does anything, it cannot go on by itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from hangdoc.analysis import Case, Key
from hangdoc.analysis.ranks.call_path import Code, Step, Story, is_library, tell
from hangdoc.analysis.ranks.progress import Look, looks_at
from hangdoc.evidence import FileCall, Helper, Io, Place, Process, Source, Stack, Stacks

RECENT_S = 5.0  # what was done within this time is being done
SURE_S = 4.0  # a rank has to wait so long before its helpers are blamed,
SEEN_S = 1.9  # or so long while we look where no byte has crossed between the ranks for SURE_S
BUSY_SHARE = 0.2  # of a core
# "file:function" of frames in which a rank waits for what its helpers make
WAITS = re.compile(
    r"torch/utils/data/dataloader\.py:(_try_get_data|_get_data|_next_data|_shutdown_workers)$"
    r"|/multiprocess(ing)?/((pool|queues|connection|synchronize|managers)\.py:|process\.py:join$|popen_\w+\.py:(wait|poll)$)"
    r"|concurrent/futures/(_base|process)\.py:|/joblib/parallel\.py:|/loky/|datasets/utils/py_utils\.py:"
    r"|subprocess\.py:(wait|_wait|_try_wait|communicate|_communicate|call|run)$"
)
LOADER = re.compile(r"torch/utils/data/|/webdataset/|/streaming/|/nvidia/dali/")
POOL = re.compile(r"/multiprocess(ing)?/pool\.py:worker$|concurrent/futures/process\.py:_process_worker$")
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
class HelperFacts:
    """One rank and its helpers; `pid` and what follows are of the helper that tells most."""

    count: int | None = None
    waits: bool | None = None  # its main thread waits for the work of helpers; None: its stacks were not seen
    waiting_s: float | None = None  # for so long, as far as it was watched
    share: float | None = None  # share of the looks in which it did so, or worked in its loader itself
    frame: str | None = None  # the frame in which it waits
    active: int | None = None  # helpers that did something within the last seconds
    busy: int | None = None  # of these, that compute
    cores: float | None = None  # that all helpers together use
    state: str | None = None  # stopped | locked | blocked | busy | sleeping | starting | dead | lost | other | idle
    pid: int | None = None
    process_state: str | None = None  # S R D T Z
    asleep_in: str | None = None  # lock | semaphore | time | poll | file | child | other
    site: str | None = None  # innermost frame of the user's own code in it
    text: str | None = None  # the source line there
    leaf: str | None = None  # innermost frame
    stuck: bool | None = None  # the rank waits for what will never come
    advancing: bool | None = None  # it waits, and helpers work for it


UNSEEN = HelperFacts()


@dataclass(slots=True)
class HelpersAnalysis:
    name: str = "helpers"
    order: int = 42  # after `network`
    rank_facts: type | None = HelperFacts
    job_facts: type | None = None

    def derive(self, case: Case) -> tuple[dict[Key, HelperFacts], None]:
        return {key: _facts(case, key) for key in case.ranks}, None


def _facts(case: Case, key: Key) -> HelperFacts:
    looks = looks_at(case, key)
    series: list[tuple[float, Io]] = [(at, io) for at, io in case.series(key, "io") if isinstance(io, Io)]
    if not looks or not series or case.ranks[key].alive is False:
        return UNSEEN
    waiting_s = _waiting_s(looks)
    waits = waiting_s is not None
    recent = [(at, io) for at, io in series if series[-1][0] - at <= RECENT_S]
    workers = workers_of(case, key, recent)
    telling = min(workers, key=lambda w: (TELLING.index(w.kind), -w.cores), default=None)
    stack = case.rank_facts["stack"][key]
    frame = _frame(looks[-1].story)
    # A rank that waits in subprocess.py waits for another program, any other for workers of its own.
    awaited = [w for w in workers if w.ours or "(subprocess.py" in (frame or "")]
    stuck = waits and not stack.waits and _cannot_go_on(case, key, waiting_s or 0.0, recent, awaited)
    kind = ("lost" if stuck and telling.kind == "idle" else telling.kind) if telling else None
    active = [w for w in workers if w.active and (w in awaited or w.cores >= BUSY_SHARE)]
    site = user_line(telling.steps) if telling else None
    return HelperFacts(
        count=len(workers),
        waits=waits,
        waiting_s=waiting_s,
        share=sum(waits_for_helpers(look.code) or loads(look.code) for look in looks) / len(looks),
        frame=frame,
        active=len(active),
        busy=sum(worker.cores >= BUSY_SHARE for worker in workers),
        cores=sum(worker.cores for worker in workers),
        state=kind,
        pid=telling.helper.pid if telling else None,
        process_state=telling.helper.state if telling else None,
        asleep_in=telling.helper.sleeps if telling else None,
        site=site.site if site else None,
        text=site.place.text if site and site.place else None,
        leaf=telling.steps[-1].site if telling and telling.steps else None,
        stuck=stuck or None,
        advancing=_advances(case, bool(active), waiting_s, stuck)
        and not stack.waits
        # A rank that waits for its helpers stands still, whatever a thread that manages them does at the moment.
        and stack.phase not in (("stopped", "exited") if waits else ("compute", "stopped", "exited")),
    )


def sure(case: Case, watched_s: float) -> bool:
    """What was seen for so long is no ordinary pause."""
    idle_s = getattr(case.job_facts.get("network"), "idle_s", None) or 0.0
    return watched_s >= SURE_S or (watched_s >= SEEN_S and idle_s >= SURE_S)


@lru_cache(maxsize=1024)
def waits_for_helpers(code: Code) -> bool:
    """Its innermost frames, up to the user's own code, wait for helpers."""
    for file, function in reversed(code):
        if WAITS.search(f"{file}:{function}"):
            return True
        if not is_library(file):
            return False
    return False


@lru_cache(maxsize=1024)
def loads(code: Code) -> bool:
    return any(LOADER.search(file) for file, _ in code)


def _frame(story: Story) -> str | None:
    """The frame that says for what it waits: the loader's, else the innermost of those that wait."""
    waiting = [step for step in story if WAITS.search(name_of(step))]
    loading = [step for step in waiting if LOADER.search(step.file)]
    return (loading or waiting)[-1].site if waiting else None


def _waiting_s(looks: Sequence[Look]) -> float | None:
    """How long the newest looks have all found it waiting; None where the newest one did not."""
    since = None
    for look in reversed(looks):
        if not waits_for_helpers(look.code):
            break
        since = look.at_s
    return None if since is None else looks[-1].at_s - since


def _cannot_go_on(
    case: Case, key: Key, waiting_s: float, recent: Sequence[tuple[float, Io]], workers: Sequence[Worker]
) -> bool:
    """Nothing of its helpers works, and there is one that should and cannot."""
    watched_s = min(waiting_s, recent[-1][0] - recent[0][0])
    if not sure(case, watched_s) or any(worker.active for worker in workers):
        return False
    known = {worker.helper.pid for worker in workers}
    if len({tuple(h.pid for h in io.helpers if h.pid in known) for _, io in recent}) > 1 or not workers:
        return False
    kinds = {worker.kind for worker in workers}
    if not kinds <= {"stopped", "dead", "locked", "idle"}:
        return False
    return bool(kinds & {"stopped", "dead", "locked"}) or _lost(case, key, workers)


def _lost(case: Case, key: Key, workers: Sequence[Worker]) -> bool:
    """It waits for the result of a pool of processes whose workers all wait for a task: a task went with a worker."""
    stacks = case.record(key, "stacks")
    if not isinstance(stacks, Stacks) or not all(any(POOL.search(name_of(s)) for s in w.steps) for w in workers):
        return False
    own = (f"{frame.file}:{frame.function}" for stack in stacks.threads for frame in stack.frames)
    return not any(POOL.search(name) for name in own)  # else the pool it waits for may be one of threads


def _advances(case: Case, active: bool, waiting_s: float | None, stuck: bool) -> bool:
    """Its helpers work; while it was not watched for long enough to say that they do not, it is taken for granted."""
    return active or (waiting_s is not None and not stuck and not sure(case, waiting_s))


# --- each worker ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Worker:
    """One helper and what is known of it."""

    helper: Helper
    active: bool
    cores: float
    kind: str  # one of TELLING
    ours: bool  # multiprocessing made it; else it is another program that the rank started
    steps: Story  # of its main thread, below where it became a worker


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


def _kind(helper: Helper, active: bool, locked: bool, stands: bool, steps: Story) -> str:
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


def worker_story(threads: Sequence[Stack], source: Source | None) -> Story:
    """The frames of the main thread below where it became a worker: a forked one has its parent's above."""
    main = next((stack for stack in threads if stack.name == "MainThread"), threads[0] if threads else None)
    if main is None:
        return ()
    names = [f"{frame.file}:{frame.function}" for frame in main.frames]
    roots = [i for i, name in enumerate(names) if ROOT.search(name)]
    inner = main.frames[: roots[0] + 1] if roots else main.frames
    return tell(Stack(main.tid, main.name, inner), source, None)


def starts(steps: Story) -> bool:
    """It imports what it needs: no data is made yet."""
    return any(step.file.startswith("<frozen importlib") for step in steps)


def user_line(steps: Story) -> Step | None:
    """The innermost line of the user's own code."""
    return next((step for step in reversed(steps) if not is_library(step.file)), None)


def name_of(step: Step) -> str:
    """`file:function`, as the patterns have it."""
    return f"{step.file}:{step.function}"


ANALYSIS = HelpersAnalysis()
