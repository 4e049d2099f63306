"""What the sentences of a text say about the ranks of all its stack dumps."""

from __future__ import annotations

import re

from hangdoc.postmortem.readers._host_names import MAX_LINES, listed_numbers
from hangdoc.postmortem.readers._owner_hints import (
    DEBUGGER,
    MAX_COMPANIONS,
    MAX_PROSE,
    OTHER_RANK,
    RANK,
    SENTENCE,
    several_ranks,
)

# The processes of a text and their ranks, in the same order: `pids are rank 0,1,2,3 in that order`, `in rank order`.
_IN_ORDER = re.compile(
    r"\branks?[\s:=]{1,3}(?P<ranks>\d{1,6}(?: ?(?:,(?: and)?|and|&|-|\u2013|to|\.\.) ?(?:rank )?\d{1,6}){1,64})[,;)]? ?"
    r"\(?(?:respectively\b|in (?:(?:exactly )?(?:that|this|the same|ascending) )?order\b(?! (?:to|that|of)\b))"
    r"|\b(?:in|by) (?:the order of )?(?:(?:their|the) )?ranks?\b(?=[ -]order\b|[.):]?\s*$)"
    r"|\b(?:in order of|(?:sorted|ordered) by) (?:(?:their|the|global) )?ranks?\b"
    r"|\border of (?:the )?(?:pids?|process(?:es)?|dumps?|stacks?) ?(?:=|is|:|follows) ?(?:that of )?(?:the )?"
    r"(?:local[_ ])?ranks?\b",
    re.IGNORECASE | re.MULTILINE,
)


def ranks_in_order(text: str, processes: int) -> tuple[int, ...]:
    """The ranks of so many processes, in the order in which a text shows them, as it says. Empty: it does not say."""
    found = {
        listed_numbers(match["ranks"].replace("rank ", ""), MAX_COMPANIONS)
        if match["ranks"]
        else tuple(range(processes))
        for match in _IN_ORDER.finditer(text)
        if "reverse" not in match[0]
    }
    ranks = found.pop() if len(found) == 1 else ()
    return ranks if len(ranks) == processes else ()


def examined_rank(text: str) -> int | None:
    """The only rank of which sentences say that a debugger was used on it. None: none, or several.

    `py-spy on rank 2 shows`, `rank 5 never got there, so I attached gdb to it`. A sentence about several ranks counts
    for none.
    """
    found: set[int] = set()
    for line in text.split("\n", MAX_LINES)[:MAX_LINES]:
        if len(line) > MAX_PROSE or not DEBUGGER.search(line) or not RANK.search(line):
            continue
        for sentence in SENTENCE.split(line):
            if not DEBUGGER.search(sentence) or several_ranks(sentence):
                continue
            found |= {int(one[1]) for one in RANK.finditer(OTHER_RANK.sub(" ", sentence))}
    return found.pop() if len(found) == 1 else None
