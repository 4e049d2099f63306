"""Who is to come to the place where the ranks of a job meet, who has come, who has not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hangdoc.analysis import Case, Key
from hangdoc.analysis.startup.rendezvous import Arrival
from hangdoc.discovery.environment import on_loopback
from hangdoc.evidence import limits
from hangdoc.formatting import fold_ranks, name_ranks


@dataclass(frozen=True, slots=True)
class Roll:
    """How many ranks, or where launchers wait hosts, are to come, and how many have."""

    expected: int | None
    come: int | None
    missing: tuple[int, ...]
    lacking: int | None
    hosts: bool
    here: bool
    nodes: tuple[int, ...]  # numbers of the hosts that have not come, where they are known
    coming: bool  # one that has not come was started, or a rank is busy with something else before it comes
    missed: int = 0  # ranks that are known not to have come: those of `missing`, or more than are named

    @property
    def named(self) -> str | None:
        """Those that have not come: "ranks 4-5 (node 2)", "1 host"."""
        if self.missing:
            ranks = name_ranks(self.missing)
            return f"{ranks} (node{'s' * (len(self.nodes) > 1)} {fold_ranks(self.nodes)})" if self.nodes else ranks
        if not self.lacking:
            return None
        of = f" of {self.expected:,}" if self.expected and self.lacking > limits.NAMED_MOST else ""
        return f"{self.lacking:,}{of} {'host' if self.hosts else 'rank'}{'s' * (self.lacking > 1)}"


def roll_call(case: Case, seen: Mapping[Key, Arrival], waiting: Mapping[Key, Arrival]) -> Roll:
    """The roll of a job of which `seen` are alive, and of these `waiting` stand where all are to meet."""
    targets = [case.ranks[key].target for key in waiting or seen]
    here = bool(targets) and all(on_loopback(target.master) for target in targets)
    if any(one.launch for one in waiting.values()):
        return _of_hosts(waiting, here)
    size = case.job_facts["world"].size
    kin = {one.number for arrived in waiting.values() if arrived.meeting for one in arrived.meeting.kin}
    present = {n for key in seen if (n := case.ranks[key].target.rank) is not None}
    there = present | kin
    busy = len(waiting) < len(seen)
    if size is None or any(case.ranks[key].target.rank is None for key in seen) or None in kin:
        return Roll(size, None, (), None, False, here, (), busy)
    served = _served(waiting)
    known = here or (served is not None and served <= len(there))  # of those not seen none has come
    missing = limits.absent_ranks(size, there) if known else ()
    come = max(len(there), served or 0)
    lacking = max(0, size - come) if here or served is not None else None
    # One that was started and has not yet connected is on its way.
    coming = busy or (bool(kin - present) and (served is None or served < len(there)))
    missed = limits.count_absent(size, there) if known else 0
    return Roll(size, come, missing, lacking, False, here, (), coming, missed)


def _served(waiting: Mapping[Key, Arrival]) -> int | None:
    """Ranks that are connected to the store, where a rank of this host serves it: not where a launcher does."""
    ranks = {pid for _, pid in waiting}
    for one in waiting.values():
        if one.meeting is not None and one.meeting.holder is not None:
            ranks.update(kin.pid for kin in one.meeting.kin if not kin.agent)
            if one.meeting.holder.pid in ranks:
                return one.meeting.clients
    return None


def _of_hosts(waiting: Mapping[Key, Arrival], here: bool) -> Roll:
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
    few = len(absent) * per_node <= limits.NAMED_MOST
    missing = tuple(node * per_node + local for node in absent for local in range(per_node)) if few else ()
    lacking = max(0, fewest - come) if fewest and (here or served is not None) else None
    # One that was started and has not yet connected is on its way.
    coming = served is not None and served < there
    return Roll(fewest or None, come, missing, lacking, True, here, absent, coming, missed)
