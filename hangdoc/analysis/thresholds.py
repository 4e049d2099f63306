"""The thresholds of analyses and playbooks: name, value, unit, and where the value comes from.

A playbook writes the name (`progress.wait_share >= MOSTLY`); `docs/playbooks.md` lists them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number that decides."""

    value: float
    unit: str
    source: str


THRESHOLDS: Mapping[str, Threshold] = {
    "MOSTLY": Threshold(0.8, "share of the looks", "a rank that does one thing in four of five looks does little else"),
    "UNANSWERED_S": Threshold(
        3.0, "seconds", "Linux repeats a SYN after 1 s, and again by 3 s: a host that is there has answered one of them"
    ),
}


def names() -> tuple[str, ...]:
    """The names that playbooks may write."""
    return tuple(THRESHOLDS)


def is_name(name: str) -> bool:
    return name in THRESHOLDS


def value(name: str) -> float:
    return THRESHOLDS[name].value
