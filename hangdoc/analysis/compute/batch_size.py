"""Analysis `batch`: does the first dimension of the same variable differ between ranks in look after look?

A batch is another tensor in each step. A tensor that stays, such as a rank's part of the data, may have any size.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from hangdoc.analysis import Analysis, Case, Key
from hangdoc.analysis.ranks.call_path import Step, Thread
from hangdoc.analysis.ranks.progress import Look, distinct, looks_at
from hangdoc.analysis.thresholds import MIN_LOOKS, NEARLY_EQUAL, RENEWED, USUAL

Name = tuple[str, str]  # function and variable
NamedShape = tuple[Name, tuple[int, ...], int | None]  # and the address of the tensor


@dataclass(frozen=True, slots=True)
class BatchSizeFacts:
    """One rank's batch size, compared with the other ranks."""

    outlier: bool | None = (
        None  # the rank's batch size differs from most ranks; None: no shared variable seen often enough
    )
    name: str | None = None  # the variable and its function: "images in train"
    size: int | None = None  # first dimension of that variable on this rank
    size_others: int | None = None  # first dimension on most ranks
    agreeing: int = 0  # number of variables whose first dimension differs
    tied: bool = False  # as many ranks hold the one size as the other, so that nothing shows which is usual
    undecided: bool = False  # its batch size differed whenever it was seen, but in too few looks to tell


class _Held(NamedTuple):
    """What a rank held in a variable."""

    shape: tuple[int, ...]  # in most looks
    renewed: tuple[bool, ...]  # in each look but the first: it was another tensor than in the look before
    looks: frozenset[int]  # in which the variable was seen


UNSEEN, SAME, UNDECIDED = BatchSizeFacts(), BatchSizeFacts(False), BatchSizeFacts(undecided=True)


class BatchSizeAnalysis(Analysis[BatchSizeFacts, None]):
    rank_facts = BatchSizeFacts

    def derive(self, case: Case) -> tuple[dict[Key, BatchSizeFacts], None]:
        held = {key: _usual_shapes(case, key) for key in case.ranks}
        shared = set[Name].intersection(*[set(names) for names in held.values()]) if len(held) > 1 else set()
        shared = {name for name in shared if _is_renewed([names[name] for names in held.values()])}
        outliers: dict[Name, dict[Key, BatchSizeFacts]] = {}
        for name in shared:
            shapes = {key: names[name].shape for key, names in held.items()}
            # On a tie, the larger shape counts as common.
            ranks = Counter(shapes.values())
            common, most = max(ranks.items(), key=lambda item: (item[1], item[0]))
            outliers[name] = {
                key: BatchSizeFacts(True, f"{name[1]} in {name[0]}", shape[0], common[0], tied=ranks[shape] == most)
                for key, shape in shapes.items()
                if shape[1:] == common[1:] and _differ(shape[0], common[0])
            }
        differing = {name for name in shared if outliers[name]}
        settled = {name for name in shared if _seen_enough(held, {name})}
        decided = differing & settled
        undecided = differing if not settled else set()
        if undecided and _seen_enough(held, differing):  # a look shows one batch, whichever of its variables was read
            decided, undecided = differing, set()
        return {
            key: _facts(
                [outliers[name][key] for name in sorted(decided) if key in outliers[name]],
                agreeing=sum(key in outliers[name] for name in decided & settled),
                compared=bool(settled or decided),
                undecided=any(key in outliers[name] for name in undecided),
            )
            for key in case.ranks
        }, None


def _differ(size: int, other: int) -> bool:
    return abs(size - other) > NEARLY_EQUAL * max(size, other)


def _seen_enough(held: Mapping[Key, Mapping[Name, _Held]], names: Collection[Name]) -> bool:
    """True if every rank was seen with one of these variables in enough looks."""
    return all(len(frozenset().union(*[one[name].looks for name in names])) >= MIN_LOOKS for one in held.values())


def _facts(differences: Sequence[BatchSizeFacts], agreeing: int, compared: bool, undecided: bool) -> BatchSizeFacts:
    if differences:
        return replace(differences[0], agreeing=max(1, agreeing))
    return UNDECIDED if undecided else SAME if compared else UNSEEN


def _usual_shapes(case: Case, key: Key) -> dict[Name, _Held]:
    """Tensors in the user's own frames that have one shape in most looks."""
    looks = looks_at(case, key)
    at: dict[Thread, list[int]] = defaultdict(list)
    for number, look in enumerate(looks):
        at[look.thread].append(number)
    shapes: dict[Name, dict[tuple[int, ...], list[int]]] = {}
    addresses: dict[Name, dict[int, int | None]] = {}
    for look in distinct(looks):
        for name, shape, address in _shapes(case, look):
            shapes.setdefault(name, {}).setdefault(shape, []).extend(at[look.thread])
            addresses.setdefault(name, {}).update(dict.fromkeys(at[look.thread], address))
    found: dict[Name, _Held] = {}
    for name, seen in shapes.items():
        shape = max(seen, key=lambda shape: len(seen[shape]))
        if len(seen[shape]) >= USUAL * sum(map(len, seen.values())):
            found[name] = _Held(shape, _renewed(addresses[name]), frozenset(seen[shape]))
    return found


def _renewed(addresses: Mapping[int, int | None]) -> tuple[bool, ...]:
    """`addresses`: of the tensor, by look. An unknown one counts as another."""
    in_order = [addresses[look] for look in sorted(addresses)]
    return tuple(after is None or after != before for before, after in pairwise(in_order))


def _is_renewed(held: Sequence[_Held]) -> bool:
    """False of a variable that keeps its tensor."""
    renewed = [one for rank in held for one in rank.renewed]
    return sum(renewed) >= RENEWED * len(renewed)


def _shapes(case: Case, look: Look) -> Iterator[NamedShape]:
    known: dict[Step, list[NamedShape]] = case.once("shapes", dict)  # ranks with the same variables share steps
    for step in look.own:
        found = known.get(step)
        if found is None:
            held = [(v.name, v.tensor.shape, v.address) for v in step.variables.values() if v.tensor is not None]
            found = known[step] = [((step.function, name), shape, address) for name, shape, address in held if shape]
        yield from found


ANALYSIS = BatchSizeAnalysis()
