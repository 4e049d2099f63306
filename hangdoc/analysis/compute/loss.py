"""Losses that are NaN or infinite, from the variables of a rank's frames."""

from __future__ import annotations

import re
from functools import lru_cache

from hangdoc.analysis import Case, Key
from hangdoc.analysis.ranks.call_path import Thread
from hangdoc.analysis.ranks.judged_thread import judged_thread

_TEXTS = {"nan": "nan", "inf": "inf", "-inf": "inf"}


def nonfinite_loss(case: Case, key: Key) -> str | None:
    """A loss that is NaN or infinite in the newest look: "loss is nan at step 412"; None: none was seen."""
    thread = judged_thread(case, key)
    if thread is None:
        return None
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
