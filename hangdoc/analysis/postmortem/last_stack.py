"""Analysis `missed`: where a rank of a job that is gone stood, when it had not come to where the others waited.

Their wait lasted until a timeout, and its last stack was taken after that: what it stands in then it has stood in, or
come back to, for all that time. It is one look at it; what a file, a lock or a worker was like then nobody has seen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hangdoc.analysis import Case, Key
from hangdoc.analysis.culprits import Suspect
from hangdoc.analysis.data.storage import FOR_THREADS
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.evidence import FlightRecorder, Source, Stacks

_READS = frozenset({"read", "readline", "readlines", "readinto", "open"})
_NETWORK = re.compile(r"\((?:socket|ssl)\.py:\d+\)$")
_HELPERS = re.compile(r"multiprocessing/(?:pool|queues)\.py$")  # their results come from processes, not from threads
_OPENS = re.compile(r"(?<![\w.])(?:os\.|io\.)?open\(")
# What a `with` line without a call enters, and stands in with no frame of its own, is a lock written in C.
_CALLS = re.compile(r"[\w\])]\(")
_LOCK = re.compile(r"^(?:async )?with [\w.\[\]'\"]+(?: as \w+)?:|\.acquire\(")


@dataclass(frozen=True, slots=True)
class LastStackFacts:
    """One rank; None: it was there, or the job is watched, or nothing tells."""

    out: bool | None = None  # it had not come to where the others waited
    doing: str | None = None  # reads | writes | input | lock | lock file | native: what it stood in instead
    awaits: int | None = None  # it waited for a rank that by the groups of the others does not exist


UNSEEN = LastStackFacts()


@dataclass(frozen=True, slots=True)
class LastStackJob:
    silent: tuple[Suspect, ...] = ()  # ranks without a dump: all that left one waited until a timeout, or lost a peer
    together: bool = False  # every rank waited until its timeout, in the same collective


@dataclass(slots=True)
class LastStackAnalysis:
    name: str = "missed"
    order: int = 59
    rank_facts: type | None = LastStackFacts
    job_facts: type | None = LastStackJob

    def derive(self, case: Case) -> tuple[dict[Key, LastStackFacts], LastStackJob]:
        return {key: _facts(case, key) for key in case.ranks}, _job(case)


def _job(case: Case) -> LastStackJob:
    """gloo's dumps take what has failed for over: that a rank waited is known by its log."""
    dumps, recorder = case.job_facts["dumps"], case.rank_facts["recorder"]
    logs = case.rank_facts["logs"]
    here = [key for key in case.ranks if isinstance(case.record(key, "recorder"), FlightRecorder)]
    if dumps.kind is not None or not dumps.dumps or not all(logs[key].victim for key in here):
        return LastStackJob()
    if dumps.silent:
        return LastStackJob(tuple(map(Suspect, dumps.silent)))
    numbers = {recorder[key].sequence for key in here}
    waited = all(logs[key].timed_out for key in here)
    alone = len(here) < 2 or case.job_facts["position"].sides > 1
    return LastStackJob((), waited and not alone and len(numbers) == 1 and None not in numbers)


def _facts(case: Case, key: Key) -> LastStackFacts:
    dumps, logs = case.rank_facts["dumps"][key], case.rank_facts["logs"][key]
    if logs.awaits is not None and (job := _everybody(case, key)) and logs.awaits >= job:
        return LastStackFacts(awaits=logs.awaits)
    if not (dumps.absent or logs.behind) or logs.timed_out or case.ranks[key].alive is False:
        return UNSEEN
    stack: StackFacts = case.rank_facts["stack"][key]
    if _for_helpers(case, key, stack):
        return LastStackFacts(True, "input")
    return LastStackFacts(True, "lock" if _for_locked(case, key, stack) else _doing(stack))


def _everybody(case: Case, key: Key) -> int:
    """How many ranks the job has, by what the dumps of the other ranks say; 0: none says."""
    records = (case.record(other, "recorder") for other in case.ranks if other != key)
    groups = [group for record in records if isinstance(record, FlightRecorder) for group in record.groups]
    return max((len(group.ranks) for group in groups), default=0)


def _for_helpers(case: Case, key: Key, stack: StackFacts) -> bool:
    """The thread that tells its story waits for processes that it has work done by."""
    stacks = case.record(key, "stacks")
    threads = stacks.threads if isinstance(stacks, Stacks) and stack.phase == "idle" else ()
    mine = (frame.file for thread in threads if thread.name == stack.thread for frame in thread.frames)
    return any(_HELPERS.search(file) for file in mine)


def _for_locked(case: Case, key: Key, stack: StackFacts) -> bool:
    """It waits for threads of its own, and one of these stands at a lock."""
    stacks, source = case.record(key, "stacks"), case.record(key, "source")
    if not FOR_THREADS.search(stack.op or "") or not isinstance(stacks, Stacks) or not isinstance(source, Source):
        return False
    others = (thread.frames[0] for thread in stacks.threads if thread.frames and thread.name != stack.thread)
    places = (source.places.get(f"{frame.file}:{frame.line}") for frame in others)
    return any(place is not None and _LOCK.search(place.text) for place in places)


def _doing(stack: StackFacts) -> str | None:
    own = stack.leaf is not None and stack.leaf == stack.site  # in no other Python frame than the user's
    text = stack.text or ""
    if stack.phase == "checkpoint":
        return "reads" if "load" in (stack.op or "") else "writes"
    if stack.phase == "input":
        return "input"
    if stack.op in ("wait for a lock file", "wait for a compile lock"):
        return "lock file"
    if stack.phase not in ("idle", "unknown"):
        return None
    if stack.op == "acquire" or (own and _LOCK.search(text)):
        return "lock"
    if _NETWORK.search(stack.leaf or ""):
        return None
    if stack.op in _READS or (own and _OPENS.search(text)):
        return "reads"
    # A line of the user's own in which it stands with no other Python frame, and waits for nothing that has a name.
    return "native" if own and stack.op in (None, "pause") and _CALLS.search(text) else None


ANALYSIS = LastStackAnalysis()
