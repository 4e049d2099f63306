"""The JSON contract: one object a line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hangdoc.recording.verdict_json import to_json
from hangdoc.verdict import Verdict

if TYPE_CHECKING:
    from hangdoc.watch.run import Event


def verdict_line(verdict: Verdict) -> str:
    """A verdict (`hangdoc.verdict/1`) on one line, without the newline."""
    return line(to_json(verdict))


def event_line(event: Event) -> str:
    """An event of the live watch; one with a verdict carries it under `verdict`."""
    told: dict[str, Any] = {"event": event.kind, "time": event.time, **event.data}
    if event.verdict is not None:
        told["verdict"] = to_json(event.verdict)
    return line(told)


def line(value: Any) -> str:
    """Any JSON value on one line of ASCII: no control character of a target reaches the terminal."""
    return json.dumps(value, ensure_ascii=True, default=str)
