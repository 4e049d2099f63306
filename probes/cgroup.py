"""Probe `cgroup`: CPU and memory limits of a rank's cgroups, and how often it hit them.

Reads cgroup v2 (cpu.max, cpu.stat, memory.max, *.pressure) and v1 (cpu.cfs_quota_us, memory.limit_in_bytes,
memory.failcnt); a hybrid host has both. Any ancestor of the rank's cgroup may set a limit.
Source: the kernel's admin-guide, cgroup-v2 and cgroup-v1. cpu.stat counts microseconds in v2, nanoseconds in v1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hangdoc.evidence import Unseen
from hangdoc.evidence.resources import Cgroup, CpuLimit, MemoryLimit
from hangdoc.system import procfs
from hangdoc.system.cgroups import Mount, folders, memberships, parse_mounts, path_in_mount
from probes import Observation, Request, Tier

_NO_LIMIT = 1 << 60  # bytes; v1 shows a number just below 2**63 for "no limit"


class CgroupProbe:
    name = "cgroup"
    scope = "rank"
    tier = Tier.PULSE
    needs = "nothing"
    record = Cgroup
    order = 10
    steady = False

    def observe(self, request: Request) -> Observation:
        mounts = list(parse_mounts(procfs.text("/proc/self/mountinfo") or ""))
        groups: dict[str, Cgroup] = {}  # ranks of one container share a cgroup: read it once
        records: dict[int, Cgroup] = {}
        unseen: list[Unseen] = []
        for target in request.targets:
            text = procfs.text(f"/proc/{target.pid}/cgroup")
            if text is None:
                continue  # ended: probe `cpu` reports it
            if text not in groups:
                groups[text] = read(text, mounts)
            if not mounts:
                why = "no cgroup filesystem is mounted here; CPU and memory limits are unknown"
                unseen.append(Unseen(self.name, why, target.rank, target.pid, target.host))
            records[target.pid] = _with_process(groups[text], target.pid)
        return Observation(records, unseen=tuple(unseen))


def read(membership: str, mounts: list[Mount]) -> Cgroup:
    """Limits on a process; `membership` is the text of its /proc/PID/cgroup."""
    cpu: list[CpuLimit] = []
    memory: list[MemoryLimit] = []
    group, pressure = None, {}
    for mount, path in memberships(membership, mounts):
        for folder in folders(mount, path):
            if not mount.controllers:
                cpu += _cpu_v2(folder)
                memory += _memory_v2(folder)
            if "cpu" in mount.controllers:
                cpu += _cpu_v1(folder)
            if "memory" in mount.controllers:
                memory += _memory_v1(folder)
        if not mount.controllers:
            group, pressure = path, _pressure(mount.point + path_in_mount(mount, path))
    return Cgroup(tuple(cpu), tuple(memory), group, pressure.get("cpu"), pressure.get("memory"), pressure.get("full"))


def _with_process(group: Cgroup, pid: int) -> Cgroup:
    fields = (procfs.read(f"/proc/{pid}/stat") or b"").rpartition(b")")[2].split()
    swapped = procfs.status(pid).get("VmSwap", "").split()
    return Cgroup(
        group.cpu,
        group.memory,
        group.pressure_group,
        group.cpu_stall_s,
        group.memory_stall_s,
        group.memory_full_s,
        major_faults=int(fields[9]) if len(fields) > 9 else None,
        swapped_bytes=int(swapped[0]) * 1024 if swapped else None,
    )


# --- cgroup files ---------------------------------------------------------------------------------


def _number(path: str) -> int | None:
    text = (procfs.read(path) or b"").strip()
    return int(text) if text.lstrip(b"-").isdigit() else None


def _table(path: str) -> Mapping[str, int]:
    """A file of `name number` lines."""
    rows = (line.split() for line in (procfs.text(path) or "").splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}


def _cpu_v2(folder: str) -> Iterator[CpuLimit]:
    quota, _, period = (procfs.text(f"{folder}/cpu.max") or "").strip().partition(" ")
    if quota.isdigit() and period.isdigit() and int(period):
        stat = _table(f"{folder}/cpu.stat")
        throttled = stat.get("throttled_usec")
        yield CpuLimit(
            f"{folder}/cpu.max",
            int(quota) / int(period),
            stat.get("nr_periods"),
            stat.get("nr_throttled"),
            throttled / 1e6 if throttled is not None else None,
        )


def _cpu_v1(folder: str) -> Iterator[CpuLimit]:
    quota, period = _number(f"{folder}/cpu.cfs_quota_us"), _number(f"{folder}/cpu.cfs_period_us")
    if quota is not None and quota > 0 and period:
        stat = _table(f"{folder}/cpu.stat")
        throttled = stat.get("throttled_time")
        yield CpuLimit(
            f"{folder}/cpu.cfs_quota_us",
            quota / period,
            stat.get("nr_periods"),
            stat.get("nr_throttled"),
            throttled / 1e9 if throttled is not None else None,
        )


def _memory_v2(folder: str) -> Iterator[MemoryLimit]:
    limits = {name: _number(f"{folder}/memory.{name}") for name in ("high", "max")}  # "max": no limit
    known = {name: limit for name, limit in limits.items() if limit is not None}
    if not known:
        return
    name = min(known, key=lambda n: known[n])
    events, stat = _table(f"{folder}/memory.events"), _table(f"{folder}/memory.stat")
    yield MemoryLimit(
        f"{folder}/memory.{name}",
        known[name],
        _number(f"{folder}/memory.current"),
        events.get(name),
        _refaults(stat),
        _number(f"{folder}/memory.swap.current"),
        events.get("oom_kill"),
    )


def _memory_v1(folder: str) -> Iterator[MemoryLimit]:
    limit = _number(f"{folder}/memory.limit_in_bytes")
    if limit is None or limit >= _NO_LIMIT:
        return
    stat = _table(f"{folder}/memory.stat")
    yield MemoryLimit(
        f"{folder}/memory.limit_in_bytes",
        limit,
        _number(f"{folder}/memory.usage_in_bytes"),
        _number(f"{folder}/memory.failcnt"),
        _refaults(stat),
        stat.get("swap"),
        _table(f"{folder}/memory.oom_control").get("oom_kill"),
    )


def _refaults(stat: Mapping[str, int]) -> int | None:
    found = [stat[name] for name in ("workingset_refault_file", "workingset_refault_anon") if name in stat]
    return sum(found) if found else stat.get("workingset_refault")  # a single counter before Linux 5.9


def _pressure(folder: str) -> dict[str, float]:
    """Seconds of pressure stall: `cpu` and `memory` are "some" totals, `full` is the "full" total of memory."""
    found: dict[str, float] = {}
    for name in ("cpu", "memory"):
        for line in (procfs.text(f"{folder}/{name}.pressure") or "").splitlines():
            kind, _, rest = line.partition(" ")
            total = rest.rpartition("total=")[2]
            if total.isdigit() and (kind == "some" or name == "memory"):
                found[name if kind == "some" else "full"] = int(total) / 1e6
    return found


PROBE = CgroupProbe()
