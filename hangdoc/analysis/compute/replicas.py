"""Analysis `replicas`: do the ranks of a host that should hold the same model hold the same parameters?

The ranks of a host are read at almost the same instant, several times in each look, so replicas in step are soon seen
with equal values. Replicas that train apart never are, although torch's count of changes is equal (they take the same
steps) or drifts apart (they take steps of their own). A value that a rank had from the start proves nothing: replicas
may begin with the same seed, and frozen parameters stay equal.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hangdoc.analysis import Analysis, Case, Key
from hangdoc.analysis.thresholds import DRIFTED_CHANGES, HALF, MIN_LOOKS, WATCHED_LOOKS
from hangdoc.evidence import ProcessGroup, ProcessGroups, Stack, Stacks
from hangdoc.evidence.parameters import Parameter, Parameters


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """The model of one rank, compared with those of the other ranks of its host; None: not decidable."""

    apart: bool | None = None  # its parameters were never equal to those of another rank that trains the same model
    odd: bool | None = None  # it is apart, and no majority holds its parameters
    partly: bool | None = None  # another parameter of it was equal on all ranks
    averaged: bool | None = None  # its gradient was equal to that of a rank that it is apart from
    wrapper: str | None = None  # class that keeps replicas equal: "DistributedDataParallel"
    parameter: str | None = None  # one that was compared: "model.module.head.weight"
    states: int = 0  # counts of changes at which its parameters differed from those of a rank that it is apart from
    drift: int = 0  # changes by which it ran ahead of or fell behind a rank that it was never seen equal to
    stood: int = 0  # looks in which its parameters did not change, although it has the gradients of ranks that step
    nonfinite: str | None = None  # what a parameter holds now: "model.module.head.weight holds nan"
    unregistered: tuple[str, ...] = ()  # trainable parameters that the wrapper does not reduce: added after it was made


@dataclass(frozen=True, slots=True)
class ReplicaJob:
    """The replicas of the host with the most different models."""

    sides: int | None  # different models that are trained as one; None: not decidable


class Named(NamedTuple):
    """A parameter of a model."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class _Seen(NamedTuple):
    """One parameter in one look, by digests."""

    at_s: float
    values: frozenset[str]  # empty: its bytes are all equal
    gradients: frozenset[str]


@dataclass(slots=True)
class _History:
    """The values that one trainable parameter of a rank was seen with."""

    looks: list[_Seen] = field(default_factory=list)  # oldest first
    start: str | None = None
    acquired: dict[str, None] = field(default_factory=dict)  # digests after its first change
    at: dict[int, str] = field(default_factory=dict)  # digest by count of changes
    counted: dict[float, int] = field(default_factory=dict)  # count by look
    stepping: set[float] = field(default_factory=set)  # looks within the optimizer

    def add(self, at_s: float, parameter: Parameter, steps: bool) -> None:
        gradients = frozenset((parameter.gradient, *parameter.gradients)) - {""}
        if parameter.values:
            values = frozenset(value.digest for value in parameter.values) - {""}
            self.looks.append(_Seen(at_s, values, gradients))
        for value in parameter.values:
            self.counted.setdefault(at_s, value.version)
            if steps:
                self.stepping.add(at_s)
            if self.start is None:
                self.start = value.digest
            elif value.digest != self.start and value.digest:
                self.acquired[value.digest] = None
            if value.digest:
                self.at[value.version] = value.digest

    @property
    def counts(self) -> bool:
        """True if the count of changes tells one value from another: writes to `.data` are not counted."""
        return len(self.at) >= HALF * len(self.acquired)

    @property
    def gradients(self) -> frozenset[str]:
        return _union(look.gradients for look in self.looks)

    def unchanged(self) -> Sequence[_Seen]:
        """The newest looks, as long as they found one value only."""
        newest: list[_Seen] = []
        for look in reversed(self.looks):
            if len(look.values) != 1 or (newest and look.values != newest[0].values):
                break
            newest.append(look)
        return newest[::-1]

    def since(self, at_s: float) -> Sequence[_Seen]:
        """The looks from this one on."""
        return [look for look in self.looks if look.at_s >= at_s]


_MODEL_CODE = "/torch/nn/modules/module.py"
_BACKWARD = "_engine_run_backward"
MAX_COMPARED = 16  # ranks that one rank is compared with
_Histories = dict[Named, _History]


class ReplicaAnalysis(Analysis[ReplicaFacts, ReplicaJob]):
    rank_facts = ReplicaFacts
    job_facts = ReplicaJob
    seen_by = ("parameters",)

    def derive(self, case: Case) -> tuple[dict[Key, ReplicaFacts], ReplicaJob]:
        facts = {key: _own(case.record(key, "parameters")) for key in case.ranks}
        decided: list[int] = []
        for keys in _cohorts(case).values():
            seen = {key: _histories(case, key) for key in keys}
            members = {key: changed for key in keys if (changed := _changed(seen[key]))}
            compared, sides = _compare(members, facts)
            facts.update(compared)
            if left := _left_behind(case, seen, facts):
                facts.update(left)
                sides = 2
            decided += [sides] if sides else []
        return facts, ReplicaJob(max(decided, default=None))


def _own(record: object) -> ReplicaFacts:
    if not isinstance(record, Parameters):
        return ReplicaFacts()
    bad = next((f"{one.name} holds {one.nonfinite}" for one in record.parameters if one.nonfinite), None)
    return ReplicaFacts(wrapper=record.wrapper, nonfinite=bad, unregistered=record.unregistered)


def _cohorts(case: Case) -> dict[tuple[str, ...], list[Key]]:
    """Ranks of one host that should hold the same model: those of the wrapper's process group, else all.

    With smaller groups, the ranks may hold parts of one model, and only a wrapper says which hold the same.
    """
    known = {key: _groups(case, key) for key in case.ranks}
    split = any(1 < len(group.ranks) < _world(groups) for groups in known.values() for group in groups)
    found: dict[tuple[str, ...], list[Key]] = defaultdict(list)
    for key in case.ranks:
        record = case.record(key, "parameters")
        if isinstance(record, Parameters) and record.parameters and not record.sharded:
            own = next((group for group in known[key] if record.wrapper and group.address == record.group), None)
            if own is not None and not own.default:
                found[key[0], own.name].append(key)
            elif own is not None or not split:
                found[key[0], ""].append(key)
    return found


def _groups(case: Case, key: Key) -> Sequence[ProcessGroup]:
    record = case.record(key, "groups")
    return record.groups if isinstance(record, ProcessGroups) else ()


def _world(groups: Sequence[ProcessGroup]) -> int:
    return next((len(group.ranks) for group in groups if group.default), 0)


def _histories(case: Case, key: Key) -> _Histories:
    """Of the trainable parameters."""
    found: _Histories = {}
    for shot, rank in case.rounds(key):
        record = rank.records.get("parameters")
        if isinstance(record, Parameters):
            steps = _in_optimizer(rank.records.get("stacks"))
            for one in record.parameters:
                if one.trainable:
                    found.setdefault(Named(one.name, one.shape, one.dtype), _History()).add(shot.at_s, one, steps)
    return found


def _changed(histories: _Histories) -> _Histories:
    """Those of the parameters that changed."""
    return {named: history for named, history in histories.items() if history.acquired}


def _in_optimizer(stacks: object) -> bool:
    """True if the rank may be changing its parameters: replicas in step are then in different states."""
    threads = stacks.threads if isinstance(stacks, Stacks) else ()
    return any(map(_steps, threads))


def _steps(stack: Stack) -> bool:
    for frame in stack.frames:
        if frame.file.endswith(_MODEL_CODE) or frame.function == _BACKWARD:  # a closure of the optimizer
            return False
        if frame.function == "step" or "/torch/optim/" in frame.file:
            return True
    return False


@dataclass(frozen=True, slots=True)
class _Comparison:
    """One parameter on the ranks of a cohort."""

    named: Named
    sides: list[list[Key]]  # ranks that were seen with an equal value, directly or by way of others
    differences: Mapping[Key, tuple[int, int]]  # states and drift of each rank, if there is another side

    @property
    def equal(self) -> bool:
        return len(self.sides) == 1 and len(self.sides[0]) > 1

    @property
    def decided(self) -> bool:
        """True if every rank is apart from another."""
        apart = [states >= WATCHED_LOOKS or drift >= DRIFTED_CHANGES for states, drift in self.differences.values()]
        return len(apart) > 0 and all(apart)

    def drift(self, key: Key) -> int:
        return self.differences[key][1] if key in self.differences else 0


def _compare(
    members: Mapping[Key, _Histories], facts: Mapping[Key, ReplicaFacts]
) -> tuple[dict[Key, ReplicaFacts], int | None]:
    """The facts of one cohort, and the number of different models; None: not decidable."""
    by_name: dict[Named, dict[Key, _History]] = defaultdict(dict)
    for key, histories in members.items():
        for named, history in histories.items():
            by_name[named][key] = history
    compared = [_comparison(named, held) for named, held in by_name.items() if len(held) == len(members) > 1]
    differing = max((one for one in compared if one.decided), key=lambda one: len(one.sides), default=None)
    if differing is None:
        same = bool(compared) and all(one.equal for one in compared)
        if same:
            return {key: replace(facts[key], apart=False, odd=False) for key in members}, 1
        drifts = {key: max((one.drift(key) for one in compared), default=0) for key in members}
        return {key: replace(facts[key], drift=drift) for key, drift in drifts.items()}, None
    most = max(map(len, differing.sides))
    majority = most > max(1.0, HALF * len(members))
    gradients = {key: histories[differing.named].gradients for key, histories in members.items()}
    found: dict[Key, ReplicaFacts] = {}
    for side in differing.sides:
        others = _union(gradients[key] for key in members if key not in side)
        for key in side:
            states, drift = differing.differences[key]
            found[key] = replace(
                facts[key],
                apart=True,
                odd=not majority or len(side) < most,
                partly=any(one.equal for one in compared),
                averaged=not gradients[key].isdisjoint(others),
                parameter=differing.named.name,
                states=states,
                drift=drift,
            )
    return found, len(differing.sides)


def _left_behind(
    case: Case, seen: Mapping[Key, _Histories], facts: Mapping[Key, ReplicaFacts]
) -> dict[Key, ReplicaFacts]:
    """The facts of a cohort with ranks that have the gradients of its other ranks, and do not apply them any more.

    They were seen with equal gradients, or in backward with a wrapper that averages them. A rank that only uses the
    model, such as an actor that gets new parameters now and then, has no such gradients.
    """
    standing = {key: named for key, histories in seen.items() if (named := _standing(histories)) is not None}
    moving = [histories for key, histories in seen.items() if key not in standing]
    found: dict[Key, ReplicaFacts] = {}
    for key, named in standing.items():
        own = seen[key][named].unchanged()
        peers = [histories[named].since(own[0].at_s) if named in histories else [] for histories in moving]
        states = min((len(_union(look.values for look in looks)) for looks in peers), default=0)
        shared = _union(look.gradients for look in own).intersection(
            *[_union(look.gradients for look in looks) for looks in peers]
        )
        averaged = len(shared) >= MIN_LOOKS
        if states >= WATCHED_LOOKS and (averaged or (facts[key].wrapper and _goes_backward(case, key, own[0].at_s))):
            found[key] = replace(
                facts[key], apart=True, odd=True, partly=False, averaged=averaged, parameter=named.name, states=states,
                drift=0, stood=len(own),
            )  # fmt: skip
    if not found:
        return {}
    states = min(one.states for one in found.values())
    return found | {key: replace(facts[key], apart=True, odd=False, states=states) for key in seen if key not in found}


def _standing(histories: _Histories) -> Named | None:
    """A parameter that keeps its value while its gradients change; or any, if all of them keep their values."""
    kept = {named: looks for named, one in histories.items() if len(looks := one.unchanged()) >= WATCHED_LOOKS}
    changing = (named for named, looks in kept.items() if len(_union(look.gradients for look in looks)) >= MIN_LOOKS)
    return next(changing, next(iter(kept)) if kept and len(kept) == len(histories) else None)


def _goes_backward(case: Case, key: Key, since_s: float) -> bool:
    """True if several looks since then found the rank in a backward pass."""
    looks = (rank.records.get("stacks") for shot, rank in case.rounds(key) if shot.at_s >= since_s)
    threads = [stacks.threads for stacks in looks if isinstance(stacks, Stacks)]
    return (
        sum(any(frame.function == _BACKWARD for one in each for frame in one.frames) for each in threads) >= MIN_LOOKS
    )


def _union(digests: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*digests)


def _comparison(named: Named, held: Mapping[Key, _History]) -> _Comparison:
    sides = _sides(held)
    differences: dict[Key, tuple[int, int]] = {}
    for side in sides:
        others = [key for other in sides if other is not side for key in other][:MAX_COMPARED]
        for key in side if others else ():
            differences[key] = max(_difference(held[key], held[other]) for other in others)
    return _Comparison(named, sides, differences)


def _sides(held: Mapping[Key, _History]) -> list[list[Key]]:
    """Ranks that were seen with an equal value, directly or by way of others, in order."""
    holders: dict[str, list[Key]] = defaultdict(list)
    for key, history in held.items():
        for digest in history.acquired:
            holders[digest].append(key)
    side = {key: [key] for key in held}
    for first, *rest in holders.values():
        for key in rest:
            one, other = side[first], side[key]
            if one is not other:
                one += other
                side.update(dict.fromkeys(other, one))
    return list({id(one): one for one in side.values()}.values())


def _difference(own: _History, other: _History) -> tuple[int, int]:
    """States in which the values differed, and the drift of the counts of changes.

    Two replicas are in the same state at equal counts. One that was restored or broadcast may be ahead by a constant:
    then they are in the same state as long as the counts, read together, are that far apart.
    """
    if not own.counts or not other.counts:
        return 0, 0
    equal = sum(own.at[count] != other.at[count] for count in own.at.keys() & other.at.keys())
    ahead = {at_s: count - other.counted[at_s] for at_s, count in own.counted.items() if at_s in other.counted}
    settled = {own.counted[at_s]: by for at_s, by in ahead.items() if at_s not in own.stepping | other.stepping}
    usual = Counter(settled.values()).most_common(1)
    drift = max(ahead.values()) - min(ahead.values()) if len(ahead) >= WATCHED_LOOKS else 0
    return max(equal, usual[0][1] if usual else 0), drift


ANALYSIS = ReplicaAnalysis()
