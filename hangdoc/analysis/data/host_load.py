"""Analysis `load`: hosts whose disks, mounts, memory or CPUs are the bottleneck, by the tables of tools.

Of several reports of a table, the average since the boot does not count, and most of the rest must show it. A table
shows that a host suffers, and not that the job does.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hangdoc.analysis import Case, Detector, Key, Suspect
from hangdoc.analysis.logs.log_events import job_logs, known_host
from hangdoc.analysis.ranks.host_ranks import on_hosts
from hangdoc.analysis.thresholds import (
    BUSY_PROCESS,
    DISK_WAIT_MS,
    FULL_DISK,
    HALF,
    IDLE_HOST,
    IO_WAIT,
    MOUNT_WAIT_MS,
    NO_MEMORY,
    NO_SWAP,
    QUEUED,
    RECLAIMING,
    RESENT_CALLS,
    STALLED_BY_IO,
    STALLED_BY_MEMORY,
    STOLEN,
    SWAPPED_KIB,
)
from hangdoc.evidence.logs import LogEvent

MAX_SUSPECTS = 64
MAX_SHOWN = 3
KINDS = frozenset(
    {
        "disk_load", "mount_load", "pressure", "cpu_load", "process_load", "swap_load", "memory_load",
    }
)  # fmt: skip

_MAY_BE_A_RANK = re.compile(r"python|^pt_|^ray|torch|train|mpi|nccl", re.IGNORECASE)

Events = Mapping[str, Sequence[LogEvent]]  # of one kind, by host; "": the text names none


@dataclass(frozen=True, slots=True)
class LoadJob:
    """Hosts in such tables. None: nothing shows it."""

    storage: tuple[Suspect, ...] = ()  # of the disks and mounts below
    storage_why: str | None = None  # "sdb is busy 100 % of the time, a request takes 812 ms"
    storage_measured: bool = False  # a disk or a mount, and not only the time that tasks wait
    memory: tuple[Suspect, ...] = ()
    memory_why: str | None = None  # "it swaps 20 MiB/s", "2 % of the memory and no swap are left"
    cpu: tuple[Suspect, ...] = ()
    cpu_why: str | None = None  # "clamd (pid 812) uses 63 cores, and 1 % is idle"


class HostLoadDetector(Detector[object, LoadJob]):
    job_facts = LoadJob

    def derive(self, case: Case) -> tuple[dict[Key, object], LoadJob]:
        logs = job_logs(case)
        if logs is None or not any(True for _, event in logs.unattributed if event.kind in KINDS):
            return {}, LoadJob()
        found: dict[str, dict[str, list[LogEvent]]] = defaultdict(lambda: defaultdict(list))
        for host, event in logs.unattributed:
            if event.kind in KINDS:
                found[event.kind][known_host(host) or ""].append(event)
        measured = {**_disks(found["disk_load"]), **_mounts(found["mount_load"])}
        storage = measured or {
            **_pressure(found["pressure"], "io", "full", STALLED_BY_IO),
            **_io_wait(found["cpu_load"]),
        }
        memory = {
            **_reclaim(found["process_load"]),
            **_memory_left(found["memory_load"]),
            **_pressure(found["pressure"], "memory", "full", STALLED_BY_MEMORY),
            **_swap(found["swap_load"]),
        }
        queued = _pressure(found["pressure"], "cpu", "some", QUEUED)
        cpu = {**queued, **_stolen(found["cpu_load"]), **_hogs(found["process_load"], found["cpu_load"])}
        return {}, LoadJob(
            _suspects(case, storage), _text(storage), bool(measured), _suspects(case, memory), _text(memory),
            _suspects(case, cpu), _text(cpu),
        )  # fmt: skip


def _suspects(case: Case, found: Mapping[str, str]) -> tuple[Suspect, ...]:
    return on_hosts(case, (Suspect(None, None, host) for host in found if host))[:MAX_SUSPECTS]


def _text(found: Mapping[str, str]) -> str | None:
    shown = [f"{host}: {text}" if host else text for host, text in found.items()]
    return "; ".join(shown[:MAX_SHOWN]) or None


def _number(event: LogEvent, name: str) -> float:
    try:
        return float(event.fields.get(name, "0"))
    except ValueError:
        return 0.0


def _mostly(events: Iterable[LogEvent], shows: Callable[[LogEvent], bool]) -> list[LogEvent]:
    """The reports that show it, if most of them do; the average since the boot counts only where it is alone."""
    known = list(events)
    newer = [event for event in known if "since_boot" not in event.fields] or known
    those = [event for event in newer if shows(event)]
    return those if those and len(those) >= HALF * len(newer) else []


# --- storage --------------------------------------------------------------------------------------


def _disks(events: Events) -> dict[str, str]:
    found = {}
    for host, own in events.items():
        devices: dict[str, list[LogEvent]] = defaultdict(list)
        for event in own:
            devices[event.fields.get("device", "")].append(event)
        for device, reports in devices.items():
            full = _mostly(
                reports, lambda one: _number(one, "util") >= FULL_DISK and _number(one, "await_ms") >= DISK_WAIT_MS
            )
            if full and host not in found:
                last = full[-1]
                util, wait = _number(last, "util"), _number(last, "await_ms")
                found[host] = f"{device} is busy {util:.0f} % of the time, and a request takes {wait:.0f} ms"
    return found


def _mounts(events: Events) -> dict[str, str]:
    """Mounts whose server answers late. Calls that are repeated count with a late answer only."""
    found = {}
    for host, own in events.items():
        mounts: dict[tuple[str, str], list[LogEvent]] = defaultdict(list)
        for event in own:
            mounts[event.fields.get("mount", ""), event.fields.get("op", "")].append(event)
        for (mount, op), reports in mounts.items():
            late = _mostly(reports[1:] or reports, _is_late)
            if late and host not in found:
                wait = max(_number(late[-1], "rtt_ms"), _number(late[-1], "exe_ms")) / 1e3
                again = _number(late[-1], "resent_percent")
                repeated = f", and {again:.0f} % of them are repeated" if again >= RESENT_CALLS else ""
                server = late[-1].fields.get("server", "its server")
                found[host] = f"a {op} of {mount} ({server}) takes {wait:.1f} s{repeated}"
    return found


def _is_late(event: LogEvent) -> bool:
    return max(_number(event, "rtt_ms"), _number(event, "exe_ms")) >= MOUNT_WAIT_MS and _number(event, "ops") > 0


def _pressure(events: Events, resource: str, who: str, least: float) -> dict[str, str]:
    """Time in which every task of a host or cgroup, or some, stood still, for want of a resource."""
    found = {}
    for host, own in events.items():
        stalls = [one for one in own if one.fields.get("resource") == resource and one.fields.get("who") == who]
        if stalls and _number(stalls[-1], "avg60") >= least and _number(stalls[-1], "avg10") >= least:
            what = {"io": "a disk or file server", "cpu": "a CPU"}.get(resource, resource)
            many = "every" if who == "full" else "some"
            found[host] = f"{many} task waits for {what} {_number(stalls[-1], 'avg60'):.0f} % of the time"
    return found


def _io_wait(events: Events) -> dict[str, str]:
    found = {}
    for host, own in events.items():
        if waits := _mostly(own, lambda one: _number(one, "iowait") >= IO_WAIT):
            found[host] = f"its CPUs wait for disks {_number(waits[-1], 'iowait'):.0f} % of the time"
    return found


# --- memory ---------------------------------------------------------------------------------------


def _swap(events: Events) -> dict[str, str]:
    found = {}
    for host, own in events.items():
        if swaps := _mostly(own, lambda one: _number(one, "in_kib") >= SWAPPED_KIB):
            rate = _number(swaps[-1], "in_kib") / 1024
            found[host] = f"it reads {rate:.0f} MiB/s back from swap"
    return found


def _reclaim(events: Events) -> dict[str, str]:
    """The kernel's thread that frees memory is busy."""
    found = {}
    for host, own in events.items():
        busy = [event for event in own if event.fields.get("command", "").startswith("kswapd")]
        if busy and _number(busy[-1], "cpu") >= RECLAIMING:
            found[host] = f"{busy[-1].fields['command']} uses {_number(busy[-1], 'cpu'):.0f} % of a core to free memory"
    return found


def _memory_left(events: Events) -> dict[str, str]:
    """Neither memory nor swap is left. A full memory alone is normal where there is no swap, and so is a full swap."""
    found = {}
    for host, own in events.items():
        left = {event.fields.get("what", ""): _number(event, "left") for event in own}
        if left.get("memory", 1.0) <= NO_MEMORY and left.get("swap", 1.0) <= NO_SWAP:
            found[host] = f"{left['memory']:.1%} of the memory and {left['swap']:.0%} of the swap are left"
    return found


# --- CPUs -----------------------------------------------------------------------------------------


def _hogs(processes: Events, cpus: Events) -> dict[str, str]:
    """A program that is no rank uses most of the CPU time that the table shows, and hardly any is idle."""
    found = {}
    for host, own in processes.items():
        use: dict[tuple[str, str], float] = {}
        for event in own:
            use[event.fields.get("pid", ""), event.fields.get("command", "")] = _number(event, "cpu")
        (pid, command), most = max(use.items(), key=lambda one: one[1])
        idle = [_number(event, "idle") for event in cpus.get(host, ())]
        cores = max((_number(event, "cores") for event in own), default=0.0)
        spent = bool(idle) and idle[-1] <= IDLE_HOST
        share = most / cores if cores else 0.0  # per cent of each core
        alone = most >= BUSY_PROCESS and most >= HALF * sum(use.values()) and (spent or share >= FULL_DISK)
        if alone and not _MAY_BE_A_RANK.search(command):
            found[host] = f"{command} (pid {pid}) uses {most / 100:.0f} cores, and hardly any CPU time is left"
    return found


def _stolen(events: Events) -> dict[str, str]:
    found = {}
    for host, own in events.items():
        if stolen := _mostly(own, lambda one: _number(one, "steal") >= STOLEN):
            found[host] = f"the hypervisor gives {_number(stolen[-1], 'steal'):.0f} % of the CPU time to other machines"
    return found


ANALYSIS = HostLoadDetector()
