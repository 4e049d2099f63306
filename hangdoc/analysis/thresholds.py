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
    # shares of the looks or of the time
    "HALF": Threshold(0.5, "share", "half of the looks, of the time or of the ranks"),
    "MOSTLY": Threshold(0.8, "share of the looks", "a rank that does one thing in four of five looks does little else"),
    "NEARLY_ALWAYS": Threshold(0.9, "share of the looks", "chosen: nine looks in ten leave no room for a step"),
    "LARGELY": Threshold(0.6, "share of the looks", "chosen: a rank that does one thing more than it does all others"),
    "OFTEN": Threshold(0.3, "share of the looks", "chosen: more than the few looks that find a healthy rank there"),
    "SELDOM": Threshold(
        0.25, "share of the looks", "less is normal on a busy host (`LATE` in analysis/compute/straggler.py)"
    ),
    "HELD_UP": Threshold(
        0.6, "share of the time", "chosen: a rank that waits this long for its peers is not the one that slows the job"
    ),
    # time watched
    "WATCHED_S": Threshold(6.0, "s", "chosen: longer than one slow batch, so that a single pause is no pattern"),
    "WATCHED_LONG_S": Threshold(
        5.0,
        "seconds",
        "chosen: several looks; what a running loop does in every step is seen in that time, so unseen means never",
    ),
    "WATCHED_LOOKS": Threshold(6, "looks", "chosen: with fewer looks, one look more or less decides about a share"),
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
    # storage and input
    "SLOW_STORAGE": Threshold(
        5e6, "bytes per second", "healthy checkpoints run at tens of MB/s: runbook of checkpoint-stall, look-alikes"
    ),
    "LONG_BLOCKED_S": Threshold(6.0, "s", "chosen: a healthy disk answers a read in far less"),
    "LONG_GAP_S": Threshold(
        1.3, "s without data", "chosen: above the pauses of a healthy loader; a slow transform's batches take longer"
    ),
    "AWAITED_GAP_S": Threshold(
        0.5, "s without data", "a shorter silence on a connection is normal (`GAP_S` in analysis/data/dataloading.py)"
    ),
    # network
    "UNANSWERED_S": Threshold(
        3.0, "seconds", "Linux repeats a SYN after 1 s, and again by 3 s: a host that is there has answered one of them"
    ),
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
    "SMALL_GRADIENTS": Threshold(
        4096.0,
        "bytes in a step",
        "chosen: float32 gradients of about 1,000 parameters; an averaged loss or metric is smaller",
    ),
    # pace
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
