"""Versions of NCCL, torch and the driver that differ between hosts, by what a text shows of each host."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from hangdoc.analysis import Case, Detector, Key, Suspect
from hangdoc.analysis.logs.log_events import JobLogs, job_logs
from hangdoc.analysis.logs.notices import NoticesJob
from hangdoc.analysis.thresholds import COMPARABLE_RANKS

KIND = "software_version"
MAX_SUSPECTS = 16


@dataclass(frozen=True, slots=True)
class VersionsJob:
    """Versions that differ between hosts. None: all agree, or fewer than two hosts show one."""

    text: str | None = None  # "tpu-1 has nccl 2.20.5, tpu-2 and tpu-3 nccl 2.19.3"
    other: tuple[Suspect, ...] = ()  # hosts with another version than most; none of two
    blamed: tuple[Suspect, ...] = ()  # those, or the hosts and absent ranks that an error names
    failed: bool = False  # a line shows that ranks failed: an exception, a failed connection, an error of NCCL


class ReportedVersionsDetector(Detector[object, VersionsJob]):
    job_facts = VersionsJob

    def derive(self, case: Case) -> tuple[dict[Key, object], VersionsJob]:
        logs, named = job_logs(case), case.job(NoticesJob).version_mismatch_at
        for package, versions in _by_package(logs).items() if logs else ():
            counts = Counter(versions.values()).most_common(2)
            if logs is None or len(counts) < 2:
                continue
            clear = len(versions) >= COMPARABLE_RANKS and counts[0][1] > counts[1][1]
            other = [host for host, version in versions.items() if clear and version != counts[0][0]]
            sides: dict[str, list[str]] = defaultdict(list)
            for host in sorted(versions, key=lambda host: (host not in other, host)):
                sides[versions[host]].append(host)
            text = ", ".join(f"{' and '.join(hosts[:3])}: {package} {version}" for version, hosts in sides.items())
            failed = any(True for _ in logs.all("exception", "connect_failed", "version_mismatch", "socket_broken"))
            suspects = tuple(Suspect(None, None, host) for host in other)[:MAX_SUSPECTS]
            return {}, VersionsJob(text[:400], suspects, suspects or named, failed)
        return {}, VersionsJob(blamed=named)


def _by_package(logs: JobLogs) -> Mapping[str, Mapping[str, str]]:
    """For each package, the version on each host; a host that shows several has none."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    several: set[tuple[str, str]] = set()
    events = [(host, event) for host, event in logs.unattributed if event.kind == KIND]
    for host, event in events:
        package, version = event.fields.get("package", ""), event.fields.get("version", "")
        if host is None or " " in host:
            continue
        if found[package].setdefault(host, version) != version:
            several.add((package, host))
    for package, host in several:
        del found[package][host]
    return found


ANALYSIS = ReportedVersionsDetector()
