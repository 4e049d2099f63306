"""Analysis `batch`: does the first dimension of the same variable differ between ranks in look after look?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from hangdoc.analysis import Analysis, Case, Key
from hangdoc.analysis.ranks.call_path import Step
from hangdoc.analysis.ranks.progress import Look, distinct, looks_at
from hangdoc.analysis.thresholds import MIN_LOOKS, USUAL

Name = tuple[str, str]  # function and variable
NamedShape = tuple[Name, tuple[int, ...]]


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


UNSEEN, SAME = BatchSizeFacts(), BatchSizeFacts(False)


class BatchSizeAnalysis(Analysis[BatchSizeFacts, None]):
    rank_facts = BatchSizeFacts

    def derive(self, case: Case) -> tuple[dict[Key, BatchSizeFacts], None]:
        seen = {key: _usual_shapes(case, key) for key in case.ranks}
        outliers: dict[Key, list[BatchSizeFacts]] = defaultdict(list)
        compared: set[Key] = set()
        for name in {name for sizes in seen.values() for name in sizes}:
            holders = {key: sizes[name] for key, sizes in seen.items() if name in sizes}
            if len(holders) < 2 or len(holders) < len(seen):
                continue
            compared.update(holders)
            # On a tie, the larger shape counts as common.
            common, _ = max(Counter(holders.values()).items(), key=lambda item: (item[1], item[0]))
            for key, shape in holders.items():
                if shape[0] != common[0] and shape[1:] == common[1:]:
                    outliers[key].append(BatchSizeFacts(True, f"{name[1]} in {name[0]}", shape[0], common[0]))
        return {key: _facts(outliers.get(key, []), key in compared) for key in case.ranks}, None


def _facts(differences: list[BatchSizeFacts], compared: bool) -> BatchSizeFacts:
    if not differences:
        return SAME if compared else UNSEEN
    first = min(differences, key=lambda facts: facts.name or "")
    return BatchSizeFacts(True, first.name, first.size, first.size_others, len(differences))


def _usual_shapes(case: Case, key: Key) -> dict[Name, tuple[int, ...]]:
    """Shapes that tensors in the user's own frames have in most looks."""
    looks = looks_at(case, key)
    if len(looks) < MIN_LOOKS:
        return {}
    threads = [look.thread for look in looks]
    shapes: dict[Name, dict[tuple[int, ...], int]] = {}
    for look in distinct(looks):
        times = threads.count(look.thread)
        for name, shape in _shapes(case, look):
            seen = shapes.setdefault(name, {})
            seen[shape] = seen.get(shape, 0) + times
    return {
        name: max(seen, key=lambda shape: seen[shape])
        for name, seen in shapes.items()
        if max(seen.values()) >= max(MIN_LOOKS, USUAL * sum(seen.values()))
    }


def _shapes(case: Case, look: Look) -> Iterator[NamedShape]:
    known: dict[Step, list[NamedShape]] = case.once("shapes", dict)  # ranks with the same variables share steps
    for step in look.own:
        found = known.get(step)
        if found is None:
            held = [(v.name, v.tensor.shape) for v in step.variables.values() if v.tensor is not None]
            found = known[step] = [((step.function, name), shape) for name, shape in held if shape]
        yield from found


ANALYSIS = BatchSizeAnalysis()
