"""Loops of a shell: over hosts (`for h in n1 n2; do ssh $h nvidia-smi; done`), or over processes.

`for p in 811 812; do py-spy dump -p $p | sed -n 5,7p; done   # ranks 0 1`: a filter may leave of each process only some
frames. Without headings between them, the number of processes shows where the stack of one ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from hangdoc.postmortem.readers._cleaning import TextLine
from hangdoc.postmortem.readers._host_names import listed_numbers

MAX_WORDS = 1024  # over which a loop goes
MAX_LINES = 20_000  # of its output
MAX_TEXT = 16 << 10  # of a line that is searched for a loop
_FOR = re.compile(r"for (?P<variable>[A-Za-z_]\w{0,30}) in (?P<words>[^;\n]{1,12000})")
_DO = re.compile(r"(?:; ?| )do\b")
_DONE = re.compile(r"\bdone\b(?P<rest>[^\n]{0,200})$")
_RANGE = re.compile(r"([\w.-]{0,100})\{(\d{1,6})\.\.(\d{1,6})\}([\w.-]{0,100})|\$\(seq (?:-w )?(\d{1,6}) (\d{1,6})\)")
_OF_RANKS = re.compile(
    r"\branks?[ :=]{1,3}(?P<ranks>\d{1,6}(?:(?: ?(?:,(?: and)?|and|&|-|\u2013|to|/) ?| )\d{1,6}){0,1023})(?![\w.])",
    re.IGNORECASE,
)
_BY_RANK = re.compile(r"(?:global_?)?ranks?|r", re.IGNORECASE)  # a variable


@dataclass(frozen=True, slots=True)
class ShellLoop:
    """A loop, as it was typed in one line."""

    variable: str
    words: tuple[str, ...]  # its values, in order, ranges such as `n{1..3}` spread
    body: str  # what is behind `do`, up to the end of the line


def shell_loop(text: str) -> ShellLoop | None:
    """The first loop of a line."""
    if "for " not in text or len(text) > MAX_TEXT:
        return None
    for do in _DO.finditer(text):
        start = text.rfind("for ", 0, do.start())
        if start >= 0 and (head := _FOR.fullmatch(text, start, do.start())):
            return ShellLoop(head["variable"], tuple(islice(_all_words(head["words"]), MAX_WORDS)), text[do.end() :])
    return None


def _all_words(text: str) -> Iterator[str]:
    ranged = _RANGE.fullmatch(text.strip())  # `$(seq 1 8)` has blanks
    for word in [ranged[0]] if ranged else text.split():
        yield from _spread(word)


def _spread(word: str) -> Iterator[str]:
    """`n{1..3}` as n1, n2, n3."""
    found = _RANGE.fullmatch(word)
    if found is None:
        yield word
        return
    first, last = found[2] or found[5], found[3] or found[6]
    for number in range(int(first), int(last) + 1):
        yield f"{found[1] or ''}{number:0{len(first)}d}{found[4] or ''}"


@dataclass(frozen=True, slots=True)
class LoopItem:
    """What one round of a loop examines."""

    pid: int | None
    rank: int | None


def loop_items(text: str) -> Sequence[LoopItem]:
    """The processes of a loop, in order; empty: the text is no loop, or its numbers may be anything."""
    loop = shell_loop(text)
    done = _DONE.search(loop.body) if loop else None
    if loop is None or done is None or f"${loop.variable}" not in loop.body.replace("{", ""):
        return ()
    if len(loop.words) < 2 or not all(word.isascii() and word.isdigit() and len(word) < 10 for word in loop.words):
        return ()
    numbers = [int(word) for word in loop.words]
    if _BY_RANK.fullmatch(loop.variable):
        return [LoopItem(None, number) for number in numbers]
    if min(numbers) < 100:
        return ()
    said = _OF_RANKS.search(done["rest"])
    listed = re.sub(r"(?<=\d) (?=\d)", ", ", said["ranks"]).replace("/", ",") if said else ""
    ranks: Sequence[int | None] = listed_numbers(listed, MAX_WORDS)
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
