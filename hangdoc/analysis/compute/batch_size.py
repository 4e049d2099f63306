"""Analysis `batch`: is the first dimension of the same variable another one on some rank, look after look?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from hangdoc.analysis import Case, Key
from hangdoc.analysis.ranks.progress import Look, distinct, looks_at

MIN_LOOKS = 4
USUAL_SHARE = 0.75  # of the looks: the last batch of an epoch is often smaller, and a batch may be cut before its use

Name = tuple[str, str]  # function and variable
Shaped = tuple[Name, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class BatchSizeFacts:
    """One rank's batch dimension against the others'."""

    odd: bool | None = None  # it differs from most ranks'; None: no common variable was read often enough
    name: str | None = None  # "images in train"
    size: int | None = None
    size_others: int | None = None
    agreeing: int = 0  # variables that say the same


UNSEEN, ALIKE = BatchSizeFacts(), BatchSizeFacts(False)


@dataclass(slots=True)
class BatchSizeAnalysis:
    name: str = "batch"
    order: int = 50
    rank_facts: type | None = BatchSizeFacts
    job_facts: type | None = None
    on_demand: bool = True

    def derive(self, case: Case) -> tuple[dict[Key, BatchSizeFacts], None]:
        seen = {key: _usual(case, key) for key in case.ranks}
        odd: dict[Key, list[BatchSizeFacts]] = defaultdict(list)
        compared: set[Key] = set()
        for name in {name for sizes in seen.values() for name in sizes}:
            holders = {key: sizes[name] for key, sizes in seen.items() if name in sizes}
            if len(holders) < 2 or len(holders) < len(seen):
                continue
            compared.update(holders)
            common, _ = max(
                Counter(holders.values()).items(), key=lambda item: (item[1], item[0])
            )  # of a tie, the larger
            for key, shape in holders.items():
                if shape[0] != common[0] and shape[1:] == common[1:]:
                    odd[key].append(BatchSizeFacts(True, f"{name[1]} in {name[0]}", shape[0], common[0]))
        return {key: _facts(odd.get(key, []), key in compared) for key in case.ranks}, None


def _facts(odd: list[BatchSizeFacts], compared: bool) -> BatchSizeFacts:
    if not odd:
        return ALIKE if compared else UNSEEN
    first = min(odd, key=lambda facts: facts.name or "")
    return BatchSizeFacts(True, first.name, first.size, first.size_others, len(odd))


def _usual(case: Case, key: Key) -> dict[Name, tuple[int, ...]]:
    """Shapes that the tensors in the user's own frames have in nearly all of the looks."""
    looks = looks_at(case, key)
    if len(looks) < MIN_LOOKS:
        return {}
    stories = [id(look.story) for look in looks]
    shapes: dict[Name, dict[tuple[int, ...], int]] = {}
    for look in distinct(looks):
        times = stories.count(id(look.story))
        for name, shape in _shapes(case, look):
            seen = shapes.setdefault(name, {})
            seen[shape] = seen.get(shape, 0) + times
    return {
        name: max(seen, key=lambda shape: seen[shape])
        for name, seen in shapes.items()
        if max(seen.values()) >= max(MIN_LOOKS, USUAL_SHARE * sum(seen.values()))
    }


def _shapes(case: Case, look: Look) -> Iterator[Shaped]:
    known: dict[int, list[Shaped]] = case.once("shapes", dict)  # by identity: ranks that are alike share steps
    for step in look.own:
        found = known.get(id(step))
        if found is None:
            held = [(v.name, v.tensor.shape) for v in step.variables.values() if v.tensor is not None]
            found = known[id(step)] = [((step.function, name), shape) for name, shape in held if shape]
        yield from found


ANALYSIS = BatchSizeAnalysis()
