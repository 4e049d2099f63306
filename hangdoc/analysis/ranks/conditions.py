"""Does a condition in the source have the same result on every rank?

Yes for loop counters and numbers that agree; not necessarily for the rank, the clock or a rank's own data; unknown for
attributes, functions and globals, whose values are not seen.
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
RANK_DEPENDENT = re.compile(
    r"rank|is_(?:main|master|primary|leader|chief|coordinator|global_zero)|process_(?:index|zero)", re.IGNORECASE
)
TIME_OR_RANDOM = re.compile(r"^(time|datetime|random|secrets|uuid)\b|\brandom\b|monotonic|perf_counter")
# The same on every rank of a job, although it names the rank: whether the job is distributed at all.
DISTRIBUTED = re.compile(
    r"[\w.\[\]'\"]*rank[\w.()]*\s*(?:(?:==|!=|>)\s*-1\b|>=\s*0\b|is\s+(?:not\s+)?None\b)", re.IGNORECASE
)
COMPARED = re.compile(r"([\w.()\[\]'\"]+) (==|!=|is not|is) ([\w.()\[\]'\"]+)")
OPPOSITE = {"==": "!=", "!=": "==", "is": "is not", "is not": "is"}
JOB_WIDE = re.compile(
    r"(^|\.)(is_available|is_initialized|(get_)?world_size|num_processes|device_count|\w*n(um)?_?ranks|rank_zero_only)$"
)
# Parts of a model or of a trainer: a loop over them has the same number of iterations on every rank.
MODEL_PARTS = re.compile(
    r"\b((named_)?(parameters|buffers|modules|children)|state_dict|param_groups|layers|(?<=\.)(blocks|experts|towers|heads|stages)"
    r"|(\w+_)?(callbacks|hooks|handlers|plugins|loggers|optimizers|schedulers|metrics))\b"
)


def uniform(test: str, step: Step, there: Mapping[str, Variable] | None) -> bool | None:
    """True: same result on every rank at the same iteration. False: it may differ. None: unknown.

    `step`: the frame that contains the condition. `there`: the variables of the peer's frame of the same function.
    """
    if not test:  # a branch of `try`
        return None
    loops = step.place.loops if step.place else ()
    counters = {name for loop in loops for name in loop.counters}
    bound = {name for loop in loops for name in targets(loop.header)} - counters
    known = [_agrees(name, counters, bound, step.variables, there) for name in names(test)]
    if False in known:
        return False
    return None if None in known else True


def parts_by_rank(test: str) -> bool:
    """True if the condition asks which rank it is: `rank == 0`, `is_main_process`."""
    return any(RANK_DEPENDENT.search(name) and not JOB_WIDE.search(name) for name in names(test))


def negated(test: str) -> str:
    """The opposite of a condition: `rank == 0` for `rank != 0`."""
    compared = COMPARED.fullmatch(test)
    if compared:
        left, operator, right = compared.groups()
        return f"{left} {OPPOSITE[operator]} {right}"
    # `not` binds weaker than a comparison, and stronger than these words.
    inverted = test.startswith("not ") and not re.search(r"\b(?:and|or|if|for|lambda|not)\b", test[4:])
    return test[4:].strip() if inverted else f"not ({test})"


def names(test: str) -> list[str]:
    """The dotted names in an expression."""
    return [name for name in NAME.findall(DISTRIBUTED.sub("True", test)) if name not in KEYWORDS]


def targets(header: str) -> set[str]:
    """The names that a `for` statement binds in each iteration."""
    found = TARGETS.match(header)
    return set(re.findall(r"\w+", found.group(1))) if found else set()


def _agrees(
    name: str, counters: set[str], bound: set[str], here: Mapping[str, Variable], there: Mapping[str, Variable] | None
) -> bool | None:
    root = name.split(".")[0]
    if root in counters or JOB_WIDE.search(name):
        return True
    if RANK_DEPENDENT.search(name) or TIME_OR_RANDOM.search(name) or root in bound:
        return False
    own = here.get(root)
    if own is None:
        return None
    if own.tensor is not None:
        return False
    peer = there.get(root) if there is not None else None
    if peer is None:
        return None
    if own.number is not None or peer.number is not None:
        return own.number == peer.number
    if "none" in (own.kind, peer.kind) or own.kind == "str":
        return own.text == peer.text
    return None
