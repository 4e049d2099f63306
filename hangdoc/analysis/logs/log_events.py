"""What logs say, by rank, and of hosts and the job as a whole."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hangdoc.analysis import Case, Key
from hangdoc.evidence.logs import LogEvent, Logs

TIMEOUTS = frozenset({"collective_timeout", "gloo_timeout", "barrier_timeout"})
# Exceptions that come of what another rank, or the way to it, did.
PEER_ERRORS = re.compile(
    r"Dist(?:Backend|Network|Store)Error|NCCL|nccl(?:Remote|System|Internal|UnhandledCuda)Error|gloo|by peer"
    r"|remote peer|pair closure"
    r"|Timed out waiting|[Ss]ocket [Tt]imeout|Broken pipe|monitoredBarrier|connectFullMesh|store_based_barrier"
    r"|[Pp]rocess ?[Gg]roup|CollectiveFingerPrint|SignalException|KeyboardInterrupt|death signal|EADDRINUSE"
    r"|Address already in use|waiting for (?:clients|workers)|connect to|Unable to (?:find|resolve)"
    r"|watchdog"
)


@dataclass(frozen=True, slots=True)
class JobLogs:
    """Everything that logs said of one job."""

    ranks: Mapping[Key, Sequence[LogEvent]]
    numbers: Mapping[int, Key]  # by rank
    whole: Sequence[tuple[str | None, LogEvent]]  # of no process, with the host where it is of one
    size: int | None  # ranks of the job; where no line says so, those found if none is missing between them

    def of(self, *kinds: str) -> Iterator[tuple[Key, LogEvent]]:
        """The lines of these kinds that a rank wrote."""
        return ((key, one) for key, said in self.ranks.items() for one in said if one.kind in kinds)

    def anyone(self, *kinds: str) -> Iterator[LogEvent]:
        """The lines of these kinds, whoever wrote them."""
        yield from (one for _, one in self.of(*kinds))
        yield from (one for _, one in self.whole if one.kind in kinds)


def heard(case: Case) -> JobLogs | None:
    """None where no log was read."""
    ranks = {key: record.said for key in case.ranks if isinstance(record := case.record(key, "logs"), Logs)}
    whole: dict[tuple[str, int, str], tuple[str | None, LogEvent]] = {}
    for shot in case.history:
        record = shot.records.get("logs")
        for one in record.said if isinstance(record, Logs) else ():
            told = whole.setdefault((one.source, one.line, one.kind), (shot.host, one))
            if told[0] != shot.host:  # said of the job, so it is with every host
                whole[one.source, one.line, one.kind] = None, one
    if not ranks and not whole:
        return None
    numbers = {rank: key for key in case.ranks if (rank := case.ranks[key].target.rank) is not None}
    together = len(numbers) if len(numbers) > 1 and max(numbers) == len(numbers) - 1 else None
    return JobLogs(ranks, numbers, list(whole.values()), case.job_facts["world"].size or together)


def last(said: Iterable[LogEvent], *kinds: str) -> LogEvent | None:
    """The last line of these kinds."""
    found = None
    for one in said:
        found = one if one.kind in kinds else found
    return found


def number(said: LogEvent | None, name: str) -> int | None:
    """A field that is a number."""
    value = said.fields.get(name, "") if said else ""
    return int(value) if re.fullmatch(r"-?\d{1,18}", value) else None


def numbers(text: str) -> tuple[int, ...]:
    """The ranks in "4, 5"."""
    return tuple(int(part) for part in re.findall(r"\d{1,9}", text))


def caused_by_peer(said: LogEvent) -> bool:
    """An exception that came of what another rank did, by the first in its chain."""
    first = said.fields.get("cause") or f"{said.fields.get('type', '')}: {said.fields.get('message', '')}"
    return bool(PEER_ERRORS.search(first))
