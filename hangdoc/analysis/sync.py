"""Analysis `sync`: do the replicas exchange gradients, or does the forward pass go round the wrapper that does it.

DDP's hooks run in the wrapper's own forward (torch/nn/parallel/distributed.py, 2.13); a loss that comes from
`model.module` leaves them out, and every rank trains alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hangdoc.analysis import Case, Key
from hangdoc.analysis.progress import Look, looks_at
from hangdoc.analysis.story import Step, is_library

WRAPPER = re.compile(r"<(DistributedDataParallel|FullyShardedDataParallel|DDP|FSDP) at ")
UNWRAPPED = re.compile(r"^(.+)\.module(?:\.(\w+))?$")  # called: model.module(x), model.module.loss(x)
# methods of a bare module that no gradient passes through
NO_FORWARD = re.compile(
    r"^((load_)?state_dict|(named_)?(parameters|modules|buffers|children)|train|eval|to|cpu|cuda|half|float|bfloat16"
    r"|zero_grad|requires_grad_|register_\w+|apply|compile|generate|save\w*|load\w*)$"
)
ON_PURPOSE = re.compile(r"(^|\.)no_sync$")
TRAINS = re.compile(r"(^|\.)backward$")


@dataclass(frozen=True, slots=True)
class SyncFacts:
    """One rank, over the looks."""

    wrapped: str | None = None  # variable that holds a wrapped model
    bypass: str | None = None  # the call that goes round the wrapper: "model.module in train (train.py)"
    uncalled: str | None = None  # a wrapped model that the function which calls backward never calls
    trains: bool | None = None  # it was seen in, or in a function that does, backward
    reduced: bool | None = None  # it was seen waiting for the others within backward
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
        uncalled=next((site for step in steps if (site := _uncalled(step))), None),
        trains=any(TRAINS.search(name) for name in calls),
        reduced=any(look.phase == "collective" and _in_backward(look) for look in looks),
        deferred=any(ON_PURPOSE.search(name) for name in calls),
    )


def _in_backward(look: Look) -> bool:
    return any(step.function == "_engine_run_backward" for step in look.story)


def _bypass(step: Step) -> str | None:
    """The call of an unwrapped model in a function that never calls the wrapper itself."""
    calls = step.place.around if step.place else ()
    for name in calls:
        found = UNWRAPPED.match(name)
        if found and found.group(1) not in calls and not NO_FORWARD.match(found.group(2) or ""):
            return f"{name} in {_where(step)}"
    return None


def _uncalled(step: Step) -> str | None:
    calls = step.place.around if step.place else ()
    wrapped = next((v.name for v in step.variables.values() if WRAPPER.search(v.text)), None)
    if wrapped is None or wrapped in calls or not any(TRAINS.search(name) for name in calls):
        return None
    return f"{wrapped} in {_where(step)}"


def _where(step: Step) -> str:
    return f"{step.function} ({step.short.rsplit('/', 1)[-1]})"


ANALYSIS = SyncAnalysis()
