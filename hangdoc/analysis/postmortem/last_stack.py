"""Analysis `last_stack`: what blocked a rank of a dead job that never arrived at the collective its peers waited in.

Dumps or logs name that rank: its peers waited until a timeout, and its last stack was taken after that. The rank was
therefore blocked at that place, or kept returning to it, throughout the wait. Without dumps and logs, the stacks do: it
is in no collective, while its peers wait in one, or for a GPU that one holds up.

A stack is one look: the state of the file, lock or worker is unknown. `last_calls.yaml` says what a rank is blocked in.
Code in C has no Python frame. A dump with native frames shows what the innermost Python frame called; in another dump
only its source line does.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from typing import Any

import yaml

from hangdoc.analysis import Analysis, Case, Key, Suspect
from hangdoc.analysis.collectives.fr_diagnosis import DumpFacts, DumpJob
from hangdoc.analysis.collectives.recorder import RecorderFacts
from hangdoc.analysis.data.storage import FOR_THREADS
from hangdoc.analysis.logs.logs import LogsFacts, LogsJob
from hangdoc.analysis.ranks.call_path import Frames, is_library
from hangdoc.analysis.ranks.divergence import DivergenceJob
from hangdoc.analysis.ranks.exit import ExitFacts
from hangdoc.analysis.ranks.judged_thread import judged_thread
from hangdoc.analysis.ranks.stack import StackFacts, last_seen
from hangdoc.evidence import FlightRecorder, Source, Stacks
from hangdoc.evidence.logs import Aftermath

_READS = frozenset({"read", "readline", "readlines", "readinto", "open"})
_NETWORK = re.compile(r"\((?:socket|ssl)\.py:\d+\)$")
_HELPERS = re.compile(r"multiprocessing/(?:pool|queues)\.py$")  # results from processes, not from threads
# Functions of CPython's thread support and of libc, innermost first, as in `StackFacts.native_leaf`.
_NATIVE_LOCK = re.compile(r"\b(PyThread_acquire_lock\w*|_?PyMutex_Lock\w*|rlock_acquire)\b")
_NATIVE_READ = re.compile(r"^(__)?(libc_)?(p?readv?|open(at)?)(64)?(_nocancel)?\b")
_INTERPRETER = re.compile(r"^_?Py")  # it runs Python code
_OPENS = re.compile(r"(?<![\w.])(?:os\.|io\.)?open\(")
# A `with` line without a call that blocks without a frame of its own acquires a lock implemented in C.
_CALLS = re.compile(r"[\w\])]\(")
_LOCK = re.compile(r"^(?:async )?with [\w.\[\]'\"]+(?: as \w+)?:|\.acquire\(")


@dataclass(frozen=True, slots=True)
class LastStackFacts:
    """One rank of a dead job. None: the rank had arrived, the job was watched, or the evidence does not show it."""

    absent: bool | None = None  # it never arrived at the collective that its peers waited in
    # What it was blocked in instead: reads | writes | input | prepares | lock | lock file | download | subprocess |
    # compile | exception | native.
    blocked_in: str | None = None
    doing: str | None = None  # the same in words: "a download from the Hugging Face Hub"
    by_line: bool = False  # only the source line shows that, and no frame of the call on it
    by_stacks: bool = False  # only the stacks show that it was absent, and neither dumps nor logs
    elsewhere: bool = False  # only the stacks show that it was absent, and nothing that it was blocked in
    drives: bool = False  # a driver of the job: it waits for its workers, the ranks
    awaits: int | None = None  # rank that it waited for, but that does not exist in its peers' process groups


UNSEEN = LastStackFacts()
# Phases in which the frames decide what a rank is blocked in, and operations that do.
_OPEN = frozenset({"idle", "unknown", "compute", "compile", "startup", "input", "checkpoint"})
_PROMPTS = frozenset({"debugger prompt", "debugger client", "interpreter prompt", "password prompt"})
# What more than half of the ranks may be blocked in at the same time: storage, or a server, that all of them use.
ALIKE = frozenset({"reads", "writes", "input", "download", "lock file"})


@dataclass(frozen=True, slots=True)
class LastStackJob:
    silent: tuple[Suspect, ...] = ()  # ranks without a dump, if every rank with a dump timed out or lost a peer
    together: bool = False  # every rank timed out in the same collective
    all_wait: bool = False  # by their stacks, all ranks wait in the same operation, or for their GPU


class LastStackAnalysis(Analysis[LastStackFacts, LastStackJob]):
    rank_facts = LastStackFacts
    job_facts = LastStackJob

    def derive(self, case: Case) -> tuple[dict[Key, LastStackFacts], LastStackJob]:
        absent = _absent_by_stacks(case)
        facts = {key: _facts(case, key, key in absent) for key in case.ranks}
        return facts, replace(_job(case), all_wait=_all_wait(case))


# --- who is absent, by the stacks alone -----------------------------------------------------------


def _absent_by_stacks(case: Case) -> Collection[Key]:
    """The ranks that are in no collective while their peers wait for them; empty if dumps or logs know better.

    Half of the ranks at most: more of them are absent only if all of them are blocked in the same thing.
    """
    stack, logs = case.facts(StackFacts), case.facts(LogsFacts)
    if not _stacks_decide(case):
        return ()
    seen = {key for key in case.ranks if stack[key].waits is not None}
    starting = {key for key in seen if stack[key].phase == "startup" and stack[key].op != "import"}
    waited = {key for key, own in logs.items() if own.timed_out or own.victim}
    waiting = {key for key in seen if stack[key].waits} | waited or starting
    absent = {
        key
        for key in seen - waiting
        if stack[key].phase not in ("exited", "stopped", "teardown") and not _drives(case, key)
    }
    kinds = {_blocked_in(case, key)[0] for key in absent}
    if len(absent) > len(waiting) and (len(absent) < 2 or len(kinds) > 1 or not kinds <= ALIKE):
        return ()
    locked = kinds == {"lock file"} and len(absent) > 1 and _complete(case)  # then none of them holds it
    if not waiting and not locked and any(stack[key].phase not in ("input", "checkpoint") for key in absent):
        return ()  # perhaps no training
    return absent


def _complete(case: Case) -> bool:
    """True if no rank is missing among those that were seen, as far as their numbers show."""
    ranks = {rank.target.rank for rank in case.ranks.values()}
    return ranks == {None} or ranks == set(range(len(ranks)))


def _drives(case: Case, key: Key) -> bool:
    """True of a process that waits for the ranks, as the driver of a Ray job does."""
    call = _call(case, key, case.facts(StackFacts)[key])
    return call is not None and call.kind == "peers"


def _stacks_decide(case: Case) -> bool:
    """True if the job was not watched, and neither a dump nor a log nor the end of a rank shows who is at fault."""
    if len(case.ranks) < 2 or not all(isinstance(case.record(key, "aftermath"), Aftermath) for key in case.ranks):
        return False
    dumps, logs = case.job(DumpJob), case.facts(LogsFacts)
    if dumps.kind is not None or dumps.moving or case.job(LogsJob).behind:
        return False
    ended = any(rank.alive is False for rank in case.ranks.values())
    return not ended and not any(one.behind or one.first for one in logs.values())


def _all_wait(case: Case) -> bool:
    """True if every rank of the job was seen to wait, in one operation or for its GPU."""
    logs = case.facts(LogsFacts)
    if not _stacks_decide(case) or any(own.timed_out or own.victim for own in logs.values()):
        return False
    stack = case.facts(StackFacts)
    operations = {None if own.on_gpu else (own.phase, own.op) for own in stack.values() if own.waits}
    waits = all(own.waits or _drives(case, key) for key, own in stack.items())
    return waits and any(own.waits for own in stack.values()) and len(operations - {None}) < 2


# --- dumps and logs -------------------------------------------------------------------------------


def _job(case: Case) -> LastStackJob:
    """gloo's dumps mark failed collectives as complete, so only the logs show that a rank timed out."""
    dumps, recorder = case.job(DumpJob), case.facts(RecorderFacts)
    logs = case.facts(LogsFacts)
    dumped = [key for key in case.ranks if isinstance(case.record(key, "recorder"), FlightRecorder)]
    if dumps.kind is not None or not dumps.dumps or not all(logs[key].victim for key in dumped):
        return LastStackJob()
    if dumps.silent:
        return LastStackJob(tuple(map(Suspect, dumps.silent)))
    sequences = {recorder[key].sequence for key in dumped}
    timed_out = all(logs[key].timed_out for key in dumped)
    apart = len(dumped) < 2 or case.job(DivergenceJob).sides > 1
    return LastStackJob((), timed_out and not apart and len(sequences) == 1 and None not in sequences)


def _facts(case: Case, key: Key, by_stacks: bool) -> LastStackFacts:
    dumps, logs = case.facts(DumpFacts)[key], case.facts(LogsFacts)[key]
    if logs.awaits is not None and (size := _world_size(case, key)) and logs.awaits >= size:
        return LastStackFacts(awaits=logs.awaits)
    ended = case.ranks[key].alive is False and not _ended_by_watchdog(case, key)
    recorded = (dumps.absent or logs.behind) and not logs.timed_out and not ended
    if not (recorded or by_stacks):
        over = isinstance(case.record(key, "aftermath"), Aftermath)
        return LastStackFacts(drives=True) if over and _drives(case, key) else UNSEEN
    blocked_in, doing, by_line = _blocked_in(case, key)
    only_stacks = not recorded
    if only_stacks and blocked_in == "native":  # it may just compute
        blocked_in = None
    elsewhere = only_stacks and blocked_in in (None, "exception")
    return LastStackFacts(True, blocked_in, doing, by_line, only_stacks, elsewhere)


def _ended_by_watchdog(case: Case, key: Key) -> bool:
    """True if a thread that runs no Python aborted the rank, in a job whose collectives timed out.

    torch's heartbeat monitor does so to every rank once one has timed out (ProcessGroupNCCL.cpp, since torch 2.2).
    """
    return bool(case.facts(ExitFacts)[key].native_thread) and case.job(LogsJob).timeouts > 0


def _blocked_in(case: Case, key: Key) -> tuple[str | None, str | None, bool]:
    """What a rank is blocked in, the same in words, and whether only its source line shows that."""
    stack = last_seen(case, key) if _ended_by_watchdog(case, key) else case.facts(StackFacts)[key]
    if _waits_for_helpers(case, key, stack):
        return "input", None, False
    if _waits_for_locked_thread(case, key, stack):
        return "lock", None, True
    by_frames = _by_frames(stack)
    call = _call(case, key, stack)
    if by_frames not in (None, "native") or call is None or call.kind == "peers":
        by_line = _by_line(stack) if by_frames is None else None
        return by_frames or by_line, call.doing if call and call.kind == by_frames else None, by_line is not None
    return call.kind, call.doing, False


def _call(case: Case, key: Key, stack: StackFacts) -> LastCall | None:
    """The call in last_calls.yaml that a rank is in; None for one that waits for its peers or for a person."""
    thread = judged_thread(case, key)
    if thread is None or stack.phase not in _OPEN or stack.op in _PROMPTS:
        return None
    if stack.phase == "startup" and stack.op != "import":
        return None
    return last_call(thread.path.frames)


# --- what the frames show -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LastCall:
    """One entry of last_calls.yaml."""

    kind: str
    doing: str
    function: re.Pattern[str] | None
    file: re.Pattern[str] | None
    native: re.Pattern[str] | None
    own: str | None  # any | strict
    below: bool
    innermost: int | None

    def fits(self, frames: Frames) -> bool:
        """True if a frame of a thread, innermost first, shows it."""
        python = [frame for frame in frames if not frame[3]]
        if self.own and (is_library(python[0][1]) if python else self.own == "strict"):
            return False
        if self.native:
            return any(native and self.native.search(name) for name, _, _, native in frames)
        if self.below or self.innermost:
            user = next((at for at, frame in enumerate(python) if not is_library(frame[1])), len(python))
            python = python[:user]
        return any(self._fits(name, file) for name, file, _, _ in python[: self.innermost])

    def _fits(self, name: str, file: str) -> bool:
        if self.function and not self.function.search(name):
            return False
        return not (self.file and not self.file.search(file))


@lru_cache(maxsize=1)
def last_calls() -> tuple[LastCall, ...]:
    """The rules of last_calls.yaml, in order."""
    text = files("hangdoc.analysis.postmortem").joinpath("last_calls.yaml").read_text()
    return tuple(_last_call(row) for row in yaml.safe_load(text))


def _last_call(row: dict[str, Any]) -> LastCall:
    function, file, native = (re.compile(row[name]) if name in row else None for name in ("function", "file", "native"))
    below = bool(row.get("below"))
    return LastCall(row["in"], row["doing"], function, file, native, row.get("own"), below, row.get("innermost"))


@lru_cache(maxsize=1024)
def last_call(frames: Frames) -> LastCall | None:
    """The first rule that the frames of a thread fit."""
    return next((rule for rule in last_calls() if rule.fits(frames)), None)


def _world_size(case: Case, key: Key) -> int:
    """World size according to the dumps of the other ranks. 0: unknown."""
    records = (case.record(other, "recorder") for other in case.ranks if other != key)
    groups = [group for record in records if isinstance(record, FlightRecorder) for group in record.groups]
    return max((len(group.ranks) for group in groups), default=0)


def _waits_for_helpers(case: Case, key: Key, stack: StackFacts) -> bool:
    """The thread that stands for the rank waits for its helper processes."""
    stacks = case.record(key, "stacks")
    threads = stacks.threads if isinstance(stacks, Stacks) and stack.phase == "idle" else ()
    files = (frame.file for thread in threads if thread.name == stack.thread for frame in thread.frames)
    return any(_HELPERS.search(file) for file in files)


def _waits_for_locked_thread(case: Case, key: Key, stack: StackFacts) -> bool:
    """The rank waits for threads of its own, and one of them is at a lock."""
    stacks, source = case.record(key, "stacks"), case.record(key, "source")
    if not FOR_THREADS.search(stack.op or "") or not isinstance(stacks, Stacks) or not isinstance(source, Source):
        return False
    others = (thread.frames[0] for thread in stacks.threads if thread.frames and thread.name != stack.thread)
    places = (source.places.get(f"{frame.file}:{frame.line}") for frame in others)
    return any(place is not None and _LOCK.search(place.text) for place in places)


def _by_frames(stack: StackFacts) -> str | None:
    if stack.phase == "checkpoint":
        return "reads" if "load" in (stack.op or "") else "writes"
    if stack.phase == "input":
        return "input"
    if stack.phase == "compile" and stack.op != "wait for a compile lock":
        return "compile"
    if stack.op in ("wait for a lock file", "wait for a compile lock"):
        return "lock file"
    if stack.phase not in ("idle", "unknown"):
        return None
    if stack.op == "acquire":
        return "lock"
    if _NETWORK.search(stack.leaf or ""):
        return None
    if stack.op in _READS:
        return "reads"
    return _by_callee(stack.native_leaf, stack.op) if stack.native_leaf and _calls_c(stack) else None


def _by_callee(native: str, op: str | None) -> str | None:
    if _NATIVE_LOCK.search(native):
        return "lock"
    if _NATIVE_READ.search(native):
        return "reads"
    return "native" if op in (None, "pause") and not _INTERPRETER.search(native) else None


def _by_line(stack: StackFacts) -> str | None:
    """By the source line of the innermost Python frame."""
    text = stack.text or ""
    if stack.native_leaf or not _calls_c(stack):
        return None
    if _LOCK.search(text):
        return "lock"
    if _OPENS.search(text):
        return "reads"
    return "native" if stack.op in (None, "pause") and _CALLS.search(text) else None


def _calls_c(stack: StackFacts) -> bool:
    """The innermost Python frame is the user's own, so a call on its line is of code in C."""
    return stack.phase in ("idle", "unknown") and stack.leaf is not None and stack.leaf == stack.site


ANALYSIS = LastStackAnalysis()
