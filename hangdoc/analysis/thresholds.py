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
    # How often, over the window:
    "SELDOM": Threshold(
        0.25, "share of the looks", "less is normal on a busy host (`LATE` in analysis/compute/straggler.py)"
    ),
    "OFTEN": Threshold(0.3, "share of the looks", "chosen: more than the few looks that find a healthy rank there"),
    "HALF": Threshold(0.5, "share", "half of the looks, of the time or of the ranks"),
    "LARGELY": Threshold(0.6, "share of the looks", "chosen: a rank that does one thing more than it does all others"),
    "NEARLY_ALWAYS": Threshold(0.9, "share of the looks", "chosen: nine looks in ten leave no room for a step"),
    # How long a job must have been watched before it is called slow:
    "WATCHED_S": Threshold(6.0, "s", "chosen: longer than one slow batch, so that a single pause is no pattern"),
    "WATCHED_LOOKS": Threshold(6, "looks", "chosen: with fewer looks, one look more or less decides about a share"),
    # Data that comes late:
    "LONG_GAP_S": Threshold(
        1.3, "s without data", "chosen: above the pauses of a healthy loader; a slow transform's batches take longer"
    ),
    "AWAITED_GAP_S": Threshold(
        0.5, "s without data", "a shorter silence on a connection is normal (`GAP_S` in analysis/data/dataloading.py)"
    ),
    # Packet loss:
    "ENOUGH_RETRANSMISSIONS": Threshold(
        5, "segments", "a share of fewer means nothing (`LOSSY_REPEATS` in analysis/network/throughput.py)"
    ),
    "LOSS_THAT_SLOWS_TCP": Threshold(
        0.02, "share of the segments", "TCP is slow at a loss above 2 % (analysis/network/throughput.py)"
    ),
    "HEAVY_LOSS": Threshold(0.1, "share of the segments", "chosen: no queue that overflows now and then loses so much"),
    "REPEATED_LOSS": Threshold(
        5, "intervals with a loss", "chosen: a link counts as lossy from three; this is more than a single burst"
    ),
    # CPU time:
    "SOME_CPU": Threshold(0.3, "cores", "chosen: a process that computes gets more; one that polls or starves, less"),
    "OFTEN_QUEUED": Threshold(
        0.3, "share of the requested CPU time in a run queue", "chosen: with a free core for each thread it is near 0"
    ),
    "OVER_ONE_CORE": Threshold(
        1.1, "cores demanded", "one busy thread demands 1.0 at most: chosen for the ranks beside one well over one core"
    ),
    "WELL_OVER_ONE_CORE": Threshold(
        1.25, "cores demanded", "chosen: more than one busy thread and the small threads beside it"
    ),
    "CORES_OVERCOMMITTED": Threshold(
        1.6, "cores demanded per core", "chosen: halfway and more from fully used cores (1.0) to two threads per core"
    ),
    "BOUND_CORES_OVERCOMMITTED": Threshold(
        1.4, "cores demanded per core", "chosen: lower, because the binding of the ranks is evidence of its own"
    ),
    "CORES_OVERCOMMITTED_TWICE": Threshold(
        2.2, "cores demanded per core", "chosen: clearly more than two threads for each core"
    ),
    "BUSY_THREADS_PER_CORE": Threshold(2, "threads", "chosen: fewer can take turns without waiting for each other"),
    "MANY_BUSY_THREADS_PER_CORE": Threshold(4, "threads", "chosen: twice the number at which threads compete"),
    # Stragglers; see analysis/compute/straggler.py:
    "NOTICEABLE_WAIT": Threshold(
        0.12, "share of the time", "just below half of `LATE`, the least lateness of a straggler with more work"
    ),
    "VERY_LATE": Threshold(
        0.4, "share of the time", "`LATE_UNEXPLAINED`: enough to be a straggler without a known cause"
    ),
    "MUCH_MORE_CPU": Threshold(
        1.5, "times the CPU time of other ranks", "`HEAVIER`: a busy host does not make that difference"
    ),
}


def names() -> tuple[str, ...]:
    """The names that playbooks may write."""
    return tuple(THRESHOLDS)


def is_name(name: str) -> bool:
    return name in THRESHOLDS


def value(name: str) -> float:
    return THRESHOLDS[name].value
