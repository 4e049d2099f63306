"""Analysis `sync`: do the replicas exchange gradients, or does the forward pass bypass the DDP or FSDP wrapper?

DDP's hooks run in the wrapper's forward (torch/nn/parallel/distributed.py, torch 2.13). A loss computed through
`model.module` skips them, and every rank trains on its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from hangdoc.analysis import Analysis, Case, Key
from hangdoc.analysis.network import tcp_counters
from hangdoc.analysis.network.data_connections import data_connections
from hangdoc.analysis.ranks.call_path import Step
from hangdoc.analysis.ranks.progress import Look, activities, looks_at, own_steps
from hangdoc.analysis.thresholds import BACKWARD_LOOKS, HALF, MODEL_EXCHANGES
from hangdoc.evidence import Connection
from hangdoc.evidence.parameters import Parameters

WRAPPER = re.compile(r"<(DistributedDataParallel|FullyShardedDataParallel|DDP|FSDP) at ")
UNWRAPPED = re.compile(r"^(.+)\.module(?:\.(\w+))?$")  # calls: model.module(x), model.module.loss(x)
# methods of an unwrapped module without a gradient
NO_FORWARD = re.compile(
    r"^((load_)?state_dict|(named_)?(parameters|modules|buffers|children)|train|eval|to|cpu|cuda|half|float|bfloat16"
    r"|zero_grad|requires_grad_|register_\w+|apply|compile|generate|save\w*|load\w*)$"
)
DEFERRED = re.compile(r"(^|\.)no_sync$")
JOINED = re.compile(r"(^|\.)Join$")  # torch/distributed/algorithms/join.py
BACKWARD = re.compile(r"(^|\.)backward$")


@dataclass(frozen=True, slots=True)
class GradientSyncFacts:
    """One rank over all looks; None: not seen."""

    wrapped: str | None = None  # variable that holds a DDP or FSDP model: "model"
    bypass: str | None = None  # the call that bypasses the wrapper: "model.module in train (train.py)"
    uncalled: str | None = None  # wrapped model not called where backward is: "model in train (train.py)"
    trains: bool | None = None  # it was seen in a function that calls backward
    reduced: bool | None = None  # it was seen in a collective within backward, in at least two looks
    bytes_per_s: float | None = None  # sent to and received from its peers, since it was first seen training
    # It exchanged its model with its peers more than once, and hardly anything since: local steps between averages.
    averages: bool | None = None
    deferred: bool | None = None  # its code defers synchronisation on purpose (no_sync)
    # Its code lets ranks that are out of data stand by (Join, DDP.join): they get the model of the others at the end.
    joined: bool | None = None


UNSEEN = GradientSyncFacts()


class GradientSyncAnalysis(Analysis[GradientSyncFacts, None]):
    rank_facts = GradientSyncFacts
    seen_by = ("source", "aftermath")

    def derive(self, case: Case) -> tuple[dict[Key, GradientSyncFacts], None]:
        data = data_connections(case)
        return {key: _facts(case, key, [link.connection for link in data.get(key, ())]) for key in case.ranks}, None


def _facts(case: Case, key: Key, data: Sequence[Connection]) -> GradientSyncFacts:
    looks = looks_at(case, key)
    if not looks:
        return UNSEEN
    own = own_steps(looks)
    known: dict[Step, str | None] = case.once("wrapped", dict)  # ranks with the same variables share steps
    wraps = [(step, wrapped) for step in own if (wrapped := _wrapped(step, known))]
    code = case.once(("sync", activities(looks)), lambda: _code(looks, own))
    bytes_per_s = None if code.since is None else _rate(case, key, data, looks[code.since].at_s)
    return GradientSyncFacts(
        wrapped=wraps[0][1] if wraps else None,
        bypass=code.bypass,
        uncalled=next((site for step, wrapped in wraps if (site := _uncalled(step, wrapped))), None) if wraps else None,
        trains=code.trains,
        reduced=code.reduced,
        bytes_per_s=bytes_per_s,
        averages=_averages(case, key, data, bytes_per_s),
        deferred=code.deferred,
        joined=code.joined or any(_joins(step, wrapped) for step, wrapped in wraps),
    )


@dataclass(frozen=True, slots=True)
class _Code:
    """Facts that follow from the code a rank was seen in.

    A framework calls backward for the user, so its frames show training too. What bypasses or defers the exchange is
    looked for in the user's code alone: a framework has code for every case.
    """

    bypass: str | None
    trains: bool
    reduced: bool
    deferred: bool
    joined: bool
    since: int | None  # index of the first look at which it trained


def _code(looks: Sequence[Look], own: Sequence[Step]) -> _Code:
    around = {step.place.around for step in own if step.place}
    anywhere = {step.place.around for look in looks for step in look.path.steps if step.place}
    return _Code(
        bypass=next((site for step in own if (site := _bypass(step))), None),
        trains=any(_has(BACKWARD, calls) for calls in anywhere),
        reduced=sum(look.phase == "collective" and _in_backward(look) for look in looks) >= BACKWARD_LOOKS,
        deferred=any(_has(DEFERRED, calls) for calls in around),
        joined=any(_has(JOINED, calls) for calls in around),
        since=next((at for at, look in enumerate(looks) if _trains(look)), None),
    )


def _trains(look: Look) -> bool:
    """True if it is within a loop, in code that calls backward."""
    places = [step.place for step in look.path.steps if step.place]
    return any(place.loops for place in places) and any(_has(BACKWARD, place.around) for place in places)


@lru_cache(maxsize=1024)
def _has(call: re.Pattern[str], around: tuple[str, ...]) -> bool:
    return any(call.search(name) for name in around)


def _joins(step: Step, wrapped: str) -> bool:
    return step.place is not None and f"{wrapped}.join" in step.place.around


def _rate(case: Case, key: Key, data: Sequence[Connection], since_s: float) -> float | None:
    """Bytes/s to and from peers since `since_s`: earlier traffic is the wrapper's broadcast of the model."""
    if not data:
        return None
    history = tcp_counters.SocketHistory(case.series(key, "sockets"))
    since = next((at for at, (instant, _) in enumerate(history.samples) if instant >= since_s), len(history.samples))
    if len(history.samples) - since < 2:
        return None
    seconds = history.samples[-1][0] - history.samples[since][0]
    crossed = tcp_counters.bytes_between(history.known(since), data)
    return crossed / seconds if crossed is not None else None


def _averages(case: Case, key: Key, data: Sequence[Connection], bytes_per_s: float | None) -> bool | None:
    """True if the model crossed several times, and not at the rate at which bytes cross now; None: not known.

    A broadcast of the model at the start is one time, or two for a rank that passes it on. What crosses in each step,
    such as a loss, has crossed in all steps before; torch counts these.
    """
    newest = case.record(key, "parameters")
    if bytes_per_s is None or not isinstance(newest, Parameters) or not newest.size:
        return None
    moved = sum((one.bytes_acked or 0) + (one.bytes_received or 0) for one in data)
    if moved < MODEL_EXCHANGES * newest.size:
        return False
    looks = [(at_s, one) for at_s, one in case.series(key, "parameters") if isinstance(one, Parameters)]
    (start_s, first), (end_s, last) = looks[0], looks[-1]
    before, now = _changes(first), _changes(last)
    if now <= before:
        return None
    at_this_rate = bytes_per_s * (end_s - start_s) * now / (now - before)  # bytes, over all changes
    return at_this_rate < HALF * moved


def _changes(parameters: Parameters) -> int:
    """How often the optimizer has changed a parameter, by torch's count."""
    return max((value.version for one in parameters.parameters if one.trainable for value in one.values), default=0)


def _in_backward(look: Look) -> bool:
    return any(step.function == "_engine_run_backward" for step in look.path.steps)


def _wrapped(step: Step, known: dict[Step, str | None]) -> str | None:
    """The variable of a frame that holds a wrapped model."""
    if step not in known:
        texts = [(v.name, v.text) for v in step.variables.values() if " at " in v.text]
        known[step] = next((name for name, text in texts if WRAPPER.search(text)), None)
    return known[step]


def _bypass(step: Step) -> str | None:
    """The call of an unwrapped model in a function that never calls its wrapper."""
    call = _unwrapped(step.place.around) if step.place else None
    return f"{call} in {_format_site(step)}" if call else None


@lru_cache(maxsize=1024)
def _unwrapped(around: tuple[str, ...]) -> str | None:
    for name in around:
        found = UNWRAPPED.match(name)
        if found and found.group(1) not in around and not NO_FORWARD.match(found.group(2) or ""):
            return name
    return None


def _uncalled(step: Step, wrapped: str) -> str | None:
    """A wrapped model that is not called in a function that calls backward."""
    calls = step.place.around if step.place else ()
    return f"{wrapped} in {_format_site(step)}" if wrapped not in calls and _has(BACKWARD, calls) else None


def _format_site(step: Step) -> str:
    return f"{step.function} ({step.base})"


ANALYSIS = GradientSyncAnalysis()
