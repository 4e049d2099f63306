"""Answers of `hangdoc.introspect.parsers` as records: places (`line_context`) and locks (`lock_calls`) of lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hangdoc.evidence import Branch, CollectiveArgument, Loop, Place
from hangdoc.redaction.text import redact_source

WIDTH = 120  # characters kept of a line or an expression


def _loop(
    first: int, last: int, header: str, counters: Iterable[str], exits: Iterable[str], unconditional: bool
) -> Loop:
    tests = tuple(map(redacted_source, exits))
    return Loop(first, last, redacted_source(header), tuple(map(_cut, counters)), tests, unconditional)


def places_of(answer: Any) -> Iterator[tuple[int, Place]]:
    """Places by line, from an answer of `line_context.places`; equal parts are shared."""
    same: dict[Any, Any] = {}

    def interned(item: Any) -> Any:
        return same.setdefault(item, item)

    def loops(rows: Iterable[Any]) -> tuple[Loop, ...]:
        found: tuple[Loop, ...] = interned(tuple(interned(_loop(*row)) for row in rows))
        return found

    def arms(rows: Iterable[Any]) -> tuple[Branch, ...]:
        made = (interned(Branch(line, arm, redacted_source(test), leaves)) for line, arm, test, leaves in rows)
        found: tuple[Branch, ...] = interned(tuple(made))
        return found

    functions = {
        first: (
            last,
            tuple(map(redacted_source, calls)),
            tuple(CollectiveArgument(op, _cut(name), line) for op, name, line in hands),
        )
        for first, last, calls, hands in answer["functions"]
    }
    for line, place in answer["places"].items():
        if place is not None:
            first, text, around, branches, calls, passed, guards = place
            last, called, hands = functions[first]
            yield (
                int(line),
                Place(
                    text=redacted_source(text),
                    loops=loops(around),
                    branches=arms(branches),
                    calls=interned(tuple(map(redacted_source, calls))),
                    function_first=first,
                    function_last=last,
                    passed=loops(passed),
                    around=called,
                    hands=hands,
                    guards=arms(guards),
                ),
            )


def redacted_source(text: str) -> str:
    """A line or an expression, redacted and shortened."""
    return _cut(redact_source(text))


def _cut(text: str) -> str:
    return text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."


@dataclass(frozen=True, slots=True)
class Guards:
    """Locks at a line: expressions such as `self.lock` in `with` statements and `acquire` calls, in line order."""

    acquires: tuple[str, ...]  # at the line itself
    inside: tuple[str, ...]  # held: acquired before it in the same function and not released


def guards(table: Sequence[Any], line: int) -> Guards:
    """Locks at `line`, in its innermost function; `table` is an answer of `lock_calls.table`."""
    around = [row for row in table if row[0] < line <= row[1]]
    events = max(around, key=lambda row: row[0])[2] if around else ()
    here: list[str] = []
    before: list[tuple[int, str]] = []
    for kind, first, *rest in events:
        if kind == "with" and first <= line <= rest[0]:
            last, body, name = rest
            if line < body or line == first:  # or its body is on the same line
                here.append(name)
            else:
                before.append((first, name))
        elif kind == "get":
            last, name = rest
            if first <= line <= last:
                here.append(name)
            elif first < line and not _is_released(events, name, first, line):
                before.append((first, name))
    return Guards(tuple(dict.fromkeys(here)), tuple(dict.fromkeys(name for _, name in sorted(before))))


def _is_released(events: Sequence[Any], name: str, after: int, line: int) -> bool:
    return any(event[0] == "give" and event[2] == name and after < event[1] < line for event in events)
