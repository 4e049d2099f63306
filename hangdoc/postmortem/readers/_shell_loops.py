"""Loops of a shell over processes: `for p in 811 812; do py-spy dump -p $p | sed -n 5,7p; done   # ranks 0 1`.

A filter may leave of each process only some frames. Without headings between them, the number of processes shows where
the stack of one ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from hangdoc.postmortem.readers._cleaning import TextLine
from hangdoc.postmortem.readers._host_names import listed_numbers

MAX_PROCESSES = 1024  # of one loop
MAX_LINES = 20_000  # of its output
_LOOP = re.compile(
    r"(?:^|[$#%>;] ?)for (?P<name>[A-Za-z_]\w{0,30}) in (?P<items>\d{1,9}(?: \d{1,9}){1,1023}) ?;? ?do\b"
    r"(?P<body>[^\n]{1,600}?)\bdone\b(?P<rest>[^\n]{0,200})$"
)
_OF_RANKS = re.compile(
    r"\branks?[ :=]{1,3}(?P<ranks>\d{1,6}(?:(?: ?(?:,(?: and)?|and|&|-|\u2013|to|/) ?| )\d{1,6}){0,1023})(?![\w.])",
    re.IGNORECASE,
)
_BY_RANK = re.compile(r"(?:global_?)?ranks?|r", re.IGNORECASE)  # a variable


@dataclass(frozen=True, slots=True)
class LoopItem:
    """What one round of a loop examines."""

    pid: int | None
    rank: int | None


def loop_items(text: str) -> Sequence[LoopItem]:
    """The processes of a loop, in order; empty: the text is no loop, or its numbers may be anything."""
    loop = _LOOP.search(text) if len(text) <= 16 * 2**10 and "for " in text and "done" in text else None
    if loop is None or f"${loop['name']}" not in loop["body"].replace("{", ""):
        return ()
    numbers = [int(one) for one in loop["items"].split()]
    if _BY_RANK.fullmatch(loop["name"]):
        return [LoopItem(None, number) for number in numbers]
    if min(numbers) < 100:
        return ()
    said = _OF_RANKS.search(loop["rest"])
    listed = re.sub(r"(?<=\d) (?=\d)", ", ", said["ranks"]).replace("/", ",") if said else ""
    ranks: Sequence[int | None] = listed_numbers(listed, MAX_PROCESSES)
    if len(ranks) != len(numbers):
        ranks = [None] * len(numbers)
    return [LoopItem(pid, rank) for pid, rank in zip(numbers, ranks, strict=True)]


def with_loop_headings(lines: Sequence[TextLine], is_frame: Callable[[str], bool]) -> list[TextLine]:
    """The lines, with a heading above the frames of each process of a loop whose output has none."""
    found: list[TextLine] = []
    done = 0
    for at, line in enumerate(lines):
        if at < done or not (items := loop_items(line.text)):
            continue
        found += lines[done : at + 1]
        done = at + 1
        pieces = _pieces(lines, at + 1, len(items), is_frame)
        for item, piece in zip(items, pieces, strict=False):
            found += [replace(piece[0], text=_heading(item)), *piece]
            done += len(piece)
            while done < len(lines) and not lines[done].text.strip():
                done += 1
    return [*found, *lines[done:]] if found else list(lines)


def _heading(item: LoopItem) -> str:
    if item.rank is None:
        return f"pid {item.pid}:"
    return f"rank {item.rank}:" if item.pid is None else f"rank {item.rank} (pid {item.pid}):"


def _pieces(
    lines: Sequence[TextLine], start: int, count: int, is_frame: Callable[[str], bool]
) -> Sequence[Sequence[TextLine]]:
    """So many stacks: with an empty line between two, or without, and then all as long. Empty: it is unclear."""
    blocks = list(_blocks(lines, start, is_frame))
    if len(blocks) == count:
        return blocks
    size, left = divmod(len(blocks[0]), count) if len(blocks) == 1 else (0, 1)
    return [blocks[0][one * size : (one + 1) * size] for one in range(count)] if size and not left else ()


def _blocks(lines: Sequence[TextLine], start: int, is_frame: Callable[[str], bool]) -> Iterator[Sequence[TextLine]]:
    """Frames in a row, as long as nothing but empty lines is between them."""
    block: list[TextLine] = []
    for line in lines[start : start + MAX_LINES]:
        if is_frame(line.text):
            block.append(line)
            continue
        if block:
            yield block
        block = []
        if line.text.strip():
            return
    if block:
        yield block
