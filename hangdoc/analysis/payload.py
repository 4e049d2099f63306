"""Analysis `payload`: what the ranks hand to the collective they wait in, from the arguments on their stacks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod

from hangdoc.analysis import Case, Key
from hangdoc.evidence import Frame, Stacks, Tensor, Variable

ARGUMENTS = ("tensor", "output", "output_tensor", "input", "input_tensor", "inp")


@dataclass(frozen=True, slots=True)
class PayloadFacts:
    """The tensor of one rank's collective; None: no such argument was readable."""

    shape: str | None = None  # "[64, 10]"
    dtype: str | None = None
    elements: int | None = None
    differs: bool | None = None  # another number of elements or type than most ranks at the same line hand over
    shapes: tuple[str, ...] = ()  # every "[64, 10] float32" it handed over at this line while we watched


@dataclass(frozen=True, slots=True)
class PayloadJob:
    mismatch: bool | None  # ranks at the same line hand over different sizes or types; None: fewer than two were read
    always: bool | None  # and did so in every look


@dataclass(slots=True)
class PayloadAnalysis:
    name: str = "payload"
    order: int = 15
    rank_facts: type | None = PayloadFacts
    job_facts: type | None = PayloadJob

    def derive(self, case: Case) -> tuple[dict[Key, PayloadFacts], PayloadJob]:
        seen = {key: _handed(case, key) for key in case.ranks}
        facts = {key: PayloadFacts() for key in case.ranks}
        calls = {key: _call(case, key) for key, kinds in seen.items() if kinds}
        call, times = Counter(calls.values()).most_common(1)[0] if calls else (None, 0)
        if times < 2:  # nobody hands a tensor to the same call as another rank
            return facts, PayloadJob(None, None)
        here = {key: seen[key] for key in calls if calls[key] == call}
        common = _most([kinds[-1] for kinds in here.values()])
        facts.update({key: _facts(kinds, common) for key, kinds in here.items()})
        known = list(here.values())
        mismatch = len({_key(kinds[-1]) for kinds in known}) > 1
        apart = not set.intersection(*({_key(t) for t in kinds} for kinds in known))
        return facts, PayloadJob(mismatch, mismatch and apart)


def _call(case: Case, key: Key) -> tuple[str | None, ...]:
    """What must agree before two ranks' tensors are compared: the line, the operation, the process group."""
    stack, group = case.rank_facts["stack"][key], case.rank_facts["group"][key]
    return stack.site, stack.op, group.name


def _handed(case: Case, key: Key) -> list[Tensor]:
    """The tensors a rank handed to a collective at the line where the others' newest collective is, oldest first."""
    site = case.rank_facts["stack"][key].site
    found: list[tuple[str | None, Tensor]] = []
    for _, stacks in case.series(key, "stacks"):
        if isinstance(stacks, Stacks):
            found += [(_caller(frames, i), t) for frames in _chains(stacks) for i, t in _arguments(frames)]
    return [tensor for caller, tensor in found if caller == site]


def _chains(stacks: Stacks) -> list[tuple[Frame, ...]]:
    return [stack.frames for stack in stacks.threads]


def _arguments(frames: tuple[Frame, ...]) -> list[tuple[int, Tensor]]:
    """Tensors that a c10d function was called with, and the index of its frame."""
    for i, frame in enumerate(frames):
        if frame.file.endswith("torch/distributed/distributed_c10d.py"):
            by_name: dict[str, Variable] = {v.name: v for v in frame.variables or () if v.tensor is not None}
            tensor = next((by_name[name].tensor for name in ARGUMENTS if name in by_name), None)
            return [(i, tensor)] if tensor is not None else []
    return []


def _caller(frames: tuple[Frame, ...], index: int) -> str | None:
    """The line of the user's own code that called the frame at `index`."""
    from hangdoc.analysis.story import is_library

    own = next((f for f in frames[index + 1 :] if not f.native and not is_library(f.file)), None)
    return f"{own.function} ({(own.short or own.file).rsplit('/', 1)[-1]}:{own.line})" if own else None


def _facts(kinds: list[Tensor], common: tuple[int, str] | None) -> PayloadFacts:
    newest = kinds[-1]
    return PayloadFacts(
        shape=str(list(newest.shape)),
        dtype=newest.dtype,
        elements=prod(newest.shape),
        differs=common is not None and _key(newest) != common,
        shapes=tuple(dict.fromkeys(f"{list(t.shape)} {t.dtype}" for t in kinds)),
    )


def _key(tensor: Tensor) -> tuple[int, str]:
    return prod(tensor.shape), tensor.dtype


def _most(tensors: list[Tensor]) -> tuple[int, str] | None:
    keys = [_key(t) for t in tensors]
    return max(dict.fromkeys(keys), key=keys.count, default=None)


ANALYSIS = PayloadAnalysis()
