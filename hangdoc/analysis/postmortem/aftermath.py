"""Analysis `aftermath`: what may be presumed of a job that is gone, or of which somebody pasted a stack.

Nobody dumps the stacks of a job that is well: where a rank stands in a wait, and nothing says otherwise, it is
presumed that it stood there for good. A presumption costs confidence.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from hangdoc.analysis import Case, Key
from hangdoc.evidence import Stacks
from hangdoc.evidence.logs import Aftermath

TELLING = frozenset({"stacks", "recorder", "sockets"})


@dataclass(frozen=True, slots=True)
class AftermathFacts:
    """One rank."""

    left: tuple[str, ...] = ()  # kinds of record found of it; empty: it was watched
    presumed: bool = False  # that it stands still nobody has seen
    stuck: bool | None = None


@dataclass(frozen=True, slots=True)
class AftermathJob:
    post_mortem: bool = False
    doubt: str = ""  # why less is certain than of a job that was watched; empty: nothing is


@dataclass(slots=True)
class AftermathAnalysis:
    name: str = "aftermath"
    order: int = 58
    rank_facts: type | None = AftermathFacts
    job_facts: type | None = AftermathJob

    def derive(self, case: Case) -> tuple[dict[Key, AftermathFacts], AftermathJob]:
        if not any(isinstance(case.record(key, "aftermath"), Aftermath) for key in case.ranks):
            return dict.fromkeys(case.ranks, AftermathFacts()), AftermathJob()
        facts = {key: _facts(case, key) for key in case.ranks}
        return facts, AftermathJob(True, _doubt(facts.values()))


def _facts(case: Case, key: Key) -> AftermathFacts:
    record = case.record(key, "aftermath")
    if not isinstance(record, Aftermath):
        return AftermathFacts()
    proved = any(getattr(facts.get(key), "stuck", None) is True for facts in case.rank_facts.values())
    seen_again = case.rank_facts["progress"][key].standing_looks > 1
    if proved or seen_again or case.ranks[key].alive is False:
        return AftermathFacts(record.left, False, None if not seen_again or proved else not _runs(case, key))
    presumed = "stacks" in record.left and not _runs(case, key)
    return AftermathFacts(record.left, presumed, True if presumed else None)


def _doubt(facts: Collection[AftermathFacts]) -> str:
    if any(one.presumed for one in facts):
        return "nobody watched the job: that it stood still is presumed"
    if not any(TELLING & set(one.left) for one in facts):
        return "known from logs alone"
    return ""


def _runs(case: Case, key: Key) -> bool:
    """Its main thread was on a CPU when its stack was taken."""
    stacks = case.record(key, "stacks")
    return isinstance(stacks, Stacks) and any(
        thread.active and (thread.name in (None, "MainThread")) for thread in stacks.threads
    )


ANALYSIS = AftermathAnalysis()
