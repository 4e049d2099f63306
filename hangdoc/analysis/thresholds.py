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
    "HALF": Threshold(0.5, "share", "half of the looks, of the time or of the ranks"),
    "OFTEN": Threshold(0.3, "share of the looks", "chosen: more than the few looks that find a healthy rank there"),
    "HELD_UP": Threshold(
        0.6, "share of the time", "chosen: a rank that waits this long for its peers is not the one that slows the job"
    ),
    "WATCHED_S": Threshold(6.0, "s", "chosen: longer than one slow batch, so that a single pause is no pattern"),
    # CPU
    "SOME_CPU": Threshold(0.3, "cores", "chosen: a process that computes gets more; one that polls or starves, less"),
    "CPU_BOUND": Threshold(
        0.5, "cores", "chosen: a rank that uses more while it writes spends its time on serialising, not on the storage"
    ),
    "THROTTLED_PERIODS": Threshold(
        0.3, "share of the quota's periods", "chosen: three times the tenth at which its runbook alerts"
    ),
    "THROTTLED_TIME": Threshold(0.1, "share of the time", "chosen: the smallest loss that is worth an alert"),
    "MUCH_THROTTLED_TIME": Threshold(
        0.2, "share of the time", "chosen: below a fifth, something else may slow the job down more"
    ),
    "MANY_COMPILATIONS": Threshold(
        4, "iterations", "one more than the three that make a compilation recurrent (`ITERATIONS` of recompilation.py)"
    ),
    # memory
    "FULL": Threshold(
        0.9, "share of the memory limit", "chosen: the kernel reclaims below the limit, so usage stays just under it"
    ),
    "MAJOR_FAULTS": Threshold(5.0, "per second", "chosen: a rank that fits into its memory has none once it is warm"),
    "REFAULTS": Threshold(
        100.0, "pages per second", "chosen: separates thrashing from the odd page that is read again"
    ),
    "OFTEN_BLOCKED": Threshold(
        0.15, "share of the samples in state D", "chosen: page faults then cost the rank a seventh of its time"
    ),
    "MEMORY_STALL": Threshold(
        0.1, "share of the time", 'the alert of the runbook of memory-pressure: "some avg60 > 10" (per cent)'
    ),
    "SOME_MEMORY_STALL": Threshold(0.01, "share of the time", "chosen: less is printed as 0 % and says nothing"),
    "SOME_SWAP": Threshold(2**20, "bytes", "chosen: 1 MiB; a few idle pages are swapped out on healthy hosts, too"),
    "SWAP_FAULTS": Threshold(
        30.0, "major faults per second", '"dozens per second": runbook of memory-pressure, how to confirm'
    ),
    # storage
    "SLOW_STORAGE": Threshold(
        5e6, "bytes per second", "healthy checkpoints run at tens of MB/s: runbook of checkpoint-stall, look-alikes"
    ),
    "LONG_BLOCKED_S": Threshold(6.0, "s", "chosen: a healthy disk answers a read in far less"),
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
