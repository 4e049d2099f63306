"""Refuses regular expressions in playbooks that could run too long on some text.

Python's engine backtracks: `(a+)+$` takes 2^n steps on n letters, and nothing can interrupt it. This module derives an
upper bound on the steps from the parsed expression alone, for any text of MAX_SUBJECT characters.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

MAX_SUBJECT = 2_000  # characters of a text that a pattern is matched against; the rest is cut off
MAX_STEPS = 60_000_000  # of the engine, over all start positions: about a second
MAX_WIDTHS = 500_000  # letters in the ranges of a case-insensitive pattern: about 0.2 s to compile
BOUNDED = "give `*` and `+` an upper bound, as in `[0-9]{1,6}`, and repeat no group that can match in several ways"

# The parser of the standard library; it has no documented name.
_sre: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")


class PatternError(ValueError):
    """An invalid regular expression, or one that could take too long: one sentence."""


@dataclass(frozen=True, slots=True)
class _Cost:
    """Upper bounds for one entry into a part of a pattern."""

    steps: int  # until every way has failed
    ways: int  # to match; each may be retried if the rest fails


_ONE = _Cost(1, 1)


def check(pattern: str, searched: bool = True) -> None:
    """Raise PatternError if `pattern` is invalid or could take too long; `searched`: tried at every character."""
    tree = parse(pattern)
    if _sequence(tree, last=True).steps * (MAX_SUBJECT if searched and not _anchored(tree) else 1) > MAX_STEPS:
        raise PatternError("the regular expression could take forever on some texts")


def parse(pattern: str) -> Any:
    """The parsed pattern; raises PatternError if it is invalid or would take too long to compile."""
    try:
        tree = _sre.parse(pattern)
        if tree.state.flags & re.IGNORECASE and _widths(tree) > MAX_WIDTHS:  # compiles letter by letter
            raise PatternError("the regular expression takes too long to compile: wide ranges that ignore case")
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise PatternError(f"not a regular expression: {str(error) or 'nested too deeply'}") from error
    return tree


def _anchored(tree: Any) -> bool:
    """True if the pattern matches only at the start of the text."""
    first = str(tree[0][1]) if len(tree) and str(tree[0][0]) == "AT" else ""
    return first == "AT_BEGINNING_STRING" or (first == "AT_BEGINNING" and not tree.state.flags & re.MULTILINE)


def _sequence(items: Iterable[Any], last: bool = False) -> _Cost:
    """Parts in a row; `last`: nothing follows, so a match ends the search."""
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
    return _ONE  # a character, a class, a position


def _repeated(low: int, high: int, body: _Cost, last: bool) -> _Cost:
    # A round consumes at least one character, but mandatory rounds run even if the body matches nothing.
    high = max(low, min(high, MAX_SUBJECT))
    if body.ways > 1 and high > 1:
        ways = min(body.ways ** min(high, MAX_STEPS.bit_length()) * (high - low + 1), MAX_STEPS + 1)
        return _Cost(min(ways * body.steps, MAX_STEPS + 1), ways)
    if last:  # can fail only before `low` rounds
        return _Cost((low + 1) * body.steps, 1)
    return _Cost((high + 1) * body.steps, (high - low + 1) * body.ways)


def _widths(items: Any) -> int:
    """Number of characters in all ranges of a pattern."""
    total, left = 0, [items]
    while left:
        one = left.pop()
        if isinstance(one, tuple) and len(one) == 2 and str(one[0]) == "RANGE":
            total += one[1][1] - one[1][0]
        elif isinstance(one, (list, tuple, _sre.SubPattern)):
            left.extend(one)
    return total
