"""Regular expressions of playbooks: those that could run for ever on some text are refused before they ever run.

Python's engine backtracks: `(a+)+$` takes 2^n steps on n letters, and nothing can interrupt it. The number of steps is
bounded from above here, from the parsed expression alone, for any text of MAX_SUBJECT characters.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

MAX_SUBJECT = 2_000  # characters of a text that a pattern is held against: the rest is cut off
MAX_STEPS = 60_000_000  # of the engine, over all the places where a search may start: at most about a second
MAX_WIDTHS = 500_000  # letters in the ranges of a pattern that ignores case: compiled in about 0.2 s
BOUNDED = "give `*` and `+` an upper bound, as in `[0-9]{1,6}`, repeat no group that can match in several ways"

# The standard library's own parser of regular expressions; it has no documented name.
_sre: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")


class PatternError(ValueError):
    """A regular expression that is none, or that could take too long: one sentence."""


@dataclass(frozen=True, slots=True)
class _Cost:
    """Upper bounds for one entry into a part of a pattern."""

    steps: int  # until it has failed in every way
    ways: int  # in which it can match: each may be tried when what follows fails


_ONE = _Cost(1, 1)


def check(pattern: str, searched: bool = True) -> None:
    """Raise PatternError where `pattern` is invalid or could take too long; `searched`: tried at every character."""
    tree = parse(pattern)
    if _sequence(tree, last=True).steps * (MAX_SUBJECT if searched and not _anchored(tree) else 1) > MAX_STEPS:
        raise PatternError("the regular expression could take for ever on some texts")


def parse(pattern: str) -> Any:
    """The parsed pattern; raises PatternError where it is invalid or would take too long to compile."""
    try:
        tree = _sre.parse(pattern)
        if tree.state.flags & re.IGNORECASE and _widths(tree) > MAX_WIDTHS:  # compiled letter by letter
            raise PatternError("the regular expression takes too long to compile: it ignores the case of wide ranges")
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise PatternError(f"not a regular expression: {str(error) or 'nested too deeply'}") from error
    return tree


def _anchored(tree: Any) -> bool:
    """Whether it matches at the start of the text only."""
    first = str(tree[0][1]) if len(tree) and str(tree[0][0]) == "AT" else ""
    return first == "AT_BEGINNING_STRING" or (first == "AT_BEGINNING" and not tree.state.flags & re.MULTILINE)


def _sequence(items: Iterable[Any], last: bool = False) -> _Cost:
    """Parts in a row; `last`: nothing follows, so that what matches ends the search."""
    parts = list(items)
    steps, ways = 1, 1
    for i, (operator, argument) in enumerate(parts):
        part = _part(str(operator), argument, last and i == len(parts) - 1)
        steps = min(steps + ways * part.steps, MAX_STEPS + 1)
        ways = min(ways * part.ways, MAX_STEPS + 1)
    return _Cost(steps, ways)


def _part(operator: str, argument: Any, last: bool) -> _Cost:
    if operator in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        low, high, body = argument
        return _repeated(int(low), int(high), _sequence(body), last)
    if operator == "SUBPATTERN":
        return _sequence(argument[-1])
    if operator == "ATOMIC_GROUP":
        return _sequence(argument)
    if operator == "BRANCH":
        branches = [_sequence(branch) for branch in argument[1]]
        return _Cost(sum(one.steps for one in branches), sum(one.ways for one in branches))
    if operator in ("ASSERT", "ASSERT_NOT"):
        return _Cost(_sequence(argument[1]).steps, 1)
    if operator == "GROUPREF":
        return _Cost(MAX_SUBJECT, 1)
    if operator == "GROUPREF_EXISTS":
        branches = [_sequence(branch) for branch in argument[1:] if branch]
        return _Cost(1 + sum(one.steps for one in branches), 1 + sum(one.ways for one in branches))
    if operator == "IN":
        return _Cost(1 + len(argument) // 8, 1)
    return _ONE  # a character, a class, a place


def _repeated(low: int, high: int, body: _Cost, last: bool) -> _Cost:
    # Each round takes at least a character, but those that must be are gone through even where the body is empty.
    high = max(low, min(high, MAX_SUBJECT))
    if body.ways > 1 and high > 1:
        ways = min(body.ways ** min(high, MAX_STEPS.bit_length()) * (high - low + 1), MAX_STEPS + 1)
        return _Cost(min(ways * body.steps, MAX_STEPS + 1), ways)
    if last:  # fails only where it has not come to `low`
        return _Cost((low + 1) * body.steps, 1)
    return _Cost((high + 1) * body.steps, (high - low + 1) * body.ways)


def _widths(items: Any) -> int:
    """Characters in all the ranges of the classes of a pattern."""
    total, left = 0, [items]
    while left:
        one = left.pop()
        if isinstance(one, tuple) and len(one) == 2 and str(one[0]) == "RANGE":
            total += one[1][1] - one[1][0]
        elif isinstance(one, (list, tuple, _sre.SubPattern)):
            left.extend(one)
    return total
