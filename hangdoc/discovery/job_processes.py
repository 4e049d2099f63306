"""Processes of this host that belong to a rank's job: by environment, command line and parents."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from hangdoc.discovery.environment import Identity, identity
from hangdoc.discovery.launcher import STATIC, Launch, launch_of
from hangdoc.evidence import JobProcess, Target
from hangdoc.system import procfs
from hangdoc.system.account import account

YOUNG_S = 20.0  # a younger process may still exec another program
# They listen on behalf of another process, unknown to us.
FORWARDERS = frozenset(
    (
        "docker-proxy",
        "ssh",
        "sshd",
        "socat",
        "kubectl",
        "rootlessport",
        "slirp4netns",
        "pasta",
        "envoy",
        "systemd",
        "init",
    )
)
ELSEWHERE = 2  # distance of two processes: neither the same parent nor the same session
STORES = (STATIC, "c10d")  # rendezvous backends served by a launcher; others have a separate server
_LIBRARIES = (b"libtorch_cpu", b"libtorch.so", b"libtorch_python")


@dataclass(frozen=True, slots=True)
class _Known:
    """What a process shows of its job."""

    pid: int
    start_ticks: int
    ppid: int
    identity: Identity | None
    launch: Launch | None


class JobProcesses:
    """Finds the processes of a job. Reads each process once, young ones every time."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}

    def refresh(self) -> None:
        """Update the table of processes."""
        known: dict[int, _Known] = {}
        for pid in procfs.numbers("/proc"):
            stat = procfs.stat(pid)
            if stat is None or stat.kernel or stat.state in "ZX" or pid == os.getpid():
                continue
            before = self._known.get(pid)
            settled = before and before.start_ticks == stat.start_ticks and procfs.age_s(stat.start_ticks) > YOUNG_S
            known[pid] = before if before and settled else _read(pid, stat.start_ticks, stat.ppid)
        self._known = known

    def of(self, target: Target, watched: Mapping[int, Target]) -> tuple[JobProcess, ...]:
        """Processes of the target's job that are neither watched nor helpers of a watched one.

        The processes of one launcher may be watched as two jobs if a rank number occurs twice: siblings still count.
        """
        me = self._known.get(target.pid)
        if me is None:
            return ()
        found: dict[int | None, JobProcess] = {}
        for who in sorted(self._known.values(), key=lambda who: (who.start_ticks, who.pid)):
            other = watched.get(who.pid)
            if other is not None and (other.job == target.job or not _are_siblings(who, me)):
                continue
            if any(pid in watched for pid in procfs.lineage(who.ppid)):
                continue
            number = _number(who, me, target)
            if number is not None and number[0] not in found and account(who.pid) == account(me.pid):
                found[number[0]] = JobProcess(who.pid, number[0], procfs.age_s(who.start_ticks), number[1])
        return tuple(found.values())

    def belongs(self, holder: int, target: Target, watched: Mapping[int, Target]) -> bool | None:
        """True if the process that listens on `target`'s rendezvous address belongs to its job; None: unknown."""
        own_lineage = set(procfs.lineage(target.pid))
        if holder in own_lineage or target.pid in procfs.lineage(holder):
            return True
        watched_rank = watched.get(holder)
        them, me = self._known.get(holder), self._known.get(target.pid)
        if watched_rank is not None:
            siblings = them is not None and me is not None and _are_siblings(them, me)
            return watched_rank.job == target.job or siblings or None
        if them is None or me is None or (me.launch is not None and me.launch.backend not in STORES):
            return None
        if any(one.job == target.job and holder in procfs.lineage(one.pid) for one in watched.values()):
            return True  # the launcher of another rank of the job
        if _are_siblings(them, me):
            return True
        if them.launch is not None:
            return False if them.launch.alone else _same_run(them.launch, me)
        if them.identity is not None:
            return self._same_job(them, me) if account(holder) == account(target.pid) else False
        comm = (procfs.text(f"/proc/{holder}/comm") or "").strip()
        if comm in FORWARDERS:
            return None
        return False if procfs.maps_any(holder, _LIBRARIES) is False else None

    def _same_job(self, them: _Known, me: _Known) -> bool | None:
        """True if two ranks are of one job; False if the other job has its own rank of our number."""
        if them.identity is None or me.identity is None:
            return None
        if them.identity.master != me.identity.master or them.identity.run_id != me.identity.run_id:
            return False
        if them.identity.world_size != me.identity.world_size and _distance(them, me)[0] > 0:
            return None if _distance(them, me)[0] < ELSEWHERE else False
        # A process closer to the other has our identity: the other belongs to its job.
        twins = [
            who
            for who in self._known.values()
            if who.identity
            and who.identity == me.identity
            and who.pid != me.pid
            and me.pid not in procfs.lineage(who.pid)
            and who.pid not in procfs.lineage(me.pid)
        ]
        own_distance = _distance(them, me)
        if any(_distance(them, twin) < own_distance for twin in twins):
            return False
        return None if twins or them.identity.rank == me.identity.rank else True


def _are_siblings(one: _Known, other: _Known) -> bool:
    """True if one launcher started both."""
    return one.ppid == other.ppid > 1


def _read(pid: int, start_ticks: int, ppid: int) -> _Known:
    environ = procfs.environ(pid) or {}
    command = procfs.strings(f"/proc/{pid}/cmdline") or ()
    return _Known(pid, start_ticks, ppid, identity(environ), launch_of(command, environ))


def _number(who: _Known, me: _Known, target: Target) -> tuple[int | None, bool] | None:
    """Rank (or node) of a process in the target's job, and whether it is a launcher; None: not in the job."""
    if target.role == "agent":
        if who.launch is None or me.launch is None or who.launch.endpoint != me.launch.endpoint:
            return None
        return (who.launch.node, True)
    if who.identity is None or target.master is None or who.identity.master != target.master:
        return None
    same = me.identity is None or who.identity.run_id == me.identity.run_id
    return (who.identity.rank, False) if same and who.launch is None else None


def _same_run(launch: Launch, me: _Known) -> bool | None:
    """True if a launcher belongs to the same run as a rank or another launcher; None: unknown."""
    if me.launch is not None:
        if launch.endpoint == me.launch.endpoint and launch.backend == me.launch.backend == "c10d":
            return True if launch.run_id == me.launch.run_id else None  # one such store may serve several runs
        return launch.run_id == me.launch.run_id and launch.endpoint == me.launch.endpoint
    if me.identity is None or me.identity.run_id is None:
        return None
    sizes = (launch.world_size, me.identity.world_size)
    return launch.run_id == me.identity.run_id and (None in sizes or sizes[0] == sizes[1])


def _distance(one: _Known, other: _Known) -> tuple[int, float]:
    """Distance of two starts: 0 same parent, 1 same session, 2 elsewhere; then in time, in steps of 5 s."""
    apart_s = abs(one.start_ticks - other.start_ticks) / procfs.TICKS
    if one.ppid == other.ppid > 1:
        return 0, apart_s // 5
    try:
        return 1 if os.getsid(one.pid) == os.getsid(other.pid) else ELSEWHERE, apart_s // 5
    except OSError:
        return ELSEWHERE, apart_s // 5
