"""Messages in logs that name a cause by themselves: memory, GPUs, storage, limits, the scheduler.

A fact has the name of its kind in the catalogue of messages; a kind with a field here needs no code. A message of a
rank counts only if it belongs to what ended the rank: an error that the rank caught and survived explains nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from hangdoc.analysis import Case, Detector, Key, Suspect
from hangdoc.analysis.logs.first_failure import failures
from hangdoc.analysis.logs.log_events import TIMEOUTS, JobLogs, job_logs, known_host, number
from hangdoc.analysis.ranks.host_ranks import on_hosts
from hangdoc.analysis.thresholds import LEADING_LINES, TRACEBACK_LINES
from hangdoc.evidence.logs import LogEvent

# Kinds of event that show that the rank went on after a message, or that what was lost came back.
GOES_ON = TIMEOUTS | {"progress", "storage_back"}
NAMED = ("rank", "rank_b", "odd")  # fields with the ranks at fault
MAX_SUSPECTS = 64
_EXCEPTION = re.compile(r"[\w.]{1,100}(?:Error|Exception)?: ")


@dataclass(frozen=True, slots=True)
class NoticesFacts:
    """The first message of each kind about one rank. None: there is none."""

    gpu_out_of_memory: str | None = None  # its GPU had no memory left
    skipped_batch: str | None = None  # it ran out of GPU memory and dropped its batch
    host_out_of_memory: str | None = None  # its host, or the limit of its cgroup, had no memory left
    process_killed: str | None = None  # a shell or a scheduler says that SIGKILL ended it
    process_crashed: str | None = None  # a shell says that it crashed
    process_lost: str | None = None  # its framework lost it, and does not say how it ended
    gpu_memory_fault: str | None = None  # a kernel of it used a bad address or failed an assertion
    gpu_hardware: str | None = None  # its GPU or NVLink reports a hardware error
    gpu_unavailable: str | None = None  # it found no usable GPU
    shared_memory_full: str | None = None  # /dev/shm was full
    worker_died: str | None = None  # one of its data loader workers died
    storage_full: str | None = None  # a file system or quota to which it writes was full
    write_failed: str | None = None  # torch.save could not write a file; it does not say why
    file_system_full: str | None = None  # `df` shows that a file system of its host has no space left
    stale_lock: str | None = None  # a listing shows an old lock file that no process has open
    storage_lost: str | None = None  # a file system, its server or its disk reported an error
    split_waits: str | None = None  # it waits until every other rank reads its part of a data set
    gc_pause: str | None = None  # a garbage collection that stopped a rank for some tenths of a second, or longer
    storage_throttled: str | None = None  # an object store refused requests because there were too many
    disk_failed: str | None = None  # a disk, or the file system on it, reported an error; the job may not use it
    host_hardware: str | None = None  # the CPU, memory, PCIe or an adapter of its host failed
    too_many_files: str | None = None  # it reached its limit of open files
    too_many_threads: str | None = None  # it reached its limit of threads or processes
    memory_lock_limit: str | None = None  # it may not lock enough memory for InfiniBand
    duplicate_gpu: str | None = None  # it shares a GPU with another rank of its communicator
    version_mismatch: str | None = None  # it loads another version of NCCL than a peer
    transfer_mismatch: str | None = None  # a peer sent it another number of bytes than its collective expects
    model_mismatch: str | None = None  # its model has other parameters than rank 0's
    rendezvous_timeout: str | None = None  # too few nodes joined its rendezvous
    rendezvous_failed: str | None = None  # it could not reach the rendezvous store
    ended_by_scheduler: str | None = None  # the scheduler ended it: time limit, preemption, eviction
    node_failed: str | None = None  # its host was lost
    daemon_lost: str | None = None  # its launcher lost the daemon on its host
    launch_failed: str | None = None  # its process could not be started
    rendezvous_closed: str | None = None  # the rendezvous had ended when it came
    replicas_apart: str | None = None  # its parameters or gradients differ from those of its replicas
    calls_differ: str | None = None  # a check of its framework found that its collectives differ from those of a peer
    transfer_failed: str | None = None  # the network library gave up a connection or transfer to a peer
    peer_access_wrong: str | None = None  # a test copied wrong data between GPUs of its host
    peer_access_redirected: str | None = None  # PCIe bridges of its host redirect transfers between devices
    peer_access_fault: str | None = None  # the IOMMU of its host refused an access of a device
    samples_repeated: str | None = None  # the ranks together read samples more than once
    peer_access_off: str | None = None  # somebody says that it works without transfers between GPUs
    peer_access_tried: str | None = None  # somebody ran it without transfers between GPUs


@dataclass(frozen=True, slots=True)
class NoticesJob:
    """The same in lines of no known rank, and in `..._at` the hosts of these lines or the absent ranks they name."""

    gpu_out_of_memory: str | None = None
    gpu_out_of_memory_at: tuple[Suspect, ...] = ()
    skipped_batch: str | None = None
    skipped_batch_at: tuple[Suspect, ...] = ()
    host_out_of_memory: str | None = None
    host_out_of_memory_at: tuple[Suspect, ...] = ()
    process_killed: str | None = None
    process_killed_at: tuple[Suspect, ...] = ()
    process_crashed: str | None = None
    process_crashed_at: tuple[Suspect, ...] = ()
    process_lost: str | None = None
    process_lost_at: tuple[Suspect, ...] = ()
    gpu_memory_fault: str | None = None
    gpu_memory_fault_at: tuple[Suspect, ...] = ()
    gpu_hardware: str | None = None
    gpu_hardware_at: tuple[Suspect, ...] = ()
    gpu_unavailable: str | None = None
    gpu_unavailable_at: tuple[Suspect, ...] = ()
    shared_memory_full: str | None = None
    shared_memory_full_at: tuple[Suspect, ...] = ()
    worker_died: str | None = None
    worker_died_at: tuple[Suspect, ...] = ()
    worker_killed: bool = False  # a line, of a rank or not, says that SIGKILL ended a data loader worker
    write_failed: str | None = None
    write_failed_at: tuple[Suspect, ...] = ()
    storage_full: str | None = None
    storage_full_at: tuple[Suspect, ...] = ()
    file_system_full: str | None = None
    file_system_full_at: tuple[Suspect, ...] = ()
    stale_lock: str | None = None
    stale_lock_at: tuple[Suspect, ...] = ()
    storage_lost: str | None = None
    storage_lost_at: tuple[Suspect, ...] = ()
    split_waits: str | None = None
    split_waits_at: tuple[Suspect, ...] = ()
    gc_pause: str | None = None
    gc_pause_at: tuple[Suspect, ...] = ()
    gc_paused_alone: bool = False  # one rank of several shows such pauses
    storage_throttled: str | None = None
    storage_throttled_at: tuple[Suspect, ...] = ()
    lost_for_memory: bool = False  # as many processes were lost as a monitor killed for lack of memory
    throttled_ranks: int = 0  # to which the object store refused requests
    disk_failed: str | None = None
    disk_failed_at: tuple[Suspect, ...] = ()
    host_hardware: str | None = None
    host_hardware_at: tuple[Suspect, ...] = ()
    too_many_files: str | None = None
    too_many_files_at: tuple[Suspect, ...] = ()
    too_many_threads: str | None = None
    too_many_threads_at: tuple[Suspect, ...] = ()
    memory_lock_limit: str | None = None
    memory_lock_limit_at: tuple[Suspect, ...] = ()
    duplicate_gpu: str | None = None
    duplicate_gpu_at: tuple[Suspect, ...] = ()
    version_mismatch: str | None = None
    version_mismatch_at: tuple[Suspect, ...] = ()
    transfer_mismatch: str | None = None
    transfer_mismatch_at: tuple[Suspect, ...] = ()
    model_mismatch: str | None = None
    model_mismatch_at: tuple[Suspect, ...] = ()
    rendezvous_timeout: str | None = None
    rendezvous_timeout_at: tuple[Suspect, ...] = ()
    rendezvous_failed: str | None = None
    rendezvous_failed_at: tuple[Suspect, ...] = ()
    ended_by_scheduler: str | None = None
    ended_by_scheduler_at: tuple[Suspect, ...] = ()
    node_failed: str | None = None
    node_failed_at: tuple[Suspect, ...] = ()
    daemon_lost: str | None = None
    daemon_lost_at: tuple[Suspect, ...] = ()
    launch_failed: str | None = None
    launch_failed_at: tuple[Suspect, ...] = ()
    rendezvous_closed: str | None = None
    rendezvous_closed_at: tuple[Suspect, ...] = ()
    replicas_apart: str | None = None
    replicas_apart_at: tuple[Suspect, ...] = ()
    calls_differ: str | None = None
    calls_differ_at: tuple[Suspect, ...] = ()
    transfer_failed: str | None = None
    transfer_failed_at: tuple[Suspect, ...] = ()
    peer_access_wrong: str | None = None
    peer_access_wrong_at: tuple[Suspect, ...] = ()
    peer_access_redirected: str | None = None
    peer_access_redirected_at: tuple[Suspect, ...] = ()
    peer_access_fault: str | None = None
    peer_access_fault_at: tuple[Suspect, ...] = ()
    peer_access_off: str | None = None
    peer_access_off_at: tuple[Suspect, ...] = ()
    samples_repeated: str | None = None
    samples_repeated_at: tuple[Suspect, ...] = ()
    peer_access_tried: str | None = None
    peer_access_tried_at: tuple[Suspect, ...] = ()


KINDS = frozenset(field.name for field in fields(NoticesFacts))
OF_HOST = frozenset({"node_failed", "daemon_lost"})  # they end every rank of a host
_KILLED = "Killed"  # strsignal() of SIGKILL
PAUSES = frozenset({"gc_pause"})  # the job goes on after them, and is slow


class NoticesDetector(Detector[NoticesFacts, NoticesJob]):
    rank_facts = NoticesFacts
    job_facts = NoticesJob

    def derive(self, case: Case) -> tuple[dict[Key, NoticesFacts], NoticesJob]:
        logs = job_logs(case)
        if logs is None:
            return dict.fromkeys(case.ranks, NoticesFacts()), NoticesJob()
        own = {key: failure.own for key, failure in failures(case, logs).items()}
        of_rank: dict[Key, dict[str, str]] = {key: {} for key in case.ranks}
        texts: dict[str, str] = {}
        suspects: dict[str, dict[Suspect, None]] = {}
        # Where a line names the host that was lost, another one's host only printed it.
        named_lost = {event.kind for _, _, event in _notices(logs) if event.kind in OF_HOST and "host" in event.fields}
        for key, host, event in _notices(logs):
            if key is not None and not _explains(event, own.get(key), logs.ranks.get(key, ())):
                continue
            if key is None and not _goes_with(event, logs):
                continue
            named = _named(event)
            if key is not None and (not named or named == [Suspect(None, None, key[0])]):
                of_rank[key].setdefault(event.kind, event.text)
                continue
            absent = []
            for one in named:
                at_fault = logs.keys.get(one.rank) if one.rank is not None else None
                if at_fault is None:
                    absent.append(one)
                else:
                    of_rank[at_fault].setdefault(event.kind, event.text)
            if not named and known_host(host) and event.kind not in named_lost:
                absent = [Suspect(None, None, host)]
            if absent or not named:
                texts.setdefault(event.kind, event.text)
                suspects.setdefault(event.kind, {}).update(dict.fromkeys(absent))
        for kind, found in suspects.items():  # a host only, where no line shows which of its ranks it was
            shown = {key[0] for key, own_texts in of_rank.items() if kind in own_texts}
            suspects[kind] = {one: None for one in found if one.rank is not None or one.host not in shown}
            if kind in OF_HOST:
                suspects[kind] = dict.fromkeys(on_hosts(case, suspects[kind]))
        of_job: dict[str, Any] = {f"{kind}_at": tuple(found)[:MAX_SUSPECTS] for kind, found in suspects.items()}
        of_job["gc_paused_alone"] = len(case.ranks) > 1 and sum("gc_pause" in found for found in of_rank.values()) == 1
        of_job["worker_killed"] = any(one.kind == "worker_died" and _KILLED in one.text for _, _, one in _notices(logs))
        of_job["lost_for_memory"] = _lost_for_memory(logs, of_rank)
        of_job["throttled_ranks"] = sum("storage_throttled" in found for found in of_rank.values())
        return {key: NoticesFacts(**found) for key, found in of_rank.items()}, NoticesJob(**(of_job | texts))


def _lost_for_memory(logs: JobLogs, of_rank: Mapping[Key, Mapping[str, str]]) -> bool:
    """A monitor that kills processes tells the host and how many; who lost them tells which."""
    counts = [number(one, "count") or 0 for _, _, one in _notices(logs) if one.kind == "host_out_of_memory"]
    return 0 < max(counts, default=0) == sum("process_lost" in found for found in of_rank.values())


def _notices(logs: JobLogs) -> Iterator[tuple[Key | None, str | None, LogEvent]]:
    """Events of these kinds, with the rank that wrote them, or with the host."""
    for key, events in logs.ranks.items():
        yield from ((key, None, event) for event in events if event.kind in KINDS)
    yield from ((None, host, event) for host, event in logs.unattributed if event.kind in KINDS)


def _named(event: LogEvent) -> list[Suspect]:
    """The ranks, or else the host, that a message names."""
    ranks = [event.fields[name] for name in NAMED if name in event.fields]
    if ranks:
        return [Suspect(int(rank)) for rank in ranks]
    return [Suspect(None, None, event.fields["host"])] if "host" in event.fields else []


def _explains(event: LogEvent, own: LogEvent | None, events: Sequence[LogEvent]) -> bool:
    """True if the message belongs to the rank's own exception, or the rank shows no sign of life after it."""
    if own is None:
        return event.kind in PAUSES or not _later(event, events)
    if own.source != event.source:
        return own.text[:60] in event.text or not _EXCEPTION.match(event.text)
    return own.text[:60] in event.text or -LEADING_LINES <= event.line - own.line <= TRACEBACK_LINES


def _goes_with(event: LogEvent, logs: JobLogs) -> bool:
    """True if no counter grows after a message of no known rank, in the same file, or it is a mere pause."""
    return event.kind in PAUSES or not _later(event, [other for _, other in logs.unattributed])


def _later(event: LogEvent, events: Sequence[LogEvent]) -> bool:
    return any(other.kind in GOES_ON and other.source == event.source and other.line > event.line for other in events)


ANALYSIS = NoticesDetector()
