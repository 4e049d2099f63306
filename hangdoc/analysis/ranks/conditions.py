"""Does a condition in the source come out alike on every rank?

A condition on loop counters, or on numbers that agree, does; one on the rank, the clock, or a rank's own data need not.
What cannot be seen (attributes, functions, globals) is left open.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hangdoc.analysis.ranks.call_path import Step
from hangdoc.evidence import Variable

NAME = re.compile(r"(?<![\w.\"'])[A-Za-z_][\w.]*")
TARGETS = re.compile(r"^(?:async )?for (.+?) in ")
KEYWORDS = frozenset(
    {"and", "or", "not", "in", "is", "None", "True", "False", "if", "else", "len", "int", "bool", "any"}
)
RANK_DEPENDENT = re.compile(r"rank|is_main|is_master|is_primary|is_leader|is_global_zero|process_index", re.IGNORECASE)
TIME_OR_RANDOM = re.compile(r"^(time|datetime|random|secrets|uuid)\b|\brandom\b|monotonic|perf_counter")

JOB_WIDE = re.compile(r"(^|\.)(is_available|is_initialized|(get_)?world_size|num_processes|device_count)$")
# what a model is made of: a loop over it runs as often on every rank
MODEL_PARTS = re.compile(r"\b((named_)?(parameters|buffers|modules|children)|state_dict|param_groups|layers)\b")


def uniform(test: str, step: Step, there: Mapping[str, Variable] | None) -> bool | None:
    """True: it comes out alike on every rank at the same iteration. False: it need not. None: not known.

    `step` is the frame the condition stands in, `there` the variables of the other rank's frame of the same function.
    """
    if not test:  # an arm of `try`
        return None
    loops = step.place.loops if step.place else ()
    counters = {name for loop in loops for name in loop.counters}
    bound = {name for loop in loops for name in targets(loop.header)} - counters
    known = [_agrees(name, counters, bound, step.variables, there) for name in _names(test)]
    if False in known:
        return False
    return None if None in known else True


def _names(test: str) -> list[str]:
    return [name for name in NAME.findall(test) if name not in KEYWORDS]


def targets(header: str) -> set[str]:
    """The names that a `for` statement binds anew at every turn."""
    found = TARGETS.match(header)
    return set(re.findall(r"\w+", found.group(1))) if found else set()


def _agrees(
    name: str, counters: set[str], bound: set[str], here: Mapping[str, Variable], there: Mapping[str, Variable] | None
) -> bool | None:
    root = name.split(".")[0]
    if RANK_DEPENDENT.search(name) or TIME_OR_RANDOM.search(name) or root in bound:
        return False
    if root in counters or JOB_WIDE.search(name):
        return True
    mine = here.get(root)
    if mine is None:
        return None
    if mine.tensor is not None:
        return False
    other = there.get(root) if there is not None else None
    if other is None:
        return None
    if mine.number is not None or other.number is not None:
        return mine.number == other.number
    if "none" in (mine.kind, other.kind) or mine.kind == "str":
        return mine.text == other.text
    return None
