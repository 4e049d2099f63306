"""Losses that are NaN or infinite, from the variables of a rank's frames."""

from __future__ import annotations

import re
from functools import lru_cache

from hangdoc.analysis import Case, Key
from hangdoc.analysis.ranks.call_path import Thread, named, threads_of
from hangdoc.analysis.ranks.stack import StackFacts

_TEXTS = {"nan": "nan", "inf": "inf", "-inf": "inf"}


def nonfinite_loss(case: Case, key: Key) -> str | None:
    """A loss that is NaN or infinite in the newest look: "loss is nan at step 412"; None: none was seen."""
    threads = threads_of(case, key)
    if not threads:
        return None
    thread = named(threads, case.facts(StackFacts)[key].thread)
    for frame in thread.stack.frames:
        for variable in frame.variables or ():
            value = variable.tensor.nonfinite if variable.tensor else _TEXTS.get(variable.text.lower())
            if value and _is_loss(variable.name):
                return f"{variable.name} is {value}{_at(thread)}"
    return None


@lru_cache(maxsize=4096)
def _is_loss(name: str) -> bool:
    return re.search(r"(?:^|_)loss(?:es)?(?:$|_)", name.lower()) is not None


def _at(thread: Thread) -> str:
    """The innermost loop counter in user code: " at step 412"."""
    counters = [thread[depth].variables.get(name) for depth, name in thread.path.counters]
    known = [(counter.name, counter.number) for counter in counters if counter and counter.number is not None]
    return f" at {known[-1][0]} {known[-1][1]:.0f}" if known else ""
