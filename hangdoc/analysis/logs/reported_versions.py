"""Versions of NCCL, torch and the driver that differ between hosts, by what a text shows of each host.

NCCL compares its own version with that of each peer and names the first that differs (nccl: src/init.cc,
initTransportsRank): every rank complains, those of the majority too. Only versions of three ranks show which is odd.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from hangdoc.analysis import Case, Detector, Key, Suspect
from hangdoc.analysis.logs.log_events import JobLogs, job_logs, known_host, number
from hangdoc.analysis.logs.notices import NoticesJob
from hangdoc.analysis.ranks.host_ranks import on_hosts
from hangdoc.analysis.thresholds import COMPARABLE_RANKS

KIND, COMPARED = "software_version", "version_mismatch"
OF_NCCL = "nccl_version"  # a line of NCCL itself
MAX_SUSPECTS = 16
MAX_COMPARED = 65_536  # ranks

Subject = TypeVar("Subject", int, str)  # a rank or a host


@dataclass(frozen=True, slots=True)
class VersionsFacts:
    """One rank."""

    odd: bool | None = None  # it has another version than most ranks; None: not known


@dataclass(frozen=True, slots=True)
class VersionsJob:
    """Versions that differ between hosts or ranks. None: all agree, or fewer than two show one."""

    text: str | None = None  # "tpu-1 has nccl 2.20.5, tpu-2 and tpu-3 nccl 2.19.3"
    other: tuple[Suspect, ...] = ()  # hosts with another version than most; none of two
    blamed: tuple[Suspect, ...] = ()  # those, or the hosts and absent ranks that an error names
    failed: bool = False  # a line shows that ranks failed: an exception, a failed connection, an error of NCCL
    compared: bool = False  # lines compare the versions of two ranks: neither of them is wrong for that alone
    ranks_text: str | None = None  # "ranks 0, 1: 22105, rank 2: 22005"


class ReportedVersionsDetector(Detector[VersionsFacts, VersionsJob]):
    rank_facts = VersionsFacts
    job_facts = VersionsJob

    def derive(self, case: Case) -> tuple[dict[Key, VersionsFacts], VersionsJob]:
        facts = dict.fromkeys(case.ranks, VersionsFacts())
        logs, named = job_logs(case), case.job(NoticesJob).version_mismatch_at
        of_ranks = _of_ranks(logs) if logs else {}
        odd = sorted(_odd(of_ranks))
        if logs and of_ranks:
            facts |= {logs.keys[rank]: VersionsFacts(odd=True) for rank in odd if rank in logs.keys}
            named = tuple(Suspect(rank) for rank in odd if rank not in logs.keys)[:MAX_SUSPECTS]
        if logs and not of_ranks and (printed := _printed(logs)) is not None:
            facts |= {logs.keys[rank]: VersionsFacts(odd=True) for rank in _odd(printed[1]) if rank in logs.keys}
            text = f"{printed[0]} {_sides(printed[1])}"
            return facts, VersionsJob(text[:400], (), named, _failed(logs))
        ranks_text = _sides(of_ranks) if of_ranks else None
        for package, versions in _by_package(logs).items() if logs else ():
            if logs is None or len(set(versions.values())) < 2:
                continue
            unusual = _odd(versions)
            other = [host for host in versions if host in unusual]
            sides: dict[str, list[str]] = defaultdict(list)
            for host in sorted(versions, key=lambda host: (host not in other, host)):
                sides[versions[host]].append(host)
            text = ", ".join(f"{' and '.join(hosts[:3])}: {package} {version}" for version, hosts in sides.items())
            suspects = on_hosts(case, [Suspect(None, None, host) for host in other][:MAX_SUSPECTS])
            blamed = named if odd else suspects or named
            return facts, VersionsJob(text[:400], suspects, blamed, _failed(logs), bool(of_ranks), ranks_text)
        return facts, VersionsJob(blamed=named, compared=bool(of_ranks), ranks_text=ranks_text)


def _failed(logs: JobLogs) -> bool:
    """A line shows that ranks failed."""
    return any(True for _ in logs.all("exception", "connect_failed", COMPARED, "socket_broken"))


def _printed(logs: JobLogs) -> tuple[str, dict[int, str]] | None:
    """A package and the version that each rank printed, if they differ; a rank that prints several has none."""
    found: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    ranks = {key: rank for rank, key in logs.keys.items()}
    for key, event in logs.of_ranks(OF_NCCL):
        if key in ranks:
            found["nccl"][ranks[key]].add(event.fields.get("version", ""))
    for package, versions in sorted(found.items()):
        one = {rank: next(iter(of)) for rank, of in versions.items() if len(of) == 1}
        if len(set(one.values())) > 1:
            return package, one
    return None


def _odd(versions: Mapping[Subject, str]) -> set[Subject]:
    """Who has another version than most; empty if no version is clearly that of most."""
    counts = Counter(versions.values()).most_common(2)
    if len(counts) < 2 or len(versions) < COMPARABLE_RANKS or counts[0][1] == counts[1][1]:
        return set()
    return {one for one, version in versions.items() if version != counts[0][0]}


def _of_ranks(logs: JobLogs) -> dict[int, str]:
    """The version of each rank that NCCL's comparisons show."""
    found: dict[int, str] = {}
    for event in logs.all(COMPARED):
        for who, has in (("others", "expects"), ("rank", "has")):
            rank, version = number(event, who), event.fields.get(has)
            if "others" in event.fields and rank is not None and version and len(found) < MAX_COMPARED:
                found.setdefault(rank, version)
    return found


def _sides(versions: Mapping[int, str]) -> str:
    """Versions and the ranks that have them, the most usual first: "ranks 0, 1: 22105, rank 2: 22005"."""
    ranks: dict[str, list[int]] = defaultdict(list)
    for rank, version in sorted(versions.items()):
        ranks[version].append(rank)
    sides = sorted(ranks.items(), key=lambda side: -len(side[1]))[:4]
    return ", ".join(
        f"rank{'s' if len(who) > 1 else ''} {', '.join(map(str, who[:8]))}: {version}" for version, who in sides
    )


def _by_package(logs: JobLogs) -> Mapping[str, Mapping[str, str]]:
    """For each package, the version on each host; a host that shows several has none."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    several: set[tuple[str, str]] = set()
    events = [(host, event) for host, event in logs.unattributed if event.kind == KIND]
    for at, event in events:
        package, version = event.fields.get("package", ""), event.fields.get("version", "")
        if (host := known_host(at)) is None:
            continue
        if found[package].setdefault(host, version) != version:
            several.add((package, host))
    for package, host in several:
        del found[package][host]
    return found


ANALYSIS = ReportedVersionsDetector()
