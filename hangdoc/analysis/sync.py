"""Analysis `sync`: do the replicas exchange gradients, or does the forward pass go round the wrapper that does it.

DDP's hooks run in the wrapper's own forward (torch/nn/parallel/distributed.py, 2.13); a loss that comes from
`model.module` leaves them out, and every rank trains alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hangdoc.analysis import Case, Key
from hangdoc.analysis.progress import looks_at
from hangdoc.analysis.story import Step, is_library

WRAPPER = re.compile(r"<(DistributedDataParallel|FullyShardedDataParallel|DDP|FSDP) at ")
UNWRAPPED = re.compile(r"^(.+)\.module(\.forward)?$")  # called: model.module(x)
ON_PURPOSE = re.compile(r"(^|\.)(no_sync|join)$")
TRAINS = re.compile(r"(^|\.)backward$")


@dataclass(frozen=True, slots=True)
class SyncFacts:
    """One rank, over the looks."""

    wrapped: str | None = None  # variable that holds a wrapped model
    bypass: str | None = None  # the call that goes round the wrapper: "model.module in train (train.py:24)"
    trains: bool | None = None  # it was seen in, or in a function that does, backward
    waited: bool | None = None  # it was seen waiting for the others
    deferred: bool | None = None  # its code defers synchronisation on purpose (no_sync, join)


@dataclass(slots=True)
class SyncAnalysis:
    name: str = "sync"
    order: int = 50
    rank_facts: type | None = SyncFacts
    job_facts: type | None = None

    def derive(self, case: Case) -> tuple[dict[Key, SyncFacts], None]:
        return {key: _facts(case, key) for key in case.ranks}, None


def _facts(case: Case, key: Key) -> SyncFacts:
    looks = looks_at(case, key)
    if not looks:
        return SyncFacts()
    steps = [step for look in looks for step in look.story if not is_library(step.file)]
    calls = {name for step in steps if step.place for name in step.place.around}
    return SyncFacts(
        wrapped=next((v.name for step in steps for v in step.variables.values() if WRAPPER.search(v.text)), None),
        bypass=next((site for step in steps if (site := _bypass(step))), None),
        trains=any(TRAINS.search(name) for name in calls),
        waited=any(look.phase in ("collective", "p2p") for look in looks),
        deferred=any(ON_PURPOSE.search(name) for name in calls),
    )


def _bypass(step: Step) -> str | None:
    """The call of an unwrapped model in a function that never calls the wrapper itself."""
    calls = step.place.around if step.place else ()
    for name in calls:
        found = UNWRAPPED.match(name)
        if found and found.group(1) not in calls:
            return f"{name} in {step.function} ({step.short.rsplit('/', 1)[-1]})"
    return None


ANALYSIS = SyncAnalysis()
