"""Answers of `hangdoc.introspect.line_context` as evidence records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hangdoc.evidence import Branch, CollectiveArgument, Loop, Place
from hangdoc.redaction.text import redact_source

WIDTH = 120  # characters of a line or an expression that are kept


def places_of(answer: Any) -> Iterator[tuple[int, Place]]:
    """The answer of `hangdoc.introspect.line_context.places` as records; equal parts are kept once."""
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
