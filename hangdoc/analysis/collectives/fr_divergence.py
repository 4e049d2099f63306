"""Where two ranks parted in the code, by the call sites that they recorded, and how.

Without the source the history must tell what is a loop: a call that comes round again is in one. What it does not tell
is left open.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass

from hangdoc.analysis.collectives.fr_history import Calls, RankCalls
from hangdoc.analysis.ranks.call_path import is_library

Line = tuple[str, str, int]  # file, function, line
Where = tuple[Line, ...]  # the user's own code, outermost first


@dataclass(frozen=True, slots=True)
class Parting:
    """How the ranks of one book went another way than those of another.

    kind: left_loop (it went on past a loop that the others are in) | in_loop (its mirror) | out_of_branch (it skipped a
    call that the others made) | in_branch (it made one, known to all, that the others did not) | apart (they differ,
    how is not told).
    """

    kind: str
    sequence: int  # the first collective at which their sites differ
    strays: bool | None = None  # it went where nobody had gone from there, the others as ever; False: it was they


def parting(mine: RankCalls, others: RankCalls, number: int) -> Parting | None:
    """How `mine` came to make another call than `others` at `number`; None where the sites are equal or not known."""
    at = _parted(mine, others, number)
    if at is None:
        return None
    before = where(others.calls.get(at - 1))
    here, there = where(mine.calls.get(at)), where(others.calls.get(at))
    if before is None or here is None or there is None:
        return Parting("apart", at)
    followed = {*_steps(others, at), *_steps(mine, at)}
    mine_is_usual, usual = (before, here) in followed, (before, there) in followed
    strays = usual if mine_is_usual != usual else None
    return Parting(_kind(before, here, there, set(_steps(others, at))), at, strays)


def _kind(before: Where, here: Where, there: Where, followed: Set[tuple[Where, Where]]) -> str:
    """How those that went from `before` to `here` parted from those that went `there`, as most did earlier or not."""
    i_go_on, they_go_on = not _again(before, here), not _again(before, there)
    usual, mine_is_usual = (before, there) in followed, (before, here) in followed
    if i_go_on and not they_go_on:
        return "left_loop" if usual else "apart"
    if they_go_on and not i_go_on:
        if usual and not mine_is_usual:
            return "out_of_branch"
        return "in_loop" if mine_is_usual else "apart"
    if (there, here) in followed:
        return "out_of_branch"
    return "in_branch" if usual and here in {to for _, to in followed} else "apart"


def where(calls: Calls | None) -> Where | None:
    """The lines of the user's own code that led to a call; None where they are not recorded."""
    if not calls:
        return None
    own = [(f.file, f.function, f.line or 0) for f in calls[0].frames if not is_library(f.file)]
    return tuple(reversed(own)) or None


def _parted(mine: RankCalls, others: RankCalls, number: int) -> int | None:
    """The first of the collectives, up to `number`, from which on no site is the same."""
    found = None
    usual = {(where(mine.calls.get(n)), where(others.calls.get(n))) for n in mine.calls if n < number - 1}
    for at in range(number, max(mine.first, others.first) - 1, -1):
        here, there = where(mine.calls.get(at)), where(others.calls.get(at))
        if here is None and at == number and number not in mine.calls:
            continue  # it never came there: it may have parted before
        if here is None or there is None or here == there:
            break
        if at < number and (here, there) in usual and _known_pair(mine, others, at, here, there):
            break
        found = at
    return found


def _known_pair(mine: RankCalls, others: RankCalls, before: int, here: Where, there: Where) -> bool:
    """Ranks with roles of their own call one collective from two places: they did so earlier, and went on together."""
    return any(
        where(mine.calls.get(n)) == here and where(others.calls.get(n)) == there
        and where(mine.calls.get(n + 1)) == where(others.calls.get(n + 1)) is not None
        for n in mine.calls
        if n < before - 1
    )  # fmt: skip


def _steps(book: RankCalls, before: int) -> Iterator[tuple[Where, Where]]:
    """Which call followed which, of those made earlier."""
    for number in sorted(number for number in book.calls if book.first < number < before):
        a, b = where(book.calls.get(number - 1)), where(book.calls.get(number))
        if a is not None and b is not None:
            yield a, b


def _again(before: Where, after: Where) -> bool:
    """Whether one has come round to an earlier line, or the same, since `before`: that is what a loop looks like."""
    for one, other in zip(before, after, strict=False):
        if one[:2] != other[:2]:
            return False
        if one[2] != other[2]:
            return other[2] < one[2]
    return True
