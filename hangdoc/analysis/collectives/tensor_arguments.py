"""Analysis `payload`: the tensors that ranks pass to the same collective, from the arguments on their stacks."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from hangdoc.analysis import Analysis, Case, Key
from hangdoc.analysis.collectives.wait_graph import WaitGraphFacts
from hangdoc.analysis.ranks.call_path import is_library
from hangdoc.analysis.ranks.conditions import targets
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.analysis.thresholds import MIN_LOOKS
from hangdoc.evidence import Frame, Place, Source, Stack, Stacks, Tensor

ARGUMENTS = ("tensor", "output", "output_tensor", "input", "input_tensor", "inp")
WORD = re.compile(r"\w+")
# Looks at one call before the tensors of running ranks are compared: a tensor is read after its stack, and by then the
# rank may have moved on, with another tensor in the same variable.

# Site in user code, c10d function, "file:line", lines of the libraries in between: broadcast_object_list calls
# broadcast twice, first with the sizes.
Call = tuple[str, str, str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class TensorArgumentFacts:
    """The tensor of one rank's collective; None: not readable, or no peer to compare it with."""

    shape: str | None = None  # "[64, 10]"
    dtype: str | None = None  # "float32"
    elements: int | None = None  # number of elements
    differs: bool | None = None  # number of elements or dtype differs from that of most ranks
    call: str | None = None  # "all_reduce at train (train.py:24)"


@dataclass(frozen=True, slots=True)
class TensorArgumentJob:
    """The tensors passed to one call of the job; None: none could be compared."""

    mismatch: bool | None  # size or dtype differs between ranks
    standing: bool | None  # the ranks are in that call now
    often: bool | None  # it differed repeatedly while the ranks ran


class TensorArgumentAnalysis(Analysis[TensorArgumentFacts, TensorArgumentJob]):
    rank_facts = TensorArgumentFacts
    job_facts = TensorArgumentJob

    def derive(self, case: Case) -> tuple[dict[Key, TensorArgumentFacts], TensorArgumentJob]:
        facts = dict.fromkeys(case.ranks, TensorArgumentFacts())
        seen = {key: _arguments(case, key) for key in case.ranks}
        here = _standing(case, seen)
        standing = bool(here)
        often = _often(case, seen)
        if not _differ(here) and often:
            here, standing = often, False
        if not here:
            return facts, TensorArgumentJob(None, None, None)
        kinds = [_kind(tensor) for _, tensor in here.values()]
        common = max(dict.fromkeys(kinds), key=kinds.count)
        facts.update({key: _facts(call, tensor, common) for key, (call, tensor) in here.items()})
        return facts, TensorArgumentJob(_differ(here), standing, _differ(often))


def _differ(here: Mapping[Key, tuple[Call, Tensor]]) -> bool:
    return len({_kind(tensor) for _, tensor in here.values()}) > 1


def _often(case: Case, seen: Mapping[Key, Sequence[tuple[Call, Tensor]]]) -> dict[Key, tuple[Call, Tensor]]:
    """The tensors that running ranks repeatedly pass to one call, if they differ between ranks."""
    sources = {key: [record for record in case.distinct(key, "source") if isinstance(record, Source)] for key in seen}
    held = {key: _passed_variables(case, key, known) for key, known in sources.items()}
    return _usual(held) or _usual({key: _without_iterated(case, handed, sources[key]) for key, handed in seen.items()})


def _standing(case: Case, seen: Mapping[Key, Sequence[tuple[Call, Tensor]]]) -> dict[Key, tuple[Call, Tensor]]:
    """The ranks that are in the same call on the same process group now.

    Empty if a rank of the group lives and is elsewhere: its peers wait for that rank, and may be at different tensors.
    A rank in an unknown group may be in any.
    """
    stack, group = case.facts(StackFacts), case.facts(WaitGraphFacts)
    there = {
        key: (*handed[-1][0], name)
        for key, handed in seen.items()
        if handed and stack[key].waits and stack[key].site == handed[-1][0][0] and (name := group[key].name)
    }
    call, times = Counter(there.values()).most_common(1)[0] if there else (None, 0)
    if call is None or times < 2:
        return {}
    here = [key for key in there if there[key] == call]
    absent = {rank for key in here for rank in group[key].absent}
    elsewhere = any(
        there.get(key) != call
        and (
            (facts.waits and group[key].name in (call[-1], None))
            or (case.ranks[key].target.rank in absent and case.ranks[key].alive is not False)
        )
        for key, facts in stack.items()
    )
    return {} if elsewhere else {key: seen[key][-1] for key in here}


def _usual(seen: Mapping[Key, Sequence[tuple[Call, Tensor]]]) -> dict[Key, tuple[Call, Tensor]]:
    """A call to which each of two or more ranks always passed one kind of tensor, and the kinds differ."""
    calls: dict[Call, dict[Key, list[Tensor]]] = defaultdict(lambda: defaultdict(list))
    for key, handed in seen.items():
        for call, tensor in handed:
            calls[call][key].append(tensor)
    for call, by_rank in calls.items():
        steady = {k: ts[0] for k, ts in by_rank.items() if len(ts) >= MIN_LOOKS and len({_kind(t) for t in ts}) == 1}
        if len({_kind(t) for t in steady.values()}) > 1:
            return {key: (call, tensor) for key, tensor in steady.items()}
    return {}


def _passed_variables(case: Case, key: Key, sources: Sequence[Source]) -> list[tuple[Call, Tensor]]:
    """Values, in each look, of the variables that a function passes to collectives, wherever in it the rank was."""
    found: list[tuple[Call, Tensor]] = []
    lines = {at: place for source in sources for at, place in _passing_lines(case, source).items()}
    for frame in (frame for stack in _threads(case, key) for frame in stack.frames) if lines else ():
        place = lines.get(f"{frame.file}:{frame.line}")
        tensors = {v.name: v.tensor for v in frame.variables or () if v.tensor is not None} if place else {}
        for argument in place.hands if place else ():
            if (tensor := tensors.get(argument.name)) is not None:
                found.append((_call(frame, argument.op, argument.line), tensor))
    return found


def _passing_lines(case: Case, source: Source) -> Mapping[str, Place]:
    """The lines in functions that pass variables to collectives, by "file:line"."""
    known: dict[int, dict[str, Place]] = case.once("passing lines", dict)
    if id(source.places) not in known:
        known[id(source.places)] = {at: place for at, place in source.places.items() if place.hands}
    return known[id(source.places)]


def _threads(case: Case, key: Key) -> list[Stack]:
    """The threads of a rank in each look, oldest first."""
    return [stack for _, stacks in case.series(key, "stacks") if isinstance(stacks, Stacks) for stack in stacks.threads]


def _arguments(case: Case, key: Key) -> list[tuple[Call, Tensor]]:
    """The tensors a rank was seen passing to collectives, oldest first."""
    found: list[tuple[Call, Tensor]] = []
    passed: list[tuple[Call, Tensor]] = []
    before = None
    for _, stacks in case.series(key, "stacks"):
        if stacks is not before:
            threads = stacks.threads if isinstance(stacks, Stacks) else ()
            passed = [argument for stack in threads if (argument := _argument(stack.frames)) is not None]
        found += passed
        before = stacks
    return found


def _argument(frames: Sequence[Frame]) -> tuple[Call, Tensor] | None:
    """The tensor argument of the innermost c10d function, and its call."""
    for i, frame in enumerate(frames):
        if frame.file.endswith("torch/distributed/distributed_c10d.py"):
            by_name = {v.name: v.tensor for v in frame.variables or () if v.tensor is not None}
            tensor = next((by_name[name] for name in ARGUMENTS if name in by_name), None)
            python = [f for f in frames[i + 1 :] if not f.native]
            depth = next((at for at, f in enumerate(python) if not is_library(f.file)), None)
            if tensor is None or depth is None or frame.function.startswith("all_to_all"):
                return None  # in an exchange, each rank may have parts of another size
            own, between = python[depth], tuple(f.line or 0 for f in python[:depth])
            return _call(own, frame.function, own.line, between), tensor
    return None


def _call(own: Frame, op: str, line: int | None, between: tuple[int, ...] = ()) -> Call:
    return _named(own.function, own.file, own.short or own.file, op, line, between)


@lru_cache(maxsize=1024)  # many ranks call from the same line
def _named(function: str, file: str, short: str, op: str, line: int | None, between: tuple[int, ...]) -> Call:
    return f"{function} ({short.rsplit('/', 1)[-1]}:{line})", op, f"{file}:{line}", between


def _without_iterated(
    case: Case, handed: Sequence[tuple[Call, Tensor]], sources: Sequence[Source]
) -> Sequence[tuple[Call, Tensor]]:
    """Drop calls made for each item of a list, such as a model's parameters: the tensor differs every time."""
    if not handed:
        return handed
    known: dict[Hashable, bool] = case.once("iterated", dict)
    identity = tuple(map(id, sources))
    for at in {call[2] for call, _ in handed}:
        if (at, identity) not in known:
            known[at, identity] = _is_iterated(at, sources)
    return [(call, tensor) for call, tensor in handed if not known[call[2], identity]]


def _is_iterated(at: str, sources: Sequence[Source]) -> bool:
    place = next((source.places[at] for source in sources if at in source.places), None)
    return place is not None and any(targets(loop.header) & set(WORD.findall(place.text)) for loop in place.loops)


def _facts(call: Call, tensor: Tensor, common: tuple[int, str]) -> TensorArgumentFacts:
    return TensorArgumentFacts(
        shape=str(list(tensor.shape)),
        dtype=tensor.dtype,
        elements=prod(tensor.shape),
        differs=_kind(tensor) != common,
        call=f"{call[1]} at {call[0]}",
    )


def _kind(tensor: Tensor) -> tuple[int, str]:
    return prod(tensor.shape), tensor.dtype


ANALYSIS = TensorArgumentAnalysis()
