"""The rendezvous of a job: where each rank or launcher meets its peers, since when, and who is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from hangdoc.analysis import Case, Key
from hangdoc.analysis.fast_dataclass import fast_dataclass
from hangdoc.analysis.network.tcp_counters import least, syn_age_s
from hangdoc.analysis.ranks.call_path import CallPath, per_path, threads_of
from hangdoc.analysis.ranks.progress import ProgressFacts
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.analysis.ranks.world import WorldJob
from hangdoc.analysis.thresholds import ARRIVED_S, SETTING_UP_S
from hangdoc.discovery.environment import on_loopback
from hangdoc.discovery.launcher import Launch, launch_of
from hangdoc.evidence import Connection, Environ, Process, Rendezvous, Sockets, Variable, limits
from hangdoc.formatting import endpoint, fold_ranks, name_ranks

# Operations of phase startup, see phases.yaml.
ASSEMBLING = frozenset({"init_process_group", "new_group", "rendezvous", "store"})
MAX_WAIT_S = 1e7  # a longer wait is a wrong clock
Timed = tuple[str, dict[str, Variable]]  # a frame's function, its variables by name
ELASTIC = "torch/distributed/elastic/"
RENDEZVOUS = "_rendezvous"  # torchelastic's name of the rendezvous, in the frame with the start time


@fast_dataclass(frozen=True, slots=True)
class Arrival:
    """One rank or launcher on its way to the rendezvous."""

    meeting: Rendezvous | None
    launch: Launch | None  # of a launcher
    connected: bool | None  # to the rendezvous
    dropped: bool  # the listener has closed its connection
    tried: str | None  # ip:port that did not answer
    unanswered_s: float | None  # for how long; None: no such attempt seen
    waited_s: float | None  # at least
    left_s: float | None  # until its deadline, if a frame shows it
    age_s: float | None  # of its process

    @property
    def long_s(self) -> float:
        """Probable wait: since SETTING_UP_S after the start of the process, if it has not moved while watched."""
        seen = self.waited_s or 0.0
        return max(seen, (self.age_s or 0.0) - SETTING_UP_S) if seen >= ARRIVED_S else seen

    @property
    def unresolved(self) -> bool:
        return self.meeting is not None and self.meeting.resolved == ()

    @property
    def refused(self) -> bool:
        """The address belongs to this host, and nothing listens there."""
        return self.meeting is not None and self.meeting.local is True and self.meeting.holder is None


def assembles(case: Case, key: Key) -> bool:
    """True if it is in init_process_group or in a rendezvous."""
    stack = case.facts(StackFacts)[key]
    return stack.phase == "startup" and stack.op in ASSEMBLING


def arrival(case: Case, key: Key) -> Arrival:
    """The arrival of one rank of the case."""
    meeting, process = case.record(key, "store"), case.record(key, "cpu")
    age_s = process.age_s if isinstance(process, Process) else None
    frames = _frames(case, key)
    launch, left_s = launch_in(case, key), _left(case, key, frames)
    since = [_standing(case, key), _rendezvous(case, key, frames)]
    if not isinstance(meeting, Rendezvous):
        return Arrival(None, launch, None, False, None, None, _longest(since), left_s, age_s)
    port = meeting.port
    sockets = (record for _, record in case.series(key, "sockets") if isinstance(record, Sockets))
    looks = [record.connections for record in sockets] if port is not None else []
    newest = [one for one in (looks[-1] if looks else ()) if port in (one.remote_port, one.local_port)]
    connected = any(one.state == "established" for one in newest) if looks and port else None
    asked = [one for look in looks for one in look if one.state == "syn_sent" and one.remote_port == port]
    return Arrival(
        meeting,
        launch,
        connected,
        any(one.state == "close_wait" and one.remote_port == port for look in looks for one in look),
        next((endpoint(one.remote, one.remote_port) for one in reversed(asked)), None),
        _unanswered(case, key, asked) if asked and connected is False else None,
        _longest([*since, _talked(newest, port)]),
        left_s,
        age_s,
    )


def _longest(seconds: Sequence[float | None]) -> float | None:
    return max([one for one in seconds if one is not None], default=None)


def launch_in(case: Case, key: Key) -> Launch | None:
    """The launch options of a launcher; None for a rank."""
    if case.ranks[key].target.role != "agent":
        return None
    process, environ = case.record(key, "cpu"), case.record(key, "environ")
    if not isinstance(process, Process):
        return None
    return launch_of(process.command, environ.variables if isinstance(environ, Environ) else {})


# --- since when ----------------------------------------------------------------------------------


def _standing(case: Case, key: Key) -> float | None:
    progress = case.facts(ProgressFacts)[key]
    return progress.standing_s


def _talked(newest: Sequence[Connection], port: int | None) -> float | None:
    """Seconds since the last data from the store (a client), or from the most recent client (the store's rank).

    A rank that serves the store constantly talks to itself; that does not count.
    """
    itself = {(one.remote, one.remote_port) for one in newest if one.local_port == port}
    own = {(one.local, one.local_port) for one in newest if one.remote_port == port}
    others = [
        one
        for one in newest
        if one.state == "established"
        and (
            (one.remote, one.remote_port) not in own
            if one.local_port == port
            else (one.local, one.local_port) not in itself
        )
    ]
    return least(one.last_receive_s for one in others)


def _unanswered(case: Case, key: Key, asked: Sequence[Connection]) -> float:
    """Age of the unanswered connection attempts (s), at least: by observation or by retransmissions."""
    first = next(
        at
        for at, record in case.series(key, "sockets")
        if any(one.state == "syn_sent" and one.remote_port == asked[-1].remote_port for one in record.connections)
    )
    return max(case.series(key, "sockets")[-1][0] - first, *map(syn_age_s, asked))


def _rendezvous(case: Case, key: Key, frames: Sequence[Timed]) -> float | None:
    """Seconds since torchelastic's launcher began its rendezvous, by its own timestamp."""
    start = _entered(frames)
    shots = case.shots(key[0]) if start is not None else ()
    if start is None or not shots:
        return None
    try:
        now = datetime.fromisoformat(shots[-1].time.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None
    return now - start if 0 <= now - start < MAX_WAIT_S else None


def _entered(frames: Sequence[Timed]) -> float | None:
    """Start of the rendezvous (Unix time), from torchelastic's timing wrapper around it."""
    around = False
    for function, variables in frames:
        start = variables.get("start")
        if around and function == "wrapper" and start is not None:
            return start.number
        around = function == RENDEZVOUS
    return None


def _left(case: Case, key: Key, frames: Sequence[Timed]) -> float | None:
    """Seconds until the deadline of a c10d rendezvous."""
    shots = case.shots(key[0]) if frames else ()
    for function, variables in frames:
        deadline = variables.get("deadline")
        if function == "next_rendezvous" and deadline is not None and deadline.number is not None and shots:
            return max(0.0, deadline.number - shots[-1].at_s)
    return None


def _frames(case: Case, key: Key) -> list[Timed]:
    """The frames of torchelastic: their variables hold start times and deadlines."""
    return [
        (frame.function, {v.name: v for v in frame.variables or ()})
        for thread in threads_of(case, key)
        if _in_elastic(thread.path)
        for frame in thread.stack.frames
        if ELASTIC in frame.file
    ]


@per_path
def _in_elastic(path: CallPath) -> bool:
    return any(ELASTIC in file for _, file, _, _ in path.frames)


# --- who is missing -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RollCall:
    """Ranks (or hosts, if launchers wait) that are expected, present and missing."""

    expected: int | None
    come: int | None
    missing: tuple[int, ...]
    lacking: int | None
    hosts: bool
    here: bool
    nodes: tuple[int, ...]  # missing nodes, if their numbers are known
    coming: bool  # a missing one was started, or is busy with something else
    missed: int = 0  # number of ranks known to be missing; `missing` lists them if they are few
    doubled: frozenset[int] = frozenset()  # rank numbers that two processes have

    @property
    def named(self) -> str | None:
        """The missing ones: "ranks 4-5 (node 2)", "1 host"."""
        if self.missing:
            ranks = name_ranks(self.missing)
            return f"{ranks} (node{'s' * (len(self.nodes) > 1)} {fold_ranks(self.nodes)})" if self.nodes else ranks
        if not self.lacking:
            return None
        of = f" of {self.expected:,}" if self.expected and self.lacking > limits.MAX_NAMED else ""
        return f"{self.lacking:,}{of} {'host' if self.hosts else 'rank'}{'s' * (self.lacking > 1)}"


def roll_call(case: Case, seen: Mapping[Key, Arrival], waiting: Mapping[Key, Arrival]) -> RollCall:
    """The roll call of a job: `seen` are alive; `waiting` of them are at the rendezvous."""
    targets = [case.ranks[key].target for key in waiting or seen]
    here = bool(targets) and all(on_loopback(target.master) for target in targets)
    if any(one.launch for one in waiting.values()):
        return _of_hosts(waiting, here)
    size = case.job(WorldJob).size
    kin = {one.number for arrived in waiting.values() if arrived.meeting for one in arrived.meeting.kin}
    numbers = Counter(n for key in seen if (n := case.ranks[key].target.rank) is not None)
    present, doubled = set(numbers), frozenset(rank for rank, times in numbers.items() if times > 1)
    there = present | kin
    busy = len(waiting) < len(seen)
    if size is None or any(case.ranks[key].target.rank is None for key in seen) or None in kin:
        return RollCall(size, None, (), None, False, here, (), busy)
    served = _served(waiting)
    known = here or (served is not None and served <= len(there))  # no unseen rank has arrived
    missing = limits.absent_ranks(size, there) if known else ()
    come = len(there) if doubled else max(len(there), served or 0)
    lacking = max(0, size - come) if here or served is not None else None
    # A rank that was started but has not connected is on its way.
    coming = busy or (bool(kin - present) and (served is None or served < len(there)))
    missed = limits.count_absent(size, there) if known else 0
    return RollCall(size, come, missing, lacking, False, here, (), coming, missed, doubled)


def _served(waiting: Mapping[Key, Arrival]) -> int | None:
    """Ranks connected to the store, if a rank of this host serves it; None if a launcher does."""
    ranks = {pid for _, pid in waiting}
    for one in waiting.values():
        if one.meeting is not None and one.meeting.holder is not None:
            ranks.update(kin.pid for kin in one.meeting.kin if not kin.agent)
            if one.meeting.holder.pid in ranks:
                return one.meeting.clients
    return None


def _of_hosts(waiting: Mapping[Key, Arrival], here: bool) -> RollCall:
    launches = [one.launch for one in waiting.values() if one.launch]
    fewest = max((launch.fewest or 0 for launch in launches), default=0)
    kin = [k for one in waiting.values() if one.meeting for k in one.meeting.kin if k.agent]
    served = next((one.meeting.clients for one in waiting.values() if one.meeting and one.meeting.clients), None)
    there = len({pid for _, pid in waiting} | {k.pid for k in kin})
    come = max(there, served or 0)
    nodes = {launch.node for launch in launches} | {k.number for k in kin}
    fixed = all(launch.fewest == launch.most for launch in launches)
    each = {launch.per_node for launch in launches}
    known = here or (served is not None and served <= there)
    numbered = known and fixed and None not in nodes | each and len(each) == 1
    absent = limits.absent_ranks(fewest, nodes) if numbered else ()
    per_node = next(iter(each)) or 1
    missed = limits.count_absent(fewest, nodes) * per_node if numbered else 0
    few = len(absent) * per_node <= limits.MAX_NAMED
    missing = tuple(node * per_node + local for node in absent for local in range(per_node)) if few else ()
    lacking = max(0, fewest - come) if fewest and (here or served is not None) else None
    # A rank that was started but has not connected is on its way.
    coming = served is not None and served < there
    return RollCall(fewest or None, come, missing, lacking, True, here, absent, coming, missed)
