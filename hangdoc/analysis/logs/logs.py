"""Analysis `logs`: facts from a job's logs, for each rank and for the job.

Which rank never arrived at the collective that its peers timed out in, which rank called another one, which exception
came first, and which ranks were its victims. `stuck`: a collective timed out on the rank, so its wait never ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hangdoc.analysis import Case, Detector, Key, Suspect
from hangdoc.analysis.logs.collective_timeouts import (
    CallMismatch,
    Group,
    call_mismatches,
    failed_groups,
    first_timeout,
    is_complete,
    ranks_behind,
)
from hangdoc.analysis.logs.first_failure import Failure, failures
from hangdoc.analysis.logs.hardware_errors import HardwareErrors, hardware_errors
from hangdoc.analysis.logs.log_events import TIMEOUTS, JobLogs, job_logs, last, number
from hangdoc.analysis.logs.rendezvous_errors import RendezvousErrors, rendezvous_errors
from hangdoc.evidence import limits
from hangdoc.evidence.logs import LogEvent


@dataclass(frozen=True, slots=True)
class LogsFacts:
    """Log facts of one rank. None: no log line shows it."""

    stuck: bool | None = None  # a collective timed out on it, and it neither exited nor raised its own exception
    timed_out: bool | None = None  # a collective timed out on it
    op: str | None = None  # operation of that collective: "ALLREDUCE"
    sequence: int | None = None  # sequence number of that collective
    enqueued: int | None = None  # sequence number of the newest collective it started
    completed: int | None = None  # sequence number of the newest collective it completed
    behind: bool | None = None  # it never arrived at the collective that its peers timed out in
    behind_why: str | None = None  # the evidence for `behind`: a log line, or a sentence
    outlier: bool | None = None  # it called another collective than most ranks, or the same with another size or dtype
    call: str | None = None  # its call: "ALLREDUCE [1000] Float"
    sizes: bool | None = None  # the operations agree; only sizes or dtypes differ
    overrun: str | None = None  # gloo aborted it because it received too much: "1000 bytes where it expected 996"
    unfinished: bool | None = None  # DDP raised in forward: the last backward left gradients that were not reduced
    gradless: str | None = None  # parameters without a gradient, named by DDP: "head.weight, head.bias", "number 2 3"
    error: str | None = None  # its own exception, no other rank's fault: "ValueError: bad batch"
    error_site: str | None = None  # innermost user frame of that exception
    error_line: str | None = None  # "file:line" of that exception in the log
    first: bool | None = None  # its own exception was the first in the job
    victim: bool | None = None  # it failed, or timed out, because of another rank
    victim_why: str | None = None  # the log line that shows it
    nic: str | None = None  # interface that NCCL chose, and that reaches no other host: "docker0:172.17.0.1"
    ib: str | None = None  # its InfiniBand completion error
    ports: str | None = None  # failing ports of its adapters: "mlx5_0:1: port error, 3 times"
    gpu: str | None = None  # hardware error of its GPU, from the kernel log
    watchdog: str | None = None  # log line: its NCCL watchdog thread was stuck itself
    unmoved: str | None = None  # log line: it ignored the launcher's SIGTERM and had to be killed
    lacks: str | None = None  # interface that is configured but missing on its host
    loopback: str | None = None  # the reason why it advertises a loopback address
    port: str | None = None  # port that was already in use
    unreached: str | None = None  # rendezvous address that it could not reach
    unmeshed: str | None = None  # log line: after the rendezvous it could not connect to its peers (gloo)
    refused: str | None = None  # address of a peer that refused its connection
    awaits: int | None = None  # rank that never published its address


@dataclass(frozen=True, slots=True)
class LogsJob:
    """Log facts of the job. Suspects are ranks without evidence of their own, or hosts."""

    read: bool = False  # a log was read
    ranks: int = 0  # ranks with a log
    behind: tuple[Suspect, ...] = ()  # ranks that never arrived (see LogsFacts.behind) and left no evidence
    absent: tuple[Suspect, ...] = ()  # ranks without a log, if the world size is known and they are few
    waited: str | None = None  # collective that most ranks timed out in: "ALLREDUCE 1900", "ALLGATHER 7 of group 2"
    joined: bool = False  # all ranks timed out in the same collective; none was missing
    outlier_calls: tuple[Suspect, ...] = ()  # ranks that called another operation and left no evidence
    outlier_sizes: tuple[Suspect, ...] = ()  # ranks that called the operation with another size and left no evidence
    outlier_call: str | None = None  # the call of the first of them
    overran: bool = False  # gloo aborted a rank because it received too much
    detects: bool = False  # DDP says that find_unused_parameters=True is set
    tied: bool = False  # two different collectives were called by equally many ranks
    expected: int | None = None  # ranks that the rendezvous waited for
    come: int | None = None  # ranks that had joined when the rendezvous gave up
    # Errors in lines of no known rank; the same meaning as in LogsFacts.
    port: str | None = None  # port that was already in use
    lacks: str | None = None  # interface that is configured but missing
    loopback: str | None = None  # the reason why a rank advertises a loopback address
    unreached: str | None = None  # rendezvous address that could not be reached
    unmeshed: str | None = None  # log line: a rank could not connect to its peers (gloo)
    refused: str | None = None  # address that refused a connection
    awaits: int | None = None  # rank that never published its address
    one_refused: bool = False  # a rank's connection was refused by a peer
    cut_off: bool = False  # a collective timed out, or a connection failed
    beyond: tuple[Suspect, ...] = ()  # the host named by InfiniBand errors of several ranks
    ports: tuple[Suspect, ...] = ()  # hosts with a failing port that no rank reports
    gpus: tuple[Suspect, ...] = ()  # hosts with a GPU error that no rank reports
    lines: tuple[str, ...] = ()  # the errors of these hosts: "node-7: Xid 79 on GPU ..."


class LogsDetector(Detector[LogsFacts, LogsJob]):
    rank_facts = LogsFacts
    job_facts = LogsJob

    def derive(self, case: Case) -> tuple[dict[Key, LogsFacts], LogsJob]:
        logs = job_logs(case)
        if logs is None:
            return dict.fromkeys(case.ranks, LogsFacts()), LogsJob()
        groups = failed_groups(logs)
        job = _Findings(
            logs=logs,
            groups=groups,
            behind=_behind(groups, logs),
            mismatches=list(call_mismatches(logs, groups)),
            hardware=hardware_errors(case, logs),
            rendezvous=rendezvous_errors(logs),
        )
        ended = failures(case, logs)
        return {key: _facts(case, key, job, ended.get(key)) for key in case.ranks}, _job_facts(job)


@dataclass(frozen=True, slots=True)
class _Findings:
    """Findings in the logs of the whole job."""

    logs: JobLogs
    groups: list[Group]
    behind: Mapping[int, str]  # rank -> evidence
    mismatches: list[CallMismatch]
    hardware: HardwareErrors
    rendezvous: RendezvousErrors


def _behind(groups: list[Group], logs: JobLogs) -> dict[int, str]:
    """Ranks behind in any group, with the evidence; the default group comes first."""
    behind: dict[int, str] = {}
    for group in sorted(groups, key=lambda group: not group.whole):
        for rank, why in ranks_behind(group, logs).items():
            behind.setdefault(rank, why)
    return behind


def _facts(case: Case, key: Key, job: _Findings, failure: Failure | None) -> LogsFacts:
    behind, hardware = job.behind, job.hardware
    rank, events = case.ranks[key].target.rank, job.logs.ranks.get(key, ())
    timeout = first_timeout(job.logs, key)
    status = last(events, "work_status", "dump_signal")
    mismatch = next((mismatch for mismatch in job.mismatches if rank in mismatch.calls), None)
    watchdog, overrun = last(events, "watchdog_stuck"), last(events, "size_mismatch")
    unmoved = last(events, "would_not_end")
    own = failure.own if failure else None
    facts = LogsFacts(
        timed_out=True if timeout else None,
        stuck=True if timeout and case.ranks[key].alive is not False and not own else None,
        op=timeout.fields.get("op") if timeout else None,
        sequence=number(timeout, "sequence"),
        enqueued=number(status, "enqueued"),
        completed=number(status, "completed"),
        behind=rank in behind if behind and rank is not None else None,
        behind_why=behind.get(rank) if rank is not None else None,
        overrun=(
            f"{overrun.fields['received']} bytes where it expected {overrun.fields['expected']}" if overrun else None
        ),
        unfinished=True if last(events, "reduction_unfinished") else None,
        gradless=_gradless(events),
        error=own.text if own else None,
        error_site=own.fields.get("site") if own else None,
        error_line=f"{own.source}:{own.line}" if own else None,
        first=failure.first if own and failure else None,
        victim=True if failure and failure.victim else None,
        victim_why=failure.victim.text if failure and failure.victim else None,
        nic=hardware.nic.get(key),
        ib=hardware.ib.get(key),
        ports=hardware.ports.get(key),
        gpu=hardware.gpus.get(key),
        watchdog=watchdog.text if watchdog and not timeout else None,
        unmoved=unmoved.text if unmoved else None,
        **job.rendezvous.of_rank.get(key, {}),
    )
    if mismatch is None or rank is None:
        return facts
    return replace(facts, outlier=rank in mismatch.outliers, call=mismatch.format_call(rank), sizes=mismatch.sizes)


def _gradless(events: Sequence[LogEvent]) -> str | None:
    """Names if DDP printed them, else numbers, in the order of `parameters()`."""
    found = [event.fields.get("parameters", "") for event in events if event.kind == "gradients_missing"]
    names = [text for text in found if text[:1].isalpha() or text[:1] == "_"]
    return names[-1] if names else f"number {found[-1]}" if found else None


def _job_facts(job: _Findings) -> LogsJob:
    logs, hardware, rendezvous = job.logs, job.hardware, job.rendezvous
    absent = limits.absent_ranks(logs.size, logs.keys) if logs.size else ()
    host_errors = {**hardware.port_hosts, **hardware.gpu_hosts}
    unseen = [(mismatch, rank) for mismatch in job.mismatches for rank in mismatch.outliers if rank not in logs.keys]
    return LogsJob(
        read=True,
        ranks=len(logs.ranks),
        behind=tuple(Suspect(rank) for rank in sorted(job.behind) if rank not in logs.keys),
        absent=tuple(Suspect(rank) for rank in absent) if logs.ranks else (),
        waited=_waited(job.groups),
        joined=any(is_complete(group, logs) for group in job.groups) and not job.behind and not job.mismatches,
        outlier_calls=tuple(Suspect(rank) for mismatch, rank in unseen if not mismatch.sizes),
        outlier_sizes=tuple(Suspect(rank) for mismatch, rank in unseen if mismatch.sizes),
        outlier_call=next((mismatch.format_call(rank) for mismatch, rank in unseen), None),
        overran=any(True for _ in logs.all("size_mismatch")),
        detects=any("detects" in event.fields for event in logs.all("reduction_unfinished")),
        tied=any(mismatch.tied for mismatch in job.mismatches),
        expected=rendezvous.expected,
        come=rendezvous.joined,
        **rendezvous.unattributed,
        one_refused=any("refused" in fields for fields in rendezvous.of_rank.values()),
        cut_off=any(True for _ in logs.all(*TIMEOUTS, "connect_failed", "clients_missing", "unreachable")),
        beyond=hardware.peers,
        ports=tuple(Suspect(None, None, host) for host in hardware.port_hosts),
        gpus=tuple(Suspect(None, None, host) for host in hardware.gpu_hosts),
        lines=tuple(f"{host}: {text}" for host, text in host_errors.items()),
    )


def _waited(groups: list[Group]) -> str | None:
    """The collective that most ranks timed out in."""
    group = max(groups, key=lambda group: len(group.timed_out), default=None)
    if group is None or not group.timed_out:
        return None
    front = group.front
    ops = [op for rank, (op, _) in group.calls.items() if group.timed_out.get(rank) == front]
    if not ops and front is None:
        return None
    op = max(set(ops), key=ops.count) if ops else "collective"
    return f"{op}{f' {front}' if front is not None else ''}{'' if group.whole else f' of group {group.name}'}"


ANALYSIS = LogsDetector()
