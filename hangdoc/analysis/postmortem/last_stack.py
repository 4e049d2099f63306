"""Analysis `missed`: what blocked a rank of a dead job that never arrived at the collective its peers waited in.

Its peers waited until a timeout, and its last stack was taken after that. The rank was therefore blocked at that place,
or kept returning to it, throughout the wait. A stack is one look: the state of the file, lock or worker is unknown.
Code in C has no Python frame. A dump with native frames shows what the innermost Python frame called; in another dump
only its source line does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hangdoc.analysis import Analysis, Case, Key, Suspect
from hangdoc.analysis.collectives.fr_diagnosis import DumpFacts, DumpJob
from hangdoc.analysis.collectives.recorder import RecorderFacts
from hangdoc.analysis.data.storage import FOR_THREADS
from hangdoc.analysis.logs.logs import LogsFacts
from hangdoc.analysis.ranks.divergence import DivergenceJob
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.evidence import FlightRecorder, Source, Stacks

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
    blocked_in: str | None = None  # what it was blocked in instead: reads | writes | input | lock | lock file | native
    by_line: bool = False  # only the source line shows that, and no frame of the call on it
    awaits: int | None = None  # rank that it waited for, but that does not exist in its peers' process groups


UNSEEN = LastStackFacts()


@dataclass(frozen=True, slots=True)
class LastStackJob:
    silent: tuple[Suspect, ...] = ()  # ranks without a dump, if every rank with a dump timed out or lost a peer
    together: bool = False  # every rank timed out in the same collective


class LastStackAnalysis(Analysis[LastStackFacts, LastStackJob]):
    rank_facts = LastStackFacts
    job_facts = LastStackJob

    def derive(self, case: Case) -> tuple[dict[Key, LastStackFacts], LastStackJob]:
        return {key: _facts(case, key) for key in case.ranks}, _job(case)


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


def _facts(case: Case, key: Key) -> LastStackFacts:
    dumps, logs = case.facts(DumpFacts)[key], case.facts(LogsFacts)[key]
    if logs.awaits is not None and (size := _world_size(case, key)) and logs.awaits >= size:
        return LastStackFacts(awaits=logs.awaits)
    if not (dumps.absent or logs.behind) or logs.timed_out or case.ranks[key].alive is False:
        return UNSEEN
    stack = case.facts(StackFacts)[key]
    if _waits_for_helpers(case, key, stack):
        return LastStackFacts(True, "input")
    if _waits_for_locked_thread(case, key, stack):
        return LastStackFacts(True, "lock", by_line=True)
    by_frames, by_line = _by_frames(stack), _by_line(stack)
    return LastStackFacts(True, by_frames or by_line, by_line=by_line is not None and by_frames is None)


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
