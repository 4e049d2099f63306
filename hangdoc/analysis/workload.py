"""What a rank has more of than the others: rows of a batch, parts of a step, files of a shard."""

from __future__ import annotations

from collections.abc import Sequence

from hangdoc.analysis import Case, Key
from hangdoc.analysis.position import MUST_DIFFER
from hangdoc.analysis.progress import looks_at
from hangdoc.analysis.story import is_library
from hangdoc.evidence import Variable

MORE = 1.25  # times what the others have
MIN_LOOKS = 4
USUAL = 0.75  # of the looks in which it had that size: a last batch is smaller

Name = tuple[str, str, str]  # function, variable, and what is counted


def more_work(case: Case, key: Key, others: Sequence[Key]) -> str | None:
    """The size in the user's own frames in which a rank most exceeds all the others, who agree in it.

    "inputs in train: 128 rows, 64 on the others"; rows of tensors come before lengths and plain numbers.
    """
    mine = _sizes(case, key)
    theirs = [_sizes(case, other) for other in others]
    found = []
    for name, size in mine.items():
        there = {sizes[name] for sizes in theirs if name in sizes}
        if len(there) == 1 and all(name in sizes for sizes in theirs) and size >= MORE * min(there) > 0:
            function, variable, what = name
            text = f"{variable} in {function}: {size:g}{what}, {min(there):g} on the others"
            found.append((what != " rows", what == "", name, text))
    return min(found)[-1] if found else None


def _sizes(case: Case, key: Key) -> dict[Name, float]:
    """The usual sizes of a rank's variables over the looks."""
    seen: dict[Name, list[float]] = {}
    for look in looks_at(case, key):
        for step in look.story:
            for variable in () if is_library(step.file) else step.variables.values():
                size = _size(variable)
                if size is not None:
                    seen.setdefault((step.function, variable.name, size[0]), []).append(size[1])
    usual = {name: max(set(sizes), key=sizes.count) for name, sizes in seen.items()}
    return {
        name: size for name, size in usual.items() if seen[name].count(size) >= max(MIN_LOOKS, USUAL * len(seen[name]))
    }


def _size(variable: Variable) -> tuple[str, float] | None:
    """What is counted of a variable, and how much there is."""
    if variable.tensor is not None:
        return (" rows", variable.tensor.shape[0]) if variable.tensor.shape else None
    if variable.kind == "int" and variable.number is not None:
        return None if any(word in variable.name.lower() for word in MUST_DIFFER) else ("", variable.number)
    if variable.kind in ("list", "tuple") and variable.length is not None:
        return " items", variable.length
    return None
