"""Analysis `logs`: facts from a job's logs, for each rank and for the job.

Which rank never arrived at the collective that its peers timed out in, which rank called another one, which exception
came first, and which ranks were its victims. `stuck`: a collective timed out on the rank, so its wait never ended.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hangdoc.analysis import Case, Detector, Key, Suspect
from hangdoc.analysis.logs.collective_timeouts import (
    BETWEEN_TWO,
    Behind,
    CallMismatch,
    Group,
    call_mismatches,
    failed_groups,
    first_timeout,
    is_complete,
    is_part,
    ranks_behind,
)
from hangdoc.analysis.logs.counters import (
    LastCount,
    last_counts,
    ranks_in_another_state,
    ranks_left_behind,
    ranks_past_their_loop,
    ranks_that_left,
    ranks_that_skipped,
    ranks_with_other_length,
    ranks_with_shorter_loops,
)
from hangdoc.analysis.logs.first_failure import (
    REQUESTED,
    Failure,
    error_kind,
    failures,
    root_causes,
    unattributed_failure,
)
from hangdoc.analysis.logs.hardware_errors import HardwareErrors, hardware_errors, shares_gpus_by_design
from hangdoc.analysis.logs.log_events import TIMEOUTS, JobLogs, caused_by_peer, is_cut, job_logs, last, number
from hangdoc.analysis.logs.lost_peers import lost_connections, lost_peers
from hangdoc.analysis.logs.rendezvous_errors import RendezvousErrors, rendezvous_errors
from hangdoc.analysis.ranks.host_ranks import on_hosts, ranks_per_host
from hangdoc.analysis.thresholds import FIRST_CALLS
from hangdoc.evidence import RankEvidence, limits
from hangdoc.evidence.logs import LOST, TEARDOWN, LogEvent

_NUMBERS = re.compile(r"\d+")
FAULTS = re.compile(r"NODE[ _]?FAIL|BOOT[ _]FAIL", re.IGNORECASE)  # reasons of Slurm that nobody asked for
MISFIT = "sizes"  # kind of error
STALLED = "stalled_tensors"  # Horovod's stall inspector, where it does not show which rank is missing
# Kinds of lines that only a job of several processes writes.
DISTRIBUTED = (
    *TIMEOUTS, *LOST, "work_status", "dump_signal", "dump_observed", "lagging", "joined", "mismatch", "barrier_lacks",
    "clients_missing", "barrier_of_store", "watchdog_stuck", "connect_failed", "failed", "failure", "told_to_end",
    "slurm_task", "mpi_end", "child_exit", "gradients_missing", "reduction_unfinished", "ib_error", "size_mismatch",
    "behind_at_a_look", "stalled_tensors", "ras_missing", "ras_dead", "transfer_mismatch",
)  # fmt: skip

UNNAMED = "a collective"


@dataclass(frozen=True, slots=True)
class LogsFacts:
    """Log facts of one rank. None: no log line shows it."""

    stuck: bool | None = None  # a collective timed out on it, and it neither exited nor raised its own exception
    timed_out: bool | None = None  # a collective timed out on it
    waited: str | None = None  # that collective, written as in LogsJob.waited; UNNAMED if no line tells
    op: str | None = None  # operation of that collective: "ALLREDUCE"
    sequence: int | None = None  # sequence number of that collective
    enqueued: int | None = None  # sequence number of the newest collective it started
    completed: int | None = None  # sequence number of the newest collective it completed
    behind: bool | None = None  # it never arrived at the collective that its peers timed out in
    behind_why: str | None = None  # the evidence for `behind`: a log line, or a sentence
    behind_proved: bool | None = None  # torch names it as behind, or its own numbers show it; not only its silence
    count: str | None = None  # last value of its step counter or progress bar: "450", "epoch 3, 450"
    outlier: bool | None = None  # it called another collective than most ranks, or the same with another size or dtype
    call: str | None = None  # its call: "ALLREDUCE [1000] Float"
    sizes: bool | None = None  # the operations agree; only sizes or dtypes differ
    overrun: str | None = None  # gloo aborted it because it received too much: "1000 bytes where it expected 996"
    unfinished: bool | None = None  # DDP raised in forward: the last backward left gradients that were not reduced
    gradless: str | None = None  # parameters without a gradient, named by DDP: "head.weight, head.bias", "number 2 3"
    error: str | None = None  # its own exception, no other rank's fault: "ValueError: bad batch"
    error_kind: str | None = None  # gpu memory | memory | worker | ..., see error_kinds.yaml
    error_cut: bool = False  # the last line of its traceback, which names the exception, is missing
    error_logged: bool = False  # a logger printed it, so that the rank may have caught it
    error_site: str | None = None  # innermost user frame of that exception
    error_line: str | None = None  # "file:line" of that exception in the log
    first: bool | None = None  # its own exception was the first in the job
    order: str | None = None  # how it is known which exception came first: same | launcher | time | line | unknown
    root: bool | None = None  # its launcher's table names it as the first failure; false: it names another rank
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
    misled: str | None = None  # rendezvous address at which something other than a store answered
    unreached: str | None = None  # rendezvous address that it could not reach
    dropped: str | None = None  # exception: its connection to the rendezvous address was closed before it had joined
    unmeshed: str | None = None  # log line: after the rendezvous it could not connect to its peers (gloo)
    refused: str | None = None  # address of a peer that refused its connection
    awaits: int | None = None  # rank that never published its address


@dataclass(frozen=True, slots=True)
class LogsJob:
    """Log facts of the job. Suspects are ranks without evidence of their own, or hosts."""

    read: bool = False  # a log was read
    ranks: int = 0  # ranks with a log
    behind: tuple[Suspect, ...] = ()  # ranks that never arrived (see LogsFacts.behind) and left no evidence
    behind_why: str | None = None  # the evidence for the first of them
    absent: tuple[Suspect, ...] = ()  # ranks without a log, if the world size is known and they are few
    waited: str | None = None  # collective that most ranks timed out in: "ALLREDUCE 1900", "ALLGATHER 7 of group 2"
    waited_s: float | None = None  # how long the first of them waited (s)
    timeouts: int = 0  # lines that report a collective timeout, with or without a rank
    reporters: int = 0  # ranks that report a collective timeout
    of_part: bool = False  # the groups of the collectives that timed out have fewer ranks than the job
    sequence: int | None = None  # highest sequence number of a collective that timed out
    early: bool = False  # the collective that timed out is one of the first of its group
    size: int | None = None  # world size that the logs name
    differing: str | None = None  # operations that lines name for one sequence number: "ALLREDUCE, BROADCAST"
    behind_proved: bool = False  # torch names a rank of `behind`, or all other ranks of the job report the timeout
    counted: bool = False  # only step counters show which rank is behind
    shorter: bool = False  # or only that its loop has fewer iterations
    peer_errors: int = 0  # exceptions that another rank, or the connection to it, caused
    peer_error: str | None = None  # the first of them
    lost: int = 0  # lines that report a lost connection between ranks
    losses: int = 0  # those, and the other exceptions of `peer_errors`
    gone: tuple[Suspect, ...] = ()  # ranks, or a host, whose process is probably gone: their peers lost them
    gone_why: str | None = None  # the evidence for it
    gone_line: str | None = None  # the first line that reports a lost connection
    raised: str | None = None  # exception of some rank, in lines that name no rank; no other rank caused it
    raised_uncaught: bool = False  # its traceback shows that nothing caught it
    raised_cut: bool = False  # as `error_cut` in LogsFacts
    raised_kind: str | None = None  # as in LogsFacts.error_kind
    raised_site: str | None = None  # innermost user frame of that exception
    raised_line: str | None = None  # "file:line" of that exception in the log
    raised_alike: bool = False  # every rank raised the same exception at the same place
    began: bool = False  # a counter shows that a rank trains
    misfit: str | None = None  # exception: sizes of the job, as it was launched, do not fit together
    misfit_site: str | None = None  # innermost user frame of that exception
    misfit_line: str | None = None  # "file:line" of that exception in the log
    misfit_uncaught: bool = False  # its traceback shows that nothing caught it
    nic_hosts: int = 0  # hosts of which the text shows which interface NCCL chose
    nic_shared: str | None = None  # an address that NCCL uses on several hosts: "docker0:172.17.0.1 on lab1, lab2"
    distributed: bool = False  # a line shows that several processes took part
    requested: str | None = None  # line: a user, launcher or scheduler ended the job, and nothing failed before
    host_failed: str | None = None  # line: the scheduler ended the job because a host failed
    versions: str | None = None  # "nccl 2.21.5, torch 2.6.0"
    joined: bool = False  # all ranks timed out in the same collective; none was missing
    outlier_calls: tuple[Suspect, ...] = ()  # ranks that called another operation and left no evidence
    outlier_sizes: tuple[Suspect, ...] = ()  # ranks that called the operation with another size and left no evidence
    outlier_call: str | None = None  # the call of the first of them
    other_calls: str | None = None  # both sides of calls of other operations: "rank 2 called REDUCE, rank 0 called ..."
    other_sizes: str | None = None  # the same, where the operations agree and sizes or dtypes differ
    overran: bool = False  # gloo aborted a rank because it received too much
    detects: bool = False  # DDP says that find_unused_parameters=True is set
    tied: bool = False  # two different collectives were called by equally many ranks
    expected: int | None = None  # ranks that the rendezvous waited for
    come: int | None = None  # ranks that had joined when the rendezvous gave up
    # Errors in lines of no known rank; the same meaning as in LogsFacts.
    port: str | None = None  # port that was already in use
    lacks: str | None = None  # interface that is configured but missing
    loopback: str | None = None  # the reason why a rank advertises a loopback address
    loopback_by: tuple[Suspect, ...] = ()  # that rank, if nothing else is known of it
    loopback_on: tuple[Suspect, ...] = ()  # its host, as the text states whose name leads to that address
    misled: str | None = None  # rendezvous address at which something other than a store answered
    unreached: str | None = None  # rendezvous address that could not be reached
    unresolved: bool = False  # only because its name was unknown, at least for a time
    unresolved_on: tuple[Suspect, ...] = ()  # the only host on which it was
    dropped: str | None = None  # exception: the rendezvous address closed a connection before the rank had joined
    unmeshed: str | None = None  # log line: a rank could not connect to its peers (gloo)
    refused: str | None = None  # address that refused a connection
    awaits: int | None = None  # rank that never published its address
    one_refused: bool = False  # a rank's connection was refused by a peer
    unmeshed_ranks: int = 0  # ranks that could not connect to their peers
    cut_off: bool = False  # a collective timed out, or a connection failed
    beyond: tuple[Suspect, ...] = ()  # the host named by InfiniBand errors of several ranks, or that with `gid`
    scattered: bool = False  # InfiniBand errors on several hosts name different peers: no end stands out
    gid: str | None = None  # GID of `beyond`, link-local where the one opposite is that of an IPv4 address
    none_reached: bool = False  # no known rank, of several, reached the rendezvous
    port_ranks: int = 0  # ranks that found their port in use
    taken_on: tuple[Suspect, ...] = ()  # the host on which `port` was in use
    ports: tuple[Suspect, ...] = ()  # hosts with a failing port that no rank reports
    gpus: tuple[Suspect, ...] = ()  # hosts with a GPU error that no rank reports
    gpus_shared: bool = False  # the launch or the script put ranks onto one GPU, and none of them stands out
    lines: tuple[str, ...] = ()  # the errors of these hosts: "node-7: Xid 79 on GPU ..."


class LogsDetector(Detector[LogsFacts, LogsJob]):
    rank_facts = LogsFacts
    job_facts = LogsJob

    def derive(self, case: Case) -> tuple[dict[Key, LogsFacts], LogsJob]:
        logs = job_logs(case)
        if logs is None:
            return dict.fromkeys(case.ranks, LogsFacts()), LogsJob()
        groups = failed_groups(logs)
        timed_out = any(True for _ in logs.all(*TIMEOUTS, "dump_signal", "dump_observed"))
        stands = timed_out or any(True for _ in logs.all("said_stuck"))  # a person says that the job stands still
        shorter = ranks_with_shorter_loops(logs, timed_out) or (ranks_past_their_loop(logs) if stands else {})
        behind, left = _behind(groups, logs), shorter or _left_behind(groups, logs, timed_out)
        if not behind and not left:
            other = (
                ranks_that_skipped(logs)
                or ranks_that_left(logs)
                or ranks_with_other_length(logs)
                or ranks_in_another_state(logs)
            )
            behind = {rank: Behind(why) for rank, why in other.items()}
            if not behind and stands:
                left = _left_behind(groups, logs, timed_out=True)
        job = _Findings(
            logs=logs,
            groups=groups,
            behind=_joined(behind, left),
            counted=bool(left) and not behind,
            shorter=bool(shorter) and not behind,
            mismatches=list(call_mismatches(logs, groups)),
            hardware=(hardware := hardware_errors(case, logs)),
            beyond=on_hosts(case, hardware.peers),
            gpus_shared=shares_gpus_by_design(logs, ranks_per_host(case)),
            ports=on_hosts(case, (Suspect(None, None, host) for host in hardware.port_hosts)),
            rendezvous=(rendezvous := rendezvous_errors(logs)),
            loopback=on_hosts(case, [Suspect(None, None, host)] if (host := rendezvous.loopback_host) else ()),
            counts=last_counts(logs),
            roots=root_causes(logs),
        )
        ended = failures(case, logs)
        facts = {key: _facts(case, key, job, ended.get(key)) for key in case.ranks}
        return facts, _job_facts(case, job, {key: failure.own for key, failure in ended.items() if failure.own})


@dataclass(frozen=True, slots=True)
class _Findings:
    """Findings in the logs of the whole job."""

    logs: JobLogs
    groups: list[Group]
    behind: Mapping[int, Behind]  # rank -> evidence
    counted: bool  # only counters show which ranks are behind
    shorter: bool  # or the length of their loops
    mismatches: list[CallMismatch]
    hardware: HardwareErrors
    beyond: tuple[Suspect, ...]  # the host that InfiniBand errors of several ranks name, or its ranks
    gpus_shared: bool
    ports: tuple[Suspect, ...]  # hosts with a failing port, or their ranks
    rendezvous: RendezvousErrors
    loopback: tuple[Suspect, ...]  # the only host whose name resolves to its loopback address, or its ranks
    counts: Mapping[int, LastCount]
    roots: frozenset[Key]  # ranks that launchers name as the first failure


def _behind(groups: list[Group], logs: JobLogs) -> dict[int, Behind]:
    """Ranks behind in any group, with the evidence; the default group comes first."""
    behind: dict[int, Behind] = {}
    for group in sorted(groups, key=lambda group: not group.whole):
        for rank, why in ranks_behind(group, logs).items():
            behind.setdefault(rank, why)
    return behind or _awaited(logs)


def _awaited(logs: JobLogs) -> dict[int, Behind]:
    """The rank that others waited for in the first collective of the whole job, by the unique id that it never wrote.

    The numbers in the message are those of the group: they count only where they agree with that of the writer.
    """
    ranks = {key: rank for rank, key in logs.keys.items()}
    waited = [event for key, event in logs.of_ranks("id_awaited") if number(event, "reporter") == ranks.get(key)]
    waited += [event for _, event in logs.unattributed if event.kind == "id_awaited"]
    named = {rank for event in waited if (rank := number(event, "from_rank")) is not None}
    if len(named) != 1 or len(waited) < sum(1 for _ in logs.all("id_awaited")):
        return {}
    return {rank: Behind(waited[0].text) for rank in named}  # why it did not come is open


def _left_behind(groups: list[Group], logs: JobLogs, timed_out: bool) -> dict[int, str]:
    """Ranks whose counter stopped early, but not those that wait in the collective of their peers."""
    waiting = {rank for group in groups for rank, at in group.timed_out.items() if at is not None and at == group.front}
    return {rank: why for rank, why in ranks_left_behind(logs, timed_out).items() if rank not in waiting}


def _joined(behind: Mapping[int, Behind], left: Mapping[int, str]) -> dict[int, Behind]:
    """What the collectives show, with what the counters show: two signs prove more than one."""
    if not behind:
        return {rank: Behind(why) for rank, why in left.items()}
    return {rank: Behind(f"{one.why}; {left[rank]}", True) if rank in left else one for rank, one in behind.items()}


def _facts(case: Case, key: Key, job: _Findings, failure: Failure | None) -> LogsFacts:
    behind, hardware = job.behind, job.hardware
    rank, events = case.ranks[key].target.rank, job.logs.ranks.get(key, ())
    timeout = first_timeout(job.logs, key)
    if timeout is None and rank is not None and any(rank in group.timed_out for group in job.groups):
        timeout = last(events, "work_status")
    waited = timeout is not None or any(rank in group.timed_out for group in job.groups)
    status = last(events, "work_status", "dump_signal")
    mismatch = next((mismatch for mismatch in job.mismatches if rank in mismatch.calls), None)
    watchdog, overrun = last(events, "watchdog_stuck"), last(events, "size_mismatch")
    unmoved = last(events, "would_not_end")
    own = failure.own if failure else None
    late = behind.get(rank) if rank is not None else None
    facts = LogsFacts(
        timed_out=True if waited else None,
        waited=_waited_by(job.groups, rank) if waited else None,
        stuck=True if waited and case.ranks[key].alive is not False and not own else None,
        op=timeout.fields.get("op") if timeout else None,
        sequence=number(timeout, "sequence"),
        enqueued=number(status, "enqueued"),
        completed=number(status, "completed"),
        behind=rank in behind if behind and rank is not None else None,
        behind_why=late.why if late else None,
        behind_proved=late.proved if late else None,
        count=count.shown if rank is not None and (count := job.counts.get(rank)) else None,
        overrun=(
            f"{overrun.fields['received']} bytes where it expected {overrun.fields['expected']}" if overrun else None
        ),
        unfinished=True if last(events, "reduction_unfinished") else None,
        gradless=_gradless(events),
        error=own.text if own else None,
        error_kind=error_kind(own),
        error_cut=own is not None and is_cut(own),
        error_logged=own is not None and ("logged" in own.fields or _may_be_caught(own, case.ranks[key])),
        error_site=own.fields.get("site") if own else None,
        error_line=f"{own.source}:{own.line}" if own else None,
        first=failure.first if own and failure else None,
        order=failure.order if own and failure else None,
        root=key in job.roots if job.roots else None,
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


def _may_be_caught(error: LogEvent, rank: RankEvidence) -> bool:
    return "uncaught" not in error.fields and rank.alive is not False


def _gradless(events: Sequence[LogEvent]) -> str | None:
    """Names if DDP printed them, else numbers, in the order of `parameters()`."""
    found = [event.fields.get("parameters", "") for event in events if event.kind == "gradients_missing"]
    names = [text for text in found if text[:1].isalpha() or text[:1] == "_"]
    return names[-1] if names else f"number {found[-1]}" if found else None


def _all_alike(case: Case, logs: JobLogs, errors: Mapping[Key, LogEvent]) -> bool:
    """True if every rank raised the same exception at the same place: numbers in it may differ.

    People show the whole traceback of one rank; of the others, the last line has no place. Of a few, their launcher may
    show the exit code alone, which is then that of most.
    """
    texts = {_NUMBERS.sub("#", event.text) for event in errors.values()}
    sites = {event.fields.get("site") for event in errors.values()} - {None}
    others = set(logs.keys.values()) - errors.keys()
    codes = {end.code for key in errors if (end := case.ranks[key].end)} - {None}
    exited = [key for key in others if (end := case.ranks[key].end) and end.code in codes]
    whole = len(exited) == len(others) < len(errors) and logs.size in (None, len(errors) + len(others))
    return whole and len(errors) > 1 + len(others) and len(texts) == 1 and len(sites) < 2


def _job_facts(case: Case, job: _Findings, errors: Mapping[Key, LogEvent]) -> LogsJob:
    """`errors`: the exceptions of their own by which ranks are known to have failed."""
    logs, hardware, rendezvous = job.logs, job.hardware, job.rendezvous
    absent = limits.absent_ranks(logs.size, logs.keys) if logs.size else ()
    if rendezvous.expected == logs.size and len(absent) > (rendezvous.expected or 0) - (rendezvous.joined or 0):
        absent = ()  # fewer are missing than have no log here
    if any(True for _ in logs.all("clients_missing")):
        absent = tuple(rank for rank in absent if rank)  # the store says so, and rank 0 holds it
    host_errors = {**hardware.port_hosts, **hardware.gpu_hosts}
    unseen = [(mismatch, rank) for mismatch in job.mismatches for rank in mismatch.outliers if rank not in logs.keys]
    raised = unattributed_failure(logs) if not errors else None
    # Who ended by itself closed its connections as it should.
    gone = None if ranks_that_left(logs, fewest=1) else lost_peers(logs)
    lost = lost_connections(logs)
    sequence = max((at for event in logs.all(*TIMEOUTS) if (at := number(event, "sequence")) is not None), default=None)
    misfits = [event for event in logs.all("exception") if error_kind(event) == MISFIT and not caused_by_peer(event)]
    misfit = next((event for event in misfits if "uncaught" in event.fields), misfits[0] if misfits else None)
    timed_out = [group for group in job.groups if group.timed_out]
    lost_texts = {event.text for event in lost}
    peer_errors = [
        event
        for event in logs.all("exception")
        if caused_by_peer(event) and event.fields.get("type") not in REQUESTED and TEARDOWN not in event.fields
    ]
    return LogsJob(
        read=True,
        ranks=len(logs.ranks),
        behind=tuple(Suspect(rank) for rank in sorted(job.behind) if rank not in logs.keys),
        behind_why=next((one.why for rank, one in sorted(job.behind.items()) if rank not in logs.keys), None),
        absent=tuple(Suspect(rank) for rank in absent) if logs.ranks else (),
        waited=_waited(job.groups) or _waited_by_some_rank(logs),
        waited_s=_waited_s(logs),
        timeouts=sum(1 for _ in logs.all(*TIMEOUTS, STALLED)),
        reporters=len({rank for group in job.groups for rank in group.timed_out}),
        of_part=bool(timed_out) and all(is_part(group, logs) for group in timed_out),
        sequence=sequence,
        early=sequence is not None and sequence <= FIRST_CALLS and not _between_two(logs),
        size=logs.named,
        differing=_differing(logs, sequence),
        behind_proved=any(one.proved for rank, one in job.behind.items() if rank not in logs.keys),
        counted=job.counted,
        shorter=job.shorter,
        peer_errors=len(peer_errors),
        peer_error=peer_errors[0].text if peer_errors else None,
        lost=len(lost),
        losses=len(lost) + sum(event.text not in lost_texts for event in peer_errors),
        gone=tuple(gone.suspects) if gone else (),
        gone_why=gone.why if gone else None,
        gone_line=next((event.text for event in (*lost, *peer_errors)), None),
        raised=raised.text if raised else None,
        nic_hosts=hardware.nic_hosts,
        nic_shared=hardware.nic_shared,
        raised_uncaught=bool(raised and "uncaught" in raised.fields),
        raised_cut=raised is not None and is_cut(raised),
        raised_kind=error_kind(raised),
        raised_site=raised.fields.get("site") if raised else None,
        raised_line=f"{raised.source}:{raised.line}" if raised else None,
        raised_alike=_all_alike(case, logs, errors),
        began=any(True for _ in logs.all("progress")),
        misfit=misfit.text if misfit else None,
        misfit_site=misfit.fields.get("site") if misfit else None,
        misfit_line=f"{misfit.source}:{misfit.line}" if misfit else None,
        misfit_uncaught=bool(misfit and "uncaught" in misfit.fields),
        distributed=_is_distributed(logs),
        requested=_requested(logs),
        host_failed=next(
            (one.text for one in logs.all("ended_from_outside") if FAULTS.search(one.fields.get("why", ""))), None
        ),
        versions=next((event.text for event in logs.all("versions")), None),
        joined=any(is_complete(group, logs) for group in job.groups) and not job.behind and not job.mismatches,
        outlier_calls=tuple(Suspect(rank) for mismatch, rank in unseen if not mismatch.sizes),
        outlier_sizes=tuple(Suspect(rank) for mismatch, rank in unseen if mismatch.sizes),
        outlier_call=next((mismatch.format_call(rank) for mismatch, rank in unseen), None),
        other_calls=next((mismatch.text for mismatch in job.mismatches if not mismatch.sizes), None),
        other_sizes=next((mismatch.text for mismatch in job.mismatches if mismatch.sizes), None),
        overran=any(True for _ in logs.all("size_mismatch")),
        detects=any("detects" in event.fields for event in logs.all("reduction_unfinished")),
        tied=any(mismatch.tied for mismatch in job.mismatches),
        expected=rendezvous.expected,
        come=rendezvous.joined,
        **rendezvous.unattributed,
        unresolved=rendezvous.unresolved,
        unresolved_on=on_hosts(case, [Suspect(None, None, host)] if (host := rendezvous.unresolved_on) else ()),
        one_refused=any("refused" in fields for fields in rendezvous.of_rank.values()),
        unmeshed_ranks=sum("unmeshed" in fields for fields in rendezvous.of_rank.values()),
        cut_off=any(True for _ in logs.all(*TIMEOUTS, "connect_failed", "clients_missing", "unreachable")),
        beyond=job.beyond,
        scattered=job.hardware.scattered,
        gid=hardware.gid,
        none_reached=len(logs.ranks) > 1 and all("unreached" in rendezvous.of_rank.get(key, {}) for key in logs.ranks),
        loopback_by=(Suspect(rendezvous.on_loopback),) if rendezvous.on_loopback is not None else (),
        loopback_on=job.loopback,
        port_ranks=sum("port" in fields for fields in rendezvous.of_rank.values()),
        taken_on=(Suspect(None, None, rendezvous.taken_on),) if rendezvous.taken_on else (),
        ports=job.ports,
        gpus=tuple(Suspect(None, None, host) for host in hardware.gpu_hosts),
        gpus_shared=job.gpus_shared,
        lines=tuple(f"{host}: {text}" for host, text in host_errors.items()),
    )


def _waited(groups: list[Group]) -> str | None:
    """The collective that most ranks timed out in."""
    group = max(groups, key=lambda group: len(group.timed_out), default=None)
    if group is None or not group.timed_out:
        return None
    front = group.front
    ops = [op for rank, (op, _) in group.calls.items() if group.timed_out.get(rank) == front]
    return _name_collective(group, max(set(ops), key=ops.count) if ops else None, front)


def _waited_by(groups: list[Group], rank: int | None) -> str:
    """The collective that one rank timed out in; of several groups, the whole job's."""
    for group in sorted(groups, key=lambda one: not one.whole):
        if rank is not None and rank in group.timed_out:
            op, _ = group.calls.get(rank, (None, ""))
            return _name_collective(group, op, group.timed_out[rank]) or UNNAMED
    return UNNAMED


def _name_collective(group: Group, op: str | None, sequence: int | None) -> str | None:
    """`ALLREDUCE 1900`, `ALLGATHER 7 of group 2`."""
    if op is None and sequence is None:
        return None
    number = f" {sequence}" if sequence is not None else ""
    return f"{op or 'collective'}{number}{'' if group.whole else f' of group {group.name}'}"


def _waited_by_some_rank(logs: JobLogs) -> str | None:
    """The collective of the first timeout in lines that name no rank."""
    event = next((event for _, event in logs.unattributed if event.kind in (*TIMEOUTS, STALLED)), None)
    if event is None or "op" not in event.fields:
        return None
    return " ".join(part for part in (event.fields["op"], event.fields.get("sequence", "")) if part)


def _waited_s(logs: JobLogs) -> float | None:
    """How long the first reported collective waited (s)."""
    for event in logs.all(*TIMEOUTS):
        if (waited_ms := number(event, "ran_ms") or number(event, "timeout_ms")) is not None:
            return waited_ms / 1000
    return None


def _between_two(logs: JobLogs) -> bool:
    """True if sends and receives timed out, and nothing else: NCCL counts those of each pair, from their first use."""
    ops = {event.fields["op"] for event in logs.all(*TIMEOUTS) if "op" in event.fields}
    return bool(ops) and ops <= BETWEEN_TWO


def _differing(logs: JobLogs, sequence: int | None) -> str | None:
    """The operations that lines without a rank name for the same sequence number, if they differ."""
    ops = {
        event.fields["op"]
        for _, event in logs.unattributed
        if event.kind in TIMEOUTS and number(event, "sequence") == sequence and "op" in event.fields
    }
    return ", ".join(sorted(ops)) if sequence is not None and len(ops) > 1 and not ops & BETWEEN_TWO else None


def _is_distributed(logs: JobLogs) -> bool:
    """True if a line shows several processes: a second rank, a collective, a lost peer, a launcher's failure table."""
    return len(logs.keys) > 1 or (logs.named or 0) > 1 or any(True for _ in logs.all(*DISTRIBUTED))


def _requested(logs: JobLogs) -> str | None:
    """The line that shows that somebody ended the job: a signal to the launcher, the scheduler, Ctrl-C."""
    if any(True for _ in logs.all(*TIMEOUTS)):
        return None
    interrupted = [one for one in logs.all("exception") if one.fields.get("type") in REQUESTED]
    own = [one for one in logs.all("exception") if one not in interrupted and not caused_by_peer(one)]
    ended = [one for one in logs.all("ended_from_outside") if not FAULTS.search(one.fields.get("why", ""))]
    ended += interrupted
    return None if own or not ended else ended[0].text


ANALYSIS = LogsDetector()
