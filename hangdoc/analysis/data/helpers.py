"""Analysis `helpers`: what the helper processes of each rank do, and whether the rank waits for them.

Helpers are dataloader and pool workers, tokenisers, feeders. A rank that waits for helpers goes on as long as one of
them works; where one is dead, stopped or deadlocked and no other does anything, it cannot go on by itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from hangdoc.analysis import Case, Key
from hangdoc.analysis.data.workers import TELLING, Worker, name_of, user_line, workers_of
from hangdoc.analysis.ranks.call_path import CallPath, Code, is_library
from hangdoc.analysis.ranks.progress import Look, looks_at
from hangdoc.evidence import Io, Stacks

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
    frame = _frame(looks[-1].path)
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


def _frame(story: CallPath) -> str | None:
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


ANALYSIS = HelpersAnalysis()
