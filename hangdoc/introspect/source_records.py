"""Answers of `hangdoc.introspect.parsers.line_context` as evidence records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hangdoc.evidence import Branch, CollectiveArgument, Loop, Place
from hangdoc.redaction.text import redact_source

WIDTH = 120  # characters of a line or an expression that are kept


def places_of(answer: Any) -> Iterator[tuple[int, Place]]:
    """The answer of `hangdoc.introspect.parsers.line_context.places` as records; equal parts are kept once."""
    same: dict[Any, Any] = {}

    def one(item: Any) -> Any:
        return same.setdefault(item, item)

    def loops(rows: Iterable[Any]) -> tuple[Loop, ...]:
        found: tuple[Loop, ...] = one(
            tuple(
                one(Loop(first, last, shown(header), tuple(map(_cut, counters))))
                for first, last, header, counters in rows
            )
        )
        return found

    functions = {
        first: (
            last,
            tuple(map(shown, calls)),
            tuple(CollectiveArgument(op, _cut(name), line) for op, name, line in hands),
        )
        for first, last, calls, hands in answer["functions"]
    }
    for line, place in answer["places"].items():
        if place is not None:
            first, text, around, branches, calls, passed = place
            last, called, hands = functions[first]
            yield (
                int(line),
                Place(
                    text=shown(text),
                    loops=loops(around),
                    branches=one(
                        tuple(one(Branch(line, arm, shown(test), leaves)) for line, arm, test, leaves in branches)
                    ),
                    calls=one(tuple(map(shown, calls))),
                    function_first=first,
                    function_last=last,
                    passed=loops(passed),
                    around=called,
                    hands=hands,
                ),
            )


def shown(text: str) -> str:
    """A line or an expression without its secrets, short enough to show."""
    return _cut(redact_source(text))


def _cut(text: str) -> str:
    return text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."


@dataclass(frozen=True, slots=True)
class Guards:
    """Expressions like `self.lock`, of `with` statements and of calls of `acquire`, in the order of their lines."""

    acquires: tuple[str, ...]  # by the line itself
    inside: tuple[str, ...]  # before it, in the same function


def guards(table: Sequence[Any], line: int) -> Guards:
    """Of the innermost function around `line`; `table` as `hangdoc.introspect.parsers.lock_calls.table` has it."""
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
