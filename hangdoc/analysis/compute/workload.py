"""What a rank has more of than the others: rows of a batch, parts of a step, files of a shard; and whether they share
that work at all."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from hangdoc.analysis import Case, Key
from hangdoc.analysis.compute.wait_time import WaitingRanks
from hangdoc.analysis.ranks.call_path import is_library
from hangdoc.analysis.ranks.divergence import MUST_DIFFER
from hangdoc.analysis.ranks.phases import WAITING
from hangdoc.analysis.ranks.progress import Look, looks_at
from hangdoc.evidence import Variable

MORE = 1.25  # times what the others have
MIN_LOOKS = 4
MODEL = "/torch/nn/modules/"
SAME = 0.5  # of the looks at it while the others wait
USUAL = 0.75  # of the looks in which it had that size: a last batch is smaller

Name = tuple[str, str, str]  # function, variable, and what is counted


def more_work(case: Case, key: Key) -> str | None:
    """The size in the user's own frames in which a rank most exceeds all the others, who agree in it.

    "inputs in train: 128 rows, 64 on the others"; rows of tensors come before lengths and plain numbers.
    """
    usual = case.once("usual sizes", lambda: {one: _sizes(case, one) for one in case.ranks})
    held = case.once("sizes held", lambda: _held(usual.values()))
    found = []
    for name, size in usual[key].items():
        if len(held[name]) != 2 or held[name][size] != 1 or held[name].total() < len(usual):
            continue  # the others do not agree, or not all of them have it
        there = next(other for other in held[name] if other != size)
        if size >= MORE * there > 0:
            function, variable, what = name
            text = f"{variable} in {function}: {size:g}{what}, {there:g} on the others"
            found.append((what != " rows", what == "", name, text))
    return min(found)[-1] if found else None


def _held(usual: Iterable[Mapping[Name, float]]) -> dict[Name, Counter[float]]:
    """How many ranks have which size."""
    found: dict[Name, Counter[float]] = defaultdict(Counter)
    for sizes in usual:
        for name, size in sizes.items():
            found[name][size] += 1
    return found


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


def same_code(case: Case, key: Key) -> bool | None:
    """Whether a rank, while most others wait, is where they are seen as well: an evaluation is at lines of its own.

    None where it was seen so too seldom.
    """
    every = {one: looks_at(case, one) for one in case.ranks}
    waiters = case.once("waiters", lambda: WaitingRanks(every.values()))
    lines = case.once("lines of looks", lambda: {one: {_chain(look) for look in every[one]} for one in every})
    seen_at = case.once("ranks seen at lines", lambda: Counter(chain for one in lines.values() for chain in one))
    mine = every[key]
    waited_for = [
        _chain(look)
        for look in mine
        if look.phase not in WAITING and 2 * waiters.at(look.at_s - mine[0].at_s) > len(every) - 1
    ]
    if len(waited_for) < MIN_LOOKS - 1:
        return None
    return sum(seen_at[chain] > (chain in lines[key]) for chain in waited_for) >= SAME * len(waited_for)


def _chain(look: Look) -> tuple[tuple[str, str, int], ...]:
    """The calls down to the innermost code that is no library's, with its lines; within a model those do not matter."""
    own = [number for number, step in enumerate(look.story) if not is_library(step.file)]
    chain, in_model = [], False
    for step in look.story[: own[-1] + 1] if own else ():
        in_model = in_model or MODEL in step.file
        chain.append((step.file, step.function, 0 if in_model or is_library(step.file) else step.line))
    return tuple(chain)
