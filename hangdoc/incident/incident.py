"""All that a report shows of a job: the verdict and its evidence. Renderers add no decision of their own."""

from __future__ import annotations

import hashlib
import os
import stat
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hangdoc.analysis import Key
from hangdoc.analysis.facts import Facts
from hangdoc.analysis.network.links import LinkFacts
from hangdoc.evidence import limits
from hangdoc.evidence.memory import gc_paused
from hangdoc.incident.stack_diff import Side, sides
from hangdoc.incident.timeline import Member, Timeline, member, timeline
from hangdoc.redaction.records import hidden, masked
from hangdoc.verdict import Verdict

if TYPE_CHECKING:
    from hangdoc.postmortem.readers import Source
    from hangdoc.postmortem.report import Report

MAX_LINKS = 40
FEW_LINKS = 8  # shown if none is suspicious
_CHUNK = 2**20  # bytes


@dataclass(frozen=True, slots=True)
class File:
    """A file that was read."""

    name: str  # as the user named it
    kind: str  # kind of reader: "Flight Recorder dump"
    size: int | None = None  # bytes on disk
    sha256: str = ""  # first 16 hexadecimal digits; "": not computed


@dataclass(frozen=True, slots=True)
class RankRow:
    """Ranks in the same phase, operation and site; shares 0 to 1, None: not seen."""

    members: tuple[Member, ...]
    hosts: tuple[str, ...]
    phase: str
    op: str | None
    site: str | None
    wait_share: float | None  # mean share of samples in which they waited for other ranks
    cpu_share: float | None  # mean cores used by a rank, 1.0 = one core
    blamed: bool


@dataclass(frozen=True, slots=True)
class Incident:
    """One job, as a report shows it."""

    verdict: Verdict  # with `considered` and `unseen`
    files: tuple[File, ...] = ()
    problems: tuple[str, ...] = ()  # problems of the readers
    rank_rows: tuple[RankRow, ...] = ()  # culprits first, then the largest
    blamed: tuple[int, ...] = ()  # culprits, as indices of `verdict.job.ranks`
    missing: tuple[tuple[int, int], ...] = ()  # ranks without any evidence: first and last of each run
    sides: tuple[Side, ...] = ()
    timeline: Timeline = field(default_factory=Timeline)
    links: tuple[LinkFacts, ...] = ()  # worst first
    more_links: int = 0
    hidden: int = 0  # number of texts with a masked secret


def build_incident(
    verdict: Verdict, facts: Facts, files: Iterable[File] = (), problems: Iterable[str] = ()
) -> Incident:
    """The incident of one job; secrets are masked in every text, including the verdict's."""
    with gc_paused():
        blamed = frozenset(_culprits(verdict, facts))
        links = sorted(facts.job.network.links, key=_badness)
        shown = min(MAX_LINKS, max(FEW_LINKS, sum(map(_suspicious, links))))
        incident = Incident(
            verdict=verdict,
            files=tuple(files),
            problems=tuple(problems),
            rank_rows=_rank_rows(facts, blamed),
            blamed=tuple(i for i, rank in enumerate(facts.ranks) if (rank.host, rank.pid) in blamed),
            missing=limits.absent_ranges(facts.job.world.size or 0, (rank.rank for rank in facts.ranks)),
            sides=sides(facts, blamed),
            timeline=timeline(facts, blamed),
            links=tuple(links[:shown]),
            more_links=max(len(links) - shown, 0),
        )
        incident = masked(incident)
        return replace(incident, hidden=hidden(incident))


def incidents(report: Report, hashed: bool = True) -> tuple[Incident, ...]:
    """One incident per job of a report; `hashed`: reads every file again for its hash."""
    read = [(one.source, one.format) for one in report.sources if one.format]
    files = tuple(
        [fingerprint(source, kind) if hashed else File(source.name, kind, source.size) for source, kind in read]
    )
    return tuple(build_incident(one.verdict, one.facts, files, report.problems) for one in report.jobs)


def fingerprint(source: Source, kind: str) -> File:
    """A file with the hash of its bytes on disk; without the hash if it can no longer be read."""
    digest = hashlib.sha256()
    try:
        fd = os.open(source.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return File(source.name, kind, source.size)
            piece, size = bytearray(_CHUNK), 0
            while size < source.size and (
                count := file.readinto(piece)
            ):  # bytes appended since were not part of the report
                digest.update(memoryview(piece)[: min(count, source.size - size)])
                size += count
    except OSError:
        return File(source.name, kind, source.size)
    return File(source.name, kind, source.size, digest.hexdigest()[:16])


def _culprits(verdict: Verdict, facts: Facts) -> list[Key]:
    """Culprits of the best finding as keys of the case, by process or, if the PID is unknown, by rank."""
    finding = verdict.findings[0] if verdict.findings else None
    by_rank = {rank.rank: (rank.host, rank.pid) for rank in facts.ranks if rank.rank >= 0}
    found = []
    for culprit in finding.culprits if finding else ():
        key = (culprit.host or "", culprit.pid or 0)
        if key not in facts.case.ranks and culprit.rank is not None:
            key = by_rank.get(culprit.rank, key)
        if key in facts.case.ranks:
            found.append(key)
    return found


def _rank_rows(facts: Facts, blamed: frozenset[Key]) -> tuple[RankRow, ...]:
    groups = defaultdict(list)
    for rank in facts.ranks:
        stack = rank.stack
        groups[stack.phase, stack.op, stack.site, (rank.host, rank.pid) in blamed].append(rank)
    found = [
        RankRow(
            tuple(member(facts.case, (rank.host, rank.pid)) for rank in ranks),
            tuple(sorted({rank.host for rank in ranks})),
            *kind[:3],
            _mean(rank.progress.wait_share for rank in ranks if rank.progress.looks > 1),
            _mean(rank.progress.cpu_share for rank in ranks),
            kind[3],
        )
        for kind, ranks in groups.items()
    ]
    return tuple(sorted(found, key=lambda row: (not row.blamed, -len(row.members))))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _suspicious(link: LinkFacts) -> bool:
    return bool(link.dead or link.fault or link.interface_up is False or link.retransmits or link.unacked_bytes)


def _badness(link: LinkFacts) -> tuple[object, ...]:
    return (
        not link.dead,
        not link.fault,
        link.interface_up is not False,
        -(link.retransmits or 0),
        -link.unacked_bytes,
        -link.receive_queue,
        link.from_rank,
        link.to_rank,
    )
