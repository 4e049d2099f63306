from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from msgspec.structs import replace

from hangdoc.incident.record import IncidentRecord
from hangdoc.incident.recurrence import recurrence
from hangdoc.recording.verdict_json import to_json
from tests.support.verdicts import ALL, dead_link, hostile, uneven

NOW = datetime(2026, 11, 24, 3, 15, tzinfo=timezone.utc)


def incident(verdict: Any, ago: timedelta = timedelta(), number: int = 0, status: str = "stalled") -> IncidentRecord:
    at = (NOW - ago).isoformat()
    made = IncidentRecord(f"id {number}", "none", "", None, None, 1, (), at, at, at, None, status)
    return replace(made, verdicts=() if verdict is None else (to_json(verdict),))


def past(verdict: Any, *ago: timedelta) -> list[IncidentRecord]:
    return [incident(verdict, one, number) for number, one in enumerate(ago, 1)]


@pytest.mark.parametrize(
    ("verdict", "others", "text"),
    [
        (
            dead_link(),
            past(dead_link(), timedelta(days=6), timedelta(days=2)),
            "third stall on node04's eth0 in 6 days",
        ),
        (uneven(), past(uneven(), timedelta(hours=5)), "second stall at finish (train.py:31) in 5 hours"),
        (uneven(), past(uneven(), *[timedelta(days=1)] * 11), "12th stall at finish (train.py:31) in 1 day"),
        (uneven(), past(dead_link(), timedelta(days=1)), ""),
        (uneven(), past(uneven(), timedelta(days=31)), ""),
        (uneven(), past(uneven(), timedelta(days=-1)), ""),  # a clock that was set back
        (uneven(), past(None, timedelta(days=1)), ""),
        (uneven(), [], ""),
        (None, past(uneven(), timedelta(days=1)), ""),
    ],
)
def test_text(verdict: Any, others: list[IncidentRecord], text: str) -> None:
    assert recurrence(incident(verdict), others) == text


def test_the_noun_is_that_of_the_status() -> None:
    assert recurrence(incident(uneven(), status="slow"), past(uneven(), timedelta(days=1))).startswith(
        "second slowdown"
    )


def test_an_incident_is_no_recurrence_of_itself() -> None:
    one = incident(uneven())
    assert recurrence(one, [one]) == ""


@pytest.mark.parametrize("verdict", [*ALL, hostile("x" * 10_000)])
def test_any_verdict_is_one_bounded_line(verdict: Any) -> None:
    text = recurrence(incident(verdict), past(verdict, timedelta(days=1)))
    assert len(text) < 200
    assert "\n" not in text


@pytest.mark.parametrize("damaged", [{}, {"findings": 1}, {"findings": [{"links": [1], "culprits": None}], "job": []}])
def test_a_damaged_verdict_recurs_nowhere(damaged: dict[str, Any]) -> None:
    one = replace(incident(None), verdicts=(damaged,))
    assert recurrence(one, [replace(one, id="other")]) == ""
