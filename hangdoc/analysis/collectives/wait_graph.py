"""Analysis `group`: who waits for whom.

A rank in a collective waits for the members of its process group that are not in it; one that sends or receives waits
for its peer. A rank outside the group is not late. A circle of such waits is a deadlock; ranks that are waited for and
wait for nobody are where the cause is. Members that all wait in one group, but not in the same operation, wait for
nobody by this reckoning: they are `crossed`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hangdoc.analysis import Case, Key
from hangdoc.analysis.collectives.wait_targets import Group, Wait, waits
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.evidence import ProcessGroups, limits

Node = int | Group  # a rank, or the wait that ranks in a collective of one group share
Edges = Mapping[Node, frozenset[Node]]
UNKNOWN = -1  # number of a rank that is not known


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """The process group one rank waits in; None and () where it waits in none, or in which was not seen."""

    name: str | None  # as torch names it, the same on every member: "0"; "default_pg" where only the size is known
    label: str | None  # what the user's code calls it: "tp_group"; None for the default group where it is not named
    default: bool | None  # it is the group of the whole job
    ranks: tuple[int, ...]  # its members, global; of a group of which only the size is known those seen
    member_waiting: tuple[int, ...]  # members that wait in a collective of it
    absent: tuple[int, ...]  # members that do not: what a rank in a collective waits for
    hidden: tuple[int, ...]  # members of which it was not seen
    op: str | None  # what it waits in
    p2p: bool | None  # it sends or receives; None: it does not wait
    peer: int | None  # p2p: the rank it sends to or receives from
    matched: bool | None  # p2p with a known peer: it does the counterpart, so the transfer itself is slow or broken
    waits_for: tuple[int, ...]  # ranks
    waited_by: tuple[int, ...]  # ranks that wait for this one
    blocked_on: tuple[int, ...]  # roots at the ends of what it waits for, over any number of ranks
    crossed: bool | None  # every member waits in this group, but not in the same operation or place
    threads: int | None  # of this rank, that are in an operation of this group at once


@dataclass(frozen=True, slots=True)
class GroupJob:
    """Who waits for whom over the whole job."""

    groups: int  # distinct groups in which some rank waits
    cycle: tuple[int, ...]  # ranks that wait for one another in a circle
    mixed: bool  # some of the circle are in a collective, others send or receive
    roots: tuple[int, ...]  # ranks that others wait for, and that wait for nobody
    blocked: tuple[int, ...]  # ranks that wait for a root, or for ranks that do
    crossed: bool  # in some group every member waits, but not in the same operation or place
    crossed_by: str | None  # operation | site
    crossed_ranks: tuple[int, ...]  # members of such groups
    hidden: tuple[int, ...]  # members that ranks may wait for, of which it was not seen


@dataclass(frozen=True, slots=True)
class Members:
    """Where the members of a group are, for those who wait in a collective of it."""

    waiting: tuple[int, ...]
    absent: tuple[int, ...]
    hidden: tuple[int, ...]
    crossed_by: str | None


NOBODY = Members((), (), (), None)


@dataclass(frozen=True, slots=True)
class Picture:
    """All the ranks that wait, by number, and what follows from it."""

    waiting: Mapping[int, Wait]
    members: Mapping[Group, Members]
    edges: Edges
    roots: tuple[int, ...]
    waited_by: Mapping[int, tuple[int, ...]]
    blocked_on: Mapping[int, tuple[int, ...]]


@dataclass(slots=True)
class GroupAnalysis:
    name: str = "group"
    order: int = 12
    rank_facts: type | None = GroupFacts
    job_facts: type | None = GroupJob

    def derive(self, case: Case) -> tuple[dict[Key, GroupFacts], GroupJob]:
        numbers = {key: number for key in case.ranks if (number := _number(case, key)) is not None}
        found = waits(case)
        stack: Mapping[Key, StackFacts] = case.rank_facts["stack"]
        seen = {number: stack[key] for key, number in numbers.items() if stack[key].waits is not None}
        picture = _picture({numbers[key]: wait for key, wait in found.items() if key in numbers}, seen)
        told = Told(picture)
        facts = {key: told.of(numbers.get(key, UNKNOWN), found.get(key)) for key in case.ranks}
        return facts, _job(picture)


def _picture(waiting: Mapping[int, Wait], seen: Mapping[int, StackFacts]) -> Picture:
    groups = {wait.group for wait in waiting.values() if wait.group is not None}
    members = {group: _members(group, waiting, seen) for group in groups}
    edges = _edges(waiting, members)
    roots = _roots(edges, waiting, seen)
    blocked_on = _blocked_on(waiting, edges, roots)
    return Picture(waiting, members, edges, _ranks(roots), _waited_by(waiting, edges, members), blocked_on)


def _job(picture: Picture) -> GroupJob:
    crossed = {group: told.crossed_by for group, told in picture.members.items() if told.crossed_by}
    collective = [wait.group for wait in picture.waiting.values() if not wait.p2p and wait.group is not None]
    cycle = _ranks(_circle(picture.edges))
    return GroupJob(
        groups=len(picture.members),
        cycle=cycle,
        mixed=len({picture.waiting[rank].p2p for rank in cycle}) > 1,
        roots=picture.roots,
        blocked=tuple(sorted(rank for rank, roots in picture.blocked_on.items() if roots)),
        crossed=bool(crossed),
        crossed_by=min(crossed.values(), default=None),
        crossed_ranks=tuple(sorted({rank for group in crossed for rank in group.ranks})),
        hidden=tuple(sorted({rank for group in collective for rank in picture.members[group].hidden})),
    )


def _number(case: Case, key: Key) -> int | None:
    record: Any = case.record(key, "groups")
    rank = case.ranks[key].target.rank
    return rank if rank is not None else record.rank if isinstance(record, ProcessGroups) else None


def _members(group: Group, waiting: Mapping[int, Wait], seen: Mapping[int, StackFacts]) -> Members:
    present: list[int] = []
    absent: list[int] = []
    hidden: list[int] = []
    ranks = group.ranks
    if isinstance(ranks, range):  # as long as somebody claims that it is
        hidden += limits.absent_ranks(len(ranks), seen)
        ranks = [rank for rank in seen if rank in ranks]
    for rank in ranks:
        wait = waiting.get(rank)
        if rank not in seen or (wait is not None and wait.group is None and not wait.p2p):
            hidden.append(rank)
        elif wait is not None and wait.group == group and not wait.p2p:
            present.append(rank)
        else:
            absent.append(rank)
    crossed = None
    if len(present) == len(group.ranks) > 1:
        here = [seen[rank] for rank in present]
        crossed = "operation" if len({facts.op for facts in here}) > 1 else None
        crossed = crossed or ("site" if len({(facts.file, facts.line) for facts in here}) > 1 else None)
    return Members(tuple(sorted(present)), tuple(sorted(absent)), tuple(sorted(hidden)), crossed)


def _edges(waiting: Mapping[int, Wait], members: Mapping[Group, Members]) -> dict[Node, frozenset[Node]]:
    """Who waits for whom; ranks in a collective share one node, so that large jobs stay cheap."""
    edges: dict[Node, frozenset[Node]] = {}
    into: dict[int, frozenset[Node]] = {}  # by identity: one group is one object
    for rank, wait in waiting.items():
        if wait.p2p:
            known = wait.peer is not None and wait.peer != rank and not _matched(rank, wait, waiting)
            edges[rank] = frozenset([wait.peer]) if known and wait.peer is not None else frozenset()
        elif wait.group is not None:
            if id(wait.group) not in into:
                into[id(wait.group)] = frozenset([wait.group])
                edges[wait.group] = frozenset(members[wait.group].absent)
            edges[rank] = into[id(wait.group)]
    return edges


def _matched(rank: int, wait: Wait, waiting: Mapping[int, Wait]) -> bool:
    """Whether the peer does the counterpart of this send or receive."""
    other = waiting.get(wait.peer) if wait.peer is not None else None
    return (
        other is not None
        and other.p2p
        and other.sends is not None
        and other.sends != wait.sends
        and (other.peer == rank or other.anyone)
        and other.group == wait.group
        and (other.tag == wait.tag or None in (other.tag, wait.tag))
    )


def _roots(edges: Edges, waiting: Mapping[int, Wait], seen: Mapping[int, StackFacts]) -> frozenset[Node]:
    """Ranks that are waited for, and are known to wait in nothing."""
    return frozenset(
        rank
        for ends in edges.values()
        for rank in ends
        if isinstance(rank, int) and rank in seen and rank not in waiting
    )


def _circle(edges: Edges) -> frozenset[Node]:
    """What lies on circles, or on the way from one to another: left when all dead ends are taken away, both ways."""
    after = {node: [end for end in ends if end in edges] for node, ends in edges.items()}
    before = _turned(after)
    onward = {node: len(ends) for node, ends in after.items()}
    entered = {node: len(before.get(node, ())) for node in edges}
    left, dead = set(edges), [node for node in edges if not onward[node] or not entered[node]]
    while dead:
        node = dead.pop()
        if node in left:
            left.discard(node)
            for counts, beside in ((onward, before.get(node, ())), (entered, after[node])):
                for other in beside:
                    counts[other] -= 1
                    if not counts[other]:
                        dead.append(other)
    return frozenset(left)


def _turned(edges: Mapping[Node, Iterable[Node]]) -> dict[Node, list[Node]]:
    """The edges the other way round."""
    found: dict[Node, list[Node]] = defaultdict(list)
    for node, ends in edges.items():
        for end in ends:
            found[end].append(node)
    return found


def _blocked_on(waiting: Iterable[int], edges: Edges, roots: frozenset[Node]) -> dict[int, tuple[int, ...]]:
    """The roots at the ends of what each rank waits for; looked for from the side where there is less to start from."""
    starts = set(edges.values())
    if len(starts) <= len(roots):
        ends = {ahead: _ranks(roots & _reached(edges, ahead)) for ahead in starts}
        return {rank: ends[edges[rank]] for rank in waiting if rank in edges}
    behind = _turned(edges)
    blocked: dict[Node, list[int]] = defaultdict(list)
    for root in _ranks(roots):
        for node in _reached(behind, [root]):
            blocked[node].append(root)
    return {rank: tuple(blocked.get(rank, ())) for rank in waiting if rank in edges}


def _reached(edges: Mapping[Node, Iterable[Node]], start: Iterable[Node]) -> frozenset[Node]:
    """These nodes and all that they wait for, over any number of steps."""
    found, fresh = set(start), set(start)
    while fresh:
        fresh = {end for node in fresh for end in edges.get(node, ())} - found
        found |= fresh
    return frozenset(found)


def _waited_by(
    waiting: Mapping[int, Wait], edges: Edges, members: Mapping[Group, Members]
) -> dict[int, tuple[int, ...]]:
    found: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for told in members.values():
        for rank in told.absent if told.waiting else ():
            found[rank].append(told.waiting)
    for rank, wait in waiting.items():
        if wait.p2p:
            for end in _ranks(edges[rank]):
                found[end].append((rank,))
    # Where half of a group waits for the other half, those who wait are told once, not once for each awaited.
    return {rank: parts[0] if len(parts) == 1 else tuple(sorted(set().union(*parts))) for rank, parts in found.items()}


def _ranks(nodes: frozenset[Node]) -> tuple[int, ...]:
    return tuple(sorted(node for node in nodes if isinstance(node, int)))


class Told:
    """The facts of each rank; one object for all that wait for the same in the same collective."""

    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        self._known: dict[Hashable, GroupFacts] = {}

    def of(self, rank: int, wait: Wait | None) -> GroupFacts:
        edges = self.picture.edges
        if wait.p2p if wait is not None else rank in edges:  # the number of another one that waits
            return _facts(rank, wait, self.picture)
        behind, ahead = self.picture.waited_by.get(rank), self.picture.blocked_on.get(rank)
        same = (wait and (id(wait.group), wait.op, wait.label, wait.threads), id(behind), id(ahead))
        if same not in self._known:
            self._known[same] = _facts(rank, wait, self.picture)
        return self._known[same]


def _facts(rank: int, wait: Wait | None, picture: Picture) -> GroupFacts:
    group = wait.group if wait is not None else None
    told = picture.members.get(group, NOBODY) if group is not None else NOBODY
    collective = wait is not None and not wait.p2p
    return GroupFacts(
        name=group.name if group else None,
        label=wait.label if wait else None,
        default=group.default if group else None,
        ranks=_listed(group, told) if group else (),
        member_waiting=told.waiting,
        absent=told.absent if collective else (),
        hidden=told.hidden if collective else (),
        op=wait.op if wait else None,
        p2p=wait.p2p if wait else None,
        peer=wait.peer if wait else None,
        matched=_matched(rank, wait, picture.waiting) if wait is not None and wait.peer is not None else None,
        waits_for=told.absent if collective else _ranks(picture.edges.get(rank, frozenset())),
        waited_by=picture.waited_by.get(rank, ()),
        blocked_on=picture.blocked_on.get(rank, ()),
        crossed=bool(told.crossed_by) if group and collective else None,
        threads=wait.threads if wait and group else None,
    )


def _listed(group: Group, told: Members) -> tuple[int, ...]:
    return group.ranks if isinstance(group.ranks, tuple) else tuple(sorted((*told.waiting, *told.absent, *told.hidden)))


ANALYSIS = GroupAnalysis()
