"""Analysis `logs`: what the logs of a job say of each rank, and of the job.

Which rank did not come to the collective that the others waited in, which one called another, whose exception was the
first and who ended only because of it. `stuck`: a collective of it timed out, it waited for good.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hangdoc.analysis import Case, Key
from hangdoc.analysis.culprits import Suspect
from hangdoc.analysis.logs.collective_timeouts import (
    CallMismatch,
    Group,
    behind,
    call_mismatches,
    complete,
    groups,
    waiting_in,
)
from hangdoc.analysis.logs.first_failure import Failure, failures
from hangdoc.analysis.logs.hardware_errors import HardwareErrors, gear
from hangdoc.analysis.logs.log_events import TIMEOUTS, JobLogs, heard, last, number
from hangdoc.analysis.logs.rendezvous_errors import RendezvousErrors, meeting
from hangdoc.evidence import limits


@dataclass(frozen=True, slots=True)
class LogsFacts:
    """One rank; None: no log says so."""

    stuck: bool | None = None
    timed_out: bool | None = None  # a collective of it timed out
    op: str | None = None  # that collective: "ALLREDUCE"
    sequence: int | None = None  # its number
    enqueued: int | None = None  # newest collective it had begun
    completed: int | None = None  # newest that ended
    behind: bool | None = None  # it had not come where the others waited
    behind_why: str | None = None
    odd: bool | None = None  # it called another collective than most
    call: str | None = None  # "ALLREDUCE [1000] Float"
    call_others: str | None = None
    sizes: bool | None = None  # only sizes or types differ
    overrun: str | None = None  # "1000 bytes where it expected 996": gloo ended it
    error: str | None = None  # exception of its own: "ValueError: bad batch"
    error_site: str | None = None
    error_line: str | None = None  # "file:line" of the log
    first: bool | None = None  # it raised that before any other
    victim: bool | None = None  # it ended, or waited, because of others
    victim_why: str | None = None
    nic: str | None = None  # interface that NCCL chose and that leads nowhere
    ib: str | None = None  # InfiniBand completion error
    ports: str | None = None  # port events of its adapters
    gpu: str | None = None  # what the kernel says of its GPU
    watchdog: str | None = None  # the watchdog's thread was stuck itself
    unmoved: str | None = None  # its launcher told it to end, and had to kill it
    lacks: str | None = None  # interface that its host has not
    loopback: str | None = None  # why its address was loopback
    port: str | None = None  # that was in use
    unreached: str | None = None  # address where it was to meet the others, and could not get
    unmeshed: str | None = None  # it had met the others, and could not connect to them: gloo's words
    refused: str | None = None  # address of another rank where it was refused
    awaits: int | None = None  # rank whose address it waited for in vain
    last_s: float | None = None  # Unix time of its last line, by its host's clock


@dataclass(frozen=True, slots=True)
class LogsJob:
    read: bool = False
    ranks: int = 0  # of which a log was read
    behind: tuple[Suspect, ...] = ()  # ranks that had not come, of which nothing is left
    absent: tuple[Suspect, ...] = ()  # ranks of which no log was read, where their number is known and they are few
    waited: str | None = None  # what the others waited in: "ALLREDUCE 1900 of group 0"
    joined: bool = False  # all ranks waited in one collective, and none was missing
    odd_calls: tuple[Suspect, ...] = ()  # ranks that called another operation, of which nothing is left
    odd_sizes: tuple[Suspect, ...] = ()  # the same operation, with other sizes
    odd_call: str | None = None  # what they called
    overran: bool = False  # gloo ended a rank that received too much
    tied: bool = False  # as many ranks called the one collective as the other
    expected: int | None = None  # ranks that were to meet
    come: int | None = None  # that had come when they gave up
    meet: str | None = None  # where
    port: str | None = None  # that was in use, by whom of them that was written is not known; so with the next three
    lacks: str | None = None
    loopback: str | None = None
    unreached: str | None = None
    unmeshed: str | None = None
    refused: str | None = None
    awaits: int | None = None
    one_refused: bool = False  # a rank was refused by another
    cut_off: bool = False  # ranks waited in vain, or no connection came about
    beyond: tuple[Suspect, ...] = ()  # hosts that InfiniBand errors of several ranks name
    ports: tuple[Suspect, ...] = ()  # hosts with port events, of which no rank is known to say so
    gpus: tuple[Suspect, ...] = ()  # hosts whose kernel tells of a GPU
    lines: tuple[str, ...] = ()  # what these kernels say


@dataclass(slots=True)
class LogsAnalysis:
    name: str = "logs"
    order: int = 56
    rank_facts: type | None = LogsFacts
    job_facts: type | None = LogsJob

    def derive(self, case: Case) -> tuple[dict[Key, LogsFacts], LogsJob]:
        told = heard(case)
        if told is None:
            return dict.fromkeys(case.ranks, LogsFacts()), LogsJob()
        found = groups(told)
        odds, late = list(call_mismatches(told, found)), _behind(found, told)
        ended, things, met = failures(case, told), gear(case, told), meeting(told)
        of_job = _OfJob(told, late, odds, things, met)
        ranks = {key: _facts(case, key, of_job, ended.get(key)) for key in case.ranks}
        return ranks, _job(case, told, found, late, odds, things, met)


@dataclass(frozen=True, slots=True)
class _OfJob:
    """What is known of the job as a whole."""

    told: JobLogs
    late: Mapping[int, str]
    odds: list[CallMismatch]
    things: HardwareErrors
    met: RendezvousErrors


def _behind(found: list[Group], told: JobLogs) -> dict[int, str]:
    late: dict[int, str] = {}
    for group in sorted(found, key=lambda group: not group.whole):
        for rank, why in behind(group, told).items():
            late.setdefault(rank, why)
    return late


def _facts(case: Case, key: Key, of_job: _OfJob, how: Failure | None) -> LogsFacts:
    told, late, things = of_job.told, of_job.late, of_job.things
    rank, said = case.ranks[key].target.rank, told.ranks.get(key, ())
    waits = waiting_in(told, key)
    status = last(said, "work_status", "dump_signal")
    odd = next((one for one in of_job.odds if rank in one.calls), None)
    watchdog, overrun, record = last(said, "watchdog_stuck"), last(said, "size_mismatch"), case.record(key, "logs")
    unmoved = last(said, "would_not_end")
    own = how.own if how else None
    facts = LogsFacts(
        timed_out=True if waits else None,
        stuck=True if waits and case.ranks[key].alive is not False and not own else None,
        op=waits.fields.get("op") if waits else None,
        sequence=number(waits, "sequence"),
        enqueued=number(status, "enqueued"),
        completed=number(status, "completed"),
        behind=rank in late if late and rank is not None else None,
        behind_why=late.get(rank) if rank is not None else None,
        overrun=f"{overrun.fields['received']} bytes where it expected {overrun.fields['expected']}"
        if overrun
        else None,
        error=own.text if own else None,
        error_site=own.fields.get("site") if own else None,
        error_line=f"{own.source}:{own.line}" if own else None,
        first=how.first if own and how else None,
        victim=True if how and how.victim else None,
        victim_why=how.victim.text if how and how.victim else None,
        nic=things.nic.get(key),
        ib=things.ib.get(key),
        ports=things.ports.get(key),
        gpu=things.gpus.get(key),
        watchdog=watchdog.text if watchdog and not waits else None,
        unmoved=unmoved.text if unmoved else None,
        last_s=record.last if record is not None else None,
        **of_job.met.of_rank.get(key, {}),
    )
    return _with_call(facts, odd, rank) if odd and rank is not None else facts


def _with_call(facts: LogsFacts, odd: CallMismatch, rank: int) -> LogsFacts:
    others = next(one for one in odd.calls if (one in odd.odd) != (rank in odd.odd))
    return replace(facts, odd=rank in odd.odd, call=odd.of_rank(rank), call_others=odd.of_rank(others), sizes=odd.sizes)


def _job(
    case: Case,
    told: JobLogs,
    found: list[Group],
    late: Mapping[int, str],
    odds: list[CallMismatch],
    things: HardwareErrors,
    met: RendezvousErrors,
) -> LogsJob:
    absent = limits.absent_ranks(told.size, told.numbers) if told.size else ()
    kernels = {**things.port_hosts, **things.gpu_hosts}
    return LogsJob(
        read=True,
        ranks=len(told.ranks),
        behind=tuple(Suspect(rank) for rank in sorted(late) if rank not in told.numbers),
        absent=tuple(Suspect(rank) for rank in absent) if told.ranks else (),
        waited=_waited(found, told),
        joined=any(complete(group, told) for group in found) and not late and not odds,
        odd_calls=_unseen(told, [odd for odd in odds if not odd.sizes]),
        odd_sizes=_unseen(told, [odd for odd in odds if odd.sizes]),
        odd_call=next((odd.of_rank(rank) for odd in odds for rank in odd.odd if rank not in told.numbers), None),
        overran=any(True for _ in told.anyone("size_mismatch")),
        tied=any(odd.tied for odd in odds),
        expected=met.expected,
        come=met.come,
        meet=met.place,
        **met.whole,
        one_refused=any("refused" in facts for facts in met.of_rank.values()),
        cut_off=any(True for _ in told.anyone(*TIMEOUTS, "connect_failed", "clients_missing", "unreachable")),
        beyond=things.peers,
        ports=tuple(Suspect(None, None, host) for host in things.port_hosts),
        gpus=tuple(Suspect(None, None, host) for host in things.gpu_hosts),
        lines=tuple(f"{host}: {text}" for host, text in kernels.items()),
    )


def _unseen(told: JobLogs, odds: list[CallMismatch]) -> tuple[Suspect, ...]:
    """The odd ranks of which others speak, and nothing else is left."""
    return tuple(Suspect(rank) for odd in odds for rank in odd.odd if rank not in told.numbers)


def _waited(found: list[Group], told: JobLogs) -> str | None:
    """The collective that most ranks waited in."""
    group = max(found, key=lambda group: len(group.timed), default=None)
    if group is None or not group.timed:
        return None
    front = group.front
    ops = [op for rank, (op, _) in group.calls.items() if group.timed.get(rank) == front]
    if not ops and front is None:
        return None
    op = max(set(ops), key=ops.count) if ops else "collective"
    return f"{op}{f' {front}' if front is not None else ''}{'' if group.whole else f' of group {group.name}'}"


ANALYSIS = LogsAnalysis()
