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
    "SMALL_GRADIENTS": Threshold(
        4096.0,
        "bytes in a step",
        "chosen: float32 gradients of about 1,000 parameters; an averaged loss or metric is smaller",
    ),
    "WATCHED_LONG_S": Threshold(
        5.0,
        "seconds",
        "chosen: several looks; what a running loop does in every step is seen in that time, so unseen means never",
    ),
}


def names() -> tuple[str, ...]:
    """The names that playbooks may write."""
    return tuple(THRESHOLDS)


def is_name(name: str) -> bool:
    return name in THRESHOLDS


def value(name: str) -> float:
    return THRESHOLDS[name].value
