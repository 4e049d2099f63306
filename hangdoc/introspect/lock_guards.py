"""What the source says a line acquires, and what was acquired before it and not given back: only parsed, never run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Guards:
    """Expressions like `self.lock`, of `with` statements and of calls of `acquire`, in the order of their lines."""

    acquires: tuple[str, ...]  # by the line itself
    inside: tuple[str, ...]  # before it, in the same function


def guards(table: Sequence[Any], line: int) -> Guards:
    """Of the innermost function around `line`; `table` as `hangdoc.introspect.lock_calls.table` has it."""
    around = [row for row in table if row[0] < line <= row[1]]
    events = max(around, key=lambda row: row[0])[2] if around else ()
    here: list[str] = []
    before: list[tuple[int, str]] = []
    for kind, first, *rest in events:
        if kind == "with" and first <= line <= rest[0]:
            last, body, name = rest
            if line < body or line == first:  # the latter: its body stands on the same line
                here.append(name)
            else:
                before.append((first, name))
        elif kind == "get":
            last, name = rest
            if first <= line <= last:
                here.append(name)
            elif first < line and not _given_back(events, name, first, line):
                before.append((first, name))
    return Guards(tuple(dict.fromkeys(here)), tuple(dict.fromkeys(name for _, name in sorted(before))))


def _given_back(events: Sequence[Any], name: str, after: int, line: int) -> bool:
    return any(event[0] == "give" and event[2] == name and after < event[1] < line for event in events)
