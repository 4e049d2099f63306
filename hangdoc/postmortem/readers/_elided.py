"""Frames that a person left out of a stack: `...`, `(same as above)`, `[snip]`, `... same as rank 0`.

Whoever pastes many stacks shows one in full, and of the next ones what tells them apart. The frames that are left out
are those of an earlier stack with the same frames before and behind the mark; without such a stack, the gap stays.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from hangdoc.evidence import Frame

MAX_MARK = 80  # characters
MAX_EARLIER = 64  # stacks that a mark may refer to
MAX_FILLED = 4096  # frames

_ALIKE = (
    r"(?:(?:the )?(?:rest|remainder|other frames|outer frames|inner frames|frames|stack|everything else)[ :,]{1,2})?"
    r"(?:is |are )?(?:exactly )?(?:the )?(?:(?:same|identical|unchanged|ditto|as above|as before|snip(?:ped)?|cut"
    r"|omitted|elided|truncated|skipped)\b(?: (?:stack|frames|rest|trace|one|thing|here|again|below|from here|down))*"
    r"|(?=(?:as|like) (?:in |on )?(?:the )?(?:global )?rank\b))"
    r"(?: ?(?:as|to|in|on|like) (?:in |on |for )?(?:the )?(?:(?:global )?rank[ _#=:-]{0,2}(?P<rank>\d{1,6})"
    r"|(?:local[ _]rank|card|gpu|worker|proc(?:ess)?|pid)[ _#=:-]{0,2}\d{1,9}"
    r"|above|before|previous(?: one)?|first(?: one)?|(?:all |the )?(?:other|others|rest|peers)))?(?:, [^<>()\n]{1,50})?"
)
_MARK = re.compile(
    rf"[\s>|]*[\[(<{{*_#/-]{{0,4}}\s?(?:\.{{2,6}}|\u2026)?\s?[\[(<]?\s?(?P<said>{_ALIKE})?\s?[\])>}}]?(?:\.{{2,6}}|\u2026)?"
    r"\s?[\])>}*_/.-]{0,6}\s*",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Elision:
    """A mark for frames that are left out."""

    rank: int | None = None  # whose stack has them, as the mark says
    said: bool = False  # the mark says that the stack is that of another process; else it may be any frames


def elision(text: str) -> Elision | None:
    """The mark in a line; None: the line is none."""
    if len(text) > MAX_MARK or not text.strip(" \t>|"):
        return None
    found = _MARK.fullmatch(text)
    if found is None or not (found["said"] or ".." in text or "\u2026" in text):
        return None
    return Elision(int(found["rank"]) if found["rank"] else None, found["said"] is not None)


@dataclass(slots=True)
class EarlierStacks:
    """The stacks of a text so far, which later ones may refer to."""

    _known: deque[tuple[int | None, tuple[Frame, ...]]] = field(default_factory=lambda: deque(maxlen=MAX_EARLIER))

    def add(self, rank: int | None, frames: Sequence[Frame]) -> None:
        """Keep a stack without a gap."""
        if frames:
            self._known.append((rank, tuple(frames)))

    def between(self, before: Sequence[Frame], behind: Sequence[Frame], mark: Elision) -> tuple[Frame, ...]:
        """The frames that a mark stands for between two parts of a stack; empty: no earlier stack has both parts."""
        named = [frames for rank, frames in self._known if rank == mark.rank]
        known = named if mark.rank is not None and named else [frames for _, frames in self._known]
        if not (before or behind) and not mark.said:
            return ()
        for frames in reversed(known):
            inner = frames[len(before) : len(frames) - len(behind)]
            if inner and _places(frames[: len(before)]) == _places(before) and _ends(frames, behind):
                return inner[:MAX_FILLED]
        return ()


def _ends(frames: Sequence[Frame], behind: Sequence[Frame]) -> bool:
    return _places(frames[len(frames) - len(behind) :]) == _places(behind)


def _places(frames: Sequence[Frame]) -> list[tuple[str, str, int | None]]:
    return [(frame.function, frame.file, frame.line) for frame in frames]
