"""The JSON contract: one object per line."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hangdoc.recording.verdict_json import to_json
from hangdoc.verdict import Verdict

if TYPE_CHECKING:
    from hangdoc.rules.explanation import Explanation
    from hangdoc.watch.run import Event


def verdict_line(verdict: Verdict) -> str:
    """A verdict (`hangdoc.verdict/1`) on one line, without the newline."""
    return line(to_json(verdict))


def event_line(event: Event) -> str:
    """An event of the live watch, with its verdict, if any, under `verdict`."""
    fields: dict[str, Any] = {"event": event.kind, "time": event.time, **event.data}
    if event.verdict is not None:
        fields["verdict"] = to_json(event.verdict)
    return line(fields)


def explanation_line(explanation: Explanation, job: str) -> str:
    """Why a playbook applies to a job, or does not, on one line."""
    return line({"job": job, **asdict(explanation)})


def line(value: Any) -> str:
    """Any JSON value on one line of ASCII, so that no control character of a target reaches the terminal."""
    return json.dumps(value, ensure_ascii=True, default=str)
