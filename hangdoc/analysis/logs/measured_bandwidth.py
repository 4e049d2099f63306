"""Analysis `bandwidth`: what bandwidth tests measured: a host, a pair of hosts or an adapter far slower than its peers.

Only equal measurements are compared: the same test and size, inside one host or between as many. A host is named if it
is in slow runs only, and the other hosts of each of these runs are in a fast one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from hangdoc.analysis import Case, Detector, Suspect
from hangdoc.analysis.logs.log_events import job_logs, number
from hangdoc.analysis.thresholds import COMPARABLE_RANKS, MUCH_MORE_OF_TWO, RATE_COLLAPSE, SLOWER_RUN
from hangdoc.evidence.logs import LogEvent

MAX_SUSPECTS = 16
MAX_SHOWN = 4
AVERAGE = "average"  # of a run, in place of a size


Names = tuple[str, ...]  # the hosts of a run, or its adapter


@dataclass(frozen=True, slots=True)
class BandwidthJob:
    """The results of bandwidth tests. None: no test shows it."""

    slow: tuple[Suspect, ...] = ()  # hosts that are slower than their peers in the same test
    slow_text: str | None = None  # "all_reduce_perf: 92.7 GB/s on hgx-27, 469 GB/s on the other 3"
    between: bool = False  # the slow runs are between hosts, not inside one
    of_two: bool = False  # only two runs can be compared
    drop_text: str | None = None  # in one table, large messages are far slower than smaller ones
    wrong: int = 0  # values that a test found to be wrong
    wrong_text: str | None = None  # the first row with such values, or the summary
    wrong_at: tuple[Suspect, ...] = ()  # the host, if the test ran inside one


@dataclass(frozen=True, slots=True)
class _Run:
    test: str
    device: str
    hosts: Names
    rates: dict[str, float]  # size in bytes, or AVERAGE -> GB/s


class BandwidthDetector(Detector[object, BandwidthJob]):
    job_facts = BandwidthJob

    def derive(self, case: Case) -> tuple[dict[tuple[str, int], object], BandwidthJob]:
        logs = job_logs(case)
        if logs is None:
            return {}, BandwidthJob()
        runs, wrong = [_run(event) for event in logs.all("bandwidth")], list(logs.all("wrong_values"))
        slow, text, between, of_two = _slow(runs)
        return {}, BandwidthJob(
            slow=tuple(Suspect(None, None, host) for host in slow)[:MAX_SUSPECTS],
            slow_text=text,
            between=between,
            of_two=of_two,
            drop_text=None if text else next(filter(None, map(_drop, runs)), None),
            wrong=sum(number(event, "count") or 0 for event in wrong),
            wrong_text=wrong[0].text if wrong else None,
            wrong_at=_wrong_at(wrong),
        )


def _run(event: LogEvent) -> _Run:
    rates = dict(one.split("=", 1) for one in event.fields.get("rates", "").split())
    return _Run(
        event.fields.get("test", ""),
        event.fields.get("device", ""),
        tuple(sorted(filter(None, event.fields.get("hosts", "").split(",")))),
        {size: float(rate) for size, rate in rates.items()},
    )


def _slow(runs: Sequence[_Run]) -> tuple[Sequence[str], str | None, bool, bool]:
    """The hosts that are slow, what shows it, whether the runs were between hosts, and whether they are only two."""
    tests: dict[tuple[str, int], list[_Run]] = defaultdict(list)
    for run in runs:
        if run.hosts:
            tests[run.test, len(run.hosts)].append(run)
    for (test, count), several in tests.items():
        rates = _comparable([(run.hosts, run) for run in several])
        slow = _outliers(rates)
        if slow:
            where = "on" if count == 1 else "between"
            return _suspects(rates, slow), _text(test, rates, slow, where), count > 1, len(rates) == 2
    with_device = [run for run in runs if run.device]
    if len({run.hosts for run in with_device}) == 1:
        rates = _comparable([((run.device,), run) for run in with_device])
        slow = _outliers(rates)
        if slow:
            return (), _text(with_device[0].test, rates, slow, "with"), True, len(rates) == 2
    return (), None, False, False


def _comparable(runs: Sequence[tuple[Names, _Run]]) -> dict[Names, float]:
    """The newest rate of each, at the size that most of them measured; the largest of these sizes."""
    sizes = Counter(size for _, run in runs for size in run.rates)
    most = max(sizes.values(), default=0)
    size = max((one for one, count in sizes.items() if count == most), key=_bytes, default=AVERAGE)
    return {name: run.rates[size] for name, run in runs if size in run.rates}


def _bytes(size: str) -> int:
    return int(size) if size.isdecimal() else 0


def _outliers(rates: Mapping[Names, float]) -> list[Names]:
    """Those that are far below the others, if they are fewer."""
    ranked = sorted(rates, key=lambda name: rates[name])
    if len(rates) < COMPARABLE_RANKS:
        return ranked[:1] if len(rates) == 2 and rates[ranked[0]] * MUCH_MORE_OF_TWO <= rates[ranked[1]] else []
    steps = [
        at for at in range(1, len(ranked)) if rates[ranked[at - 1]] * SLOWER_RUN <= rates[ranked[at]]
    ]  # where the next one is far faster
    if len(steps) != 1 or rates[ranked[-1]] > SLOWER_RUN * rates[ranked[steps[0]]]:
        return []
    slow = ranked[: steps[0]]
    single = len(ranked[0]) == 1
    return slow if not single or 2 * len(slow) < len(ranked) else []


def _suspects(rates: Mapping[Names, float], slow: Sequence[Names]) -> list[str]:
    """The host in each slow run that is in no fast one; empty where that leaves none, or two.

    A run that leaves two shows neither of them. Beside it, a host counts that several other runs leave.
    """
    fast = {host for hosts in rates if hosts not in slow for host in hosts}
    left = [[host for host in hosts if host not in fast] for hosts in slow]
    if any(len(one) != 1 for one in left):
        common = set(slow[0]).intersection(*slow[1:]) - fast
        if len(slow) > 1 and len(common) == 1:
            return sorted(common)
        counts = Counter(one[0] for one in left if len(one) == 1)
        clear = all(one for one in left) and len(rates) >= COMPARABLE_RANKS
        return [host for host, count in counts.items() if count > 1] if clear else []
    return list(dict.fromkeys(one[0] for one in left))


def _text(test: str, rates: Mapping[Names, float], slow: Sequence[Names], where: str) -> str:
    shown = ", ".join(f"{rates[name]:.3g} GB/s {where} {' and '.join(name[:2])}" for name in slow[:MAX_SHOWN])
    rest = [rate for name, rate in rates.items() if name not in slow]
    title = f"{test}: " if test and " " not in test else ""
    return f"{title}{shown}; {median(rest):.3g} GB/s {where} {'the other ' + str(len(rest))}"


def _drop(run: _Run) -> str | None:
    """The fall of the rate with larger messages, which get faster on a healthy path, or stay as they are."""
    sizes = sorted((size for size in run.rates if size.isdecimal()), key=_bytes)
    if len(sizes) < COMPARABLE_RANKS:
        return None
    best, last = max(sizes, key=lambda size: run.rates[size]), sizes[-1]
    if run.rates[last] * RATE_COLLAPSE > run.rates[best]:
        return None
    return f"{run.rates[best]:.3g} GB/s with messages of {best} bytes, {run.rates[last]:.3g} GB/s with {last} bytes"


def _wrong_at(wrong: Sequence[LogEvent]) -> tuple[Suspect, ...]:
    hosts = dict.fromkeys(event.fields.get("hosts", "") for event in wrong)
    return tuple(Suspect(None, None, one) for one in hosts if one and "," not in one)[:MAX_SUSPECTS]


ANALYSIS = BandwidthDetector()
