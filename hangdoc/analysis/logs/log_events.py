"""Log events of a job, by rank, by host, and for the job as a whole."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hangdoc.analysis import Case, Key
from hangdoc.analysis.ranks.world import WorldJob
from hangdoc.evidence.logs import LogEvent, Logs

TIMEOUTS = frozenset({"collective_timeout", "gloo_timeout", "barrier_timeout"})
# Exceptions caused by another rank, or by the connection to it.
PEER_ERRORS = re.compile(
    r"Dist(?:Backend|Network|Store)Error|NCCL|nccl(?:Remote|System|Internal|UnhandledCuda)Error|gloo|by peer"
    r"|remote peer|pair closure"
    r"|Timed out waiting|[Ss]ocket [Tt]imeout|Broken pipe|monitoredBarrier|connectFullMesh|store_based_barrier"
    r"|[Pp]rocess ?[Gg]roup|CollectiveFingerPrint|mismatch between collectives|SignalException"
    r"|KeyboardInterrupt|death signal|EADDRINUSE"
    r"|Address already in use|waiting for (?:clients|workers)|connect to|Unable to (?:find|resolve)|host not found: "
    r"|watchdog|CheckpointException|DeadlockDetected|Barrier timed out"
    r"|other ranks that (?:didn't|did not)"
    r"|ActorHandleNotFoundError|ActorUnavailableError"  # of whoever calls an actor of Ray
)
# The innermost frame of a traceback without its exception: a wait for the other ranks, or a line that calls one.
_COLLECTIVES = (
    r"(?:monitored_)?barrier|all_?reduce|all_?gather(?:_object|_into_tensor|_coalesced)?|all_to_all(?:_single)?"
    r"|reduce_scatter(?:_tensor)?|broadcast_object_list|gather_object|scatter_object_list|wait_for_everyone"
    r"|_all_gather_base|sync_global_devices"
)
_WAIT_SITE = re.compile(
    rf"^(?:{_COLLECTIVES}|broadcast|gather|scatter|reduce|send|recv) \(torch/distributed/|^wait_tensor \("
)
_WAIT_LINE = re.compile(
    rf"(?:^|[^\w'\"])(?:{_COLLECTIVES}|(?:dist|distributed|hvd|comm)\.(?:broadcast|gather|scatter|reduce|send|recv))\("
)


@dataclass(frozen=True, slots=True)
class JobLogs:
    """All log events of one job."""

    ranks: Mapping[Key, Sequence[LogEvent]]  # events that a rank wrote
    keys: Mapping[int, Key]  # rank -> key
    unattributed: Sequence[tuple[str | None, LogEvent]]  # events of no rank, with their host; None: of the whole job
    size: int | None  # world size; if no line names it, the number of ranks found, provided that none is missing
    named: int | None  # world size that the evidence names; None: none
    least: int  # the world has at least so many ranks: one more than the highest rank found

    def of_ranks(self, *kinds: str) -> Iterator[tuple[Key, LogEvent]]:
        """Events of these kinds that ranks wrote."""
        return ((key, event) for key, events in self.ranks.items() for event in events if event.kind in kinds)

    def all(self, *kinds: str) -> Iterator[LogEvent]:
        """Events of these kinds, of ranks and of no rank."""
        yield from (event for _, event in self.of_ranks(*kinds))
        yield from (event for _, event in self.unattributed if event.kind in kinds)


def job_logs(case: Case) -> JobLogs | None:
    """All log events of a job. None: no log was read."""
    ranks = {key: record.said for key in case.ranks if isinstance(record := case.record(key, "logs"), Logs)}
    unattributed: dict[tuple[str, int, str], tuple[str | None, LogEvent]] = {}
    for shot in case.history:
        record = shot.records.get("logs")
        for event in record.said if isinstance(record, Logs) else ():
            host, _ = unattributed.setdefault((event.source, event.line, event.kind), (shot.host, event))
            if host != shot.host:  # events of the whole job are repeated in the snapshot of each host
                unattributed[event.source, event.line, event.kind] = None, event
    if not ranks and not unattributed:
        return None
    keys = {rank: key for key in case.ranks if (rank := case.ranks[key].target.rank) is not None}
    found = len(keys) if len(keys) > 1 and max(keys) == len(keys) - 1 else None
    named = case.job(WorldJob).size
    return JobLogs(ranks, keys, list(unattributed.values()), named or found, named, max(keys, default=-1) + 1)


def last(events: Iterable[LogEvent], *kinds: str) -> LogEvent | None:
    """The last event of these kinds."""
    found = None
    for event in events:
        found = event if event.kind in kinds else found
    return found


def followed(logs: JobLogs, event: LogEvent, *kinds: str) -> bool:
    """True if the same file has an event of these kinds further down."""
    return any(later.source == event.source and later.line > event.line for later in logs.all(*kinds))


def number(event: LogEvent | None, name: str) -> int | None:
    """Integer value of a field. None: no event, no such field, or not an integer."""
    value = event.fields.get(name, "") if event else ""
    return int(value) if re.fullmatch(r"-?\d{1,18}", value) else None


def known_host(host: str | None) -> str | None:
    """The host, if a text names it; evidence of no named host is kept under "unknown host"."""
    return host if host and " " not in host else None


def numbers(text: str) -> tuple[int, ...]:
    """The ranks in "4, 5"."""
    return tuple(int(part) for part in re.findall(r"\d{1,9}", text))


def is_cut(event: LogEvent) -> bool:
    """True for an exception of which only a traceback without its last line, which would name it, was copied."""
    return not event.fields.get("type")


def caused_by_peer(event: LogEvent) -> bool:
    """True if another rank caused an exception, judging by the first exception in its chain.

    Of a traceback that was cut, the place has to do: what a wait for other ranks raises, they mostly caused.
    """
    if is_cut(event) and not event.fields.get("cause"):
        return bool(
            _WAIT_SITE.search(event.fields.get("site", "")) or _WAIT_LINE.search(event.fields.get("innermost", ""))
        )
    first = event.fields.get("cause") or f"{event.fields.get('type', '')}: {event.fields.get('message', '')}"
    return bool(PEER_ERRORS.search(first))
