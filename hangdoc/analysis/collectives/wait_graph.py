"""Analysis `group`: the wait graph, who waits for whom.

A rank in a collective waits for the members of its process group that are not in it; a rank in a send or receive waits
for its peer. A rank outside the group is not late. A cycle of waits is a deadlock. Otherwise the cause is at the roots:
ranks that others wait for and that wait for nobody. If every member waits in the group but not in the same operation,
the graph has no edge: such a group is `crossed`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hangdoc.analysis import Analysis, Case, Key
from hangdoc.analysis.collectives.wait_targets import Group, Posted, Wait, posted, waits
from hangdoc.analysis.ranks.call_path import Thread
from hangdoc.analysis.ranks.divergence import DivergenceFacts, DivergenceJob
from hangdoc.analysis.ranks.judged_thread import judged_thread
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.evidence import ProcessGroups, limits

Node = int | Group  # a rank, or the wait shared by all ranks in a collective of one group
Edges = Mapping[Node, frozenset[Node]]  # node -> what it waits for
Started = Mapping[int, frozenset[Posted]]  # by rank: sends and receives that wait for their counterpart
MAX_LISTED = 4  # sends and receives of a rank
UNKNOWN = -1  # stands for an unknown rank number
N = TypeVar("N", bound=Hashable)


@dataclass(frozen=True, slots=True)
class WaitGraphFacts:
    """The process group one rank waits in; None and (): it waits in none, or the group is unknown."""

    name: str | None  # torch's name, the same on every member: "0"; "default_pg" if only the world size is known
    label: str | None  # the variable that holds it in user code: "tp_group"; None for an unnamed default group
    default: bool | None  # it is the default group, of the whole job
    ranks: tuple[int, ...]  # members, global rank numbers; if only the size is known, the members seen
    member_waiting: tuple[int, ...]  # members that wait in a collective of the group
    absent: tuple[int, ...]  # members that do not: a rank in a collective waits for these
    hidden: tuple[int, ...]  # members that could not be observed
    op: str | None  # the operation it waits in
    p2p: bool | None  # the operation is a send or receive; None: it does not wait
    peer: int | None  # p2p: the rank it sends to or receives from
    call: str | None  # p2p: "send to rank 1 (tag 7)"; None: unknown
    started: str | None  # all its sends and receives that wait for their counterpart: "receive from rank 0 and ..."
    other_tag: bool | None  # p2p: the peer has started the counterpart, but with another tag
    matched: bool | None  # p2p with a known peer: the peer runs the counterpart, so the transfer is slow or broken
    waits_for: tuple[int, ...]  # ranks this one waits for
    waited_by: tuple[int, ...]  # ranks that wait for this one
    blocked_on: tuple[int, ...]  # roots it waits for, directly or through other ranks
    crossed: bool | None  # every member waits in this group, but not in the same operation or at the same site
    threads: int | None  # threads of this rank in an operation of this group at once


@dataclass(frozen=True, slots=True)
class WaitGraphJob:
    """The wait graph of the whole job."""

    groups: int  # distinct groups in which a rank waits
    cycle: tuple[int, ...]  # ranks that wait for each other in a cycle
    # All of the cycle wait in the same operation on the same call path, or all in a send, so that none receives.
    same_call: bool
    mixed: bool  # the cycle contains both collectives and sends or receives
    strayed: tuple[int, ...]  # of a mixed cycle: the few that went on to a collective
    # Of a cycle without these: the pair whose send and receive cannot match, or one rank; empty: unknown.
    parted: tuple[int, ...]
    # Of a cycle that is not mixed: those whose loop runs another number of times than that of most ranks.
    uneven: tuple[int, ...]
    # Of a cycle of collectives: those that wait for a rank that is past their place in the same iteration.
    left_behind: tuple[int, ...]
    # Those past that place, if they can only have left the call out: by an early return, and no more than wait in it.
    skipped: tuple[int, ...]
    roots: tuple[int, ...]  # ranks that others wait for and that wait for nobody
    crossed: bool  # in some group every member waits, but not in the same operation or at the same site
    crossed_by: str | None  # operation | site
    hidden: tuple[int, ...]  # members of a waiting rank's group that could not be observed


@dataclass(frozen=True, slots=True)
class Members:
    """The members of a group, from the point of view of a rank in a collective of it."""

    waiting: tuple[int, ...]
    absent: tuple[int, ...]
    hidden: tuple[int, ...]
    crossed_by: str | None


NO_MEMBERS = Members((), (), (), None)


@dataclass(frozen=True, slots=True)
class WaitGraph:
    """All waiting ranks, by rank number, and what follows from their waits."""

    waiting: Mapping[int, Wait]
    started: Started
    members: Mapping[Group, Members]
    matched: frozenset[int]  # ranks whose send or receive meets its counterpart
    edges: Edges
    roots: tuple[int, ...]
    waited_by: Mapping[int, tuple[int, ...]]
    blocked_on: Mapping[int, tuple[int, ...]]


class GroupAnalysis(Analysis[WaitGraphFacts, WaitGraphJob]):
    rank_facts = WaitGraphFacts
    job_facts = WaitGraphJob

    def derive(self, case: Case) -> tuple[dict[Key, WaitGraphFacts], WaitGraphJob]:
        numbers = {key: number for key in case.ranks if (number := _number(case, key)) is not None}
        found = waits(case)
        stack = case.facts(StackFacts)
        seen = {number: stack[key] for key, number in numbers.items() if stack[key].waits is not None}
        started = {numbers[key]: own for key, own in posted(case).items() if key in numbers}
        graph = _wait_graph({numbers[key]: wait for key, wait in found.items() if key in numbers}, seen, started)
        cache = FactsCache(graph)
        places = {numbers[key]: thread for key in found if key in numbers and (thread := judged_thread(case, key))}
        facts = {key: cache.of(numbers.get(key, UNKNOWN), found.get(key)) for key in case.ranks}
        apart = {
            numbers[key]: own for key, own in case.facts(DivergenceFacts).items() if own.outlier and key in numbers
        }
        uneven = () if case.job(DivergenceJob).tied else [rank for rank, own in apart.items() if own.size_bounds]
        return facts, _job(graph, seen, places, apart, uneven)


def _wait_graph(waiting: Mapping[int, Wait], seen: Mapping[int, StackFacts], started: Started) -> WaitGraph:
    groups = {wait.group for wait in waiting.values() if wait.group is not None}
    members = {group: _members(group, waiting, seen) for group in groups}
    matched = frozenset(rank for rank, wait in waiting.items() if wait.p2p and _matched(rank, wait, waiting, started))
    edges = _edges(waiting, members, matched)
    roots = _roots(edges, waiting, seen)
    blocked_on = _blocked_on(waiting, edges, roots)
    behind = _waited_by(waiting, edges, members)
    return WaitGraph(waiting, started, members, matched, edges, _ranks(roots), behind, blocked_on)


def _job(
    graph: WaitGraph,
    seen: Mapping[int, StackFacts],
    places: Mapping[int, Thread],
    outliers: Mapping[int, DivergenceFacts],
    uneven: Collection[int],
) -> WaitGraphJob:
    crossed = [members.crossed_by for members in graph.members.values() if members.crossed_by]
    collective = [wait.group for wait in graph.waiting.values() if not wait.p2p and wait.group is not None]
    cycle = _ranks(cycle_nodes(graph.edges))
    strayed = _strayed(cycle, graph, outliers)
    mixed = len({graph.waiting[rank].p2p for rank in cycle}) > 1
    behind = () if mixed else tuple(rank for rank in cycle if _is_left_behind(rank, graph, outliers))
    return WaitGraphJob(
        groups=len(graph.members),
        cycle=cycle,
        same_call=_same_call(cycle, seen, places),
        mixed=mixed,
        strayed=strayed,
        parted=() if strayed else _parted(cycle, graph, places),
        uneven=() if mixed else tuple(rank for rank in cycle if rank in uneven),
        left_behind=behind,
        skipped=_skipped(behind, graph, outliers),
        roots=graph.roots,
        crossed=bool(crossed),
        crossed_by=min(crossed, default=None),
        hidden=tuple(sorted({rank for group in collective for rank in graph.members[group].hidden})),
    )


def _is_left_behind(rank: int, graph: WaitGraph, outliers: Mapping[int, DivergenceFacts]) -> bool:
    """In another order of the same calls, no rank would be past a call that its peer still waits in."""
    own, wait = outliers.get(rank), graph.waiting[rank]
    if own is None or own.relation != "behind" or not own.same_lap or wait.p2p or wait.group is None:
        return False
    return any(other in graph.waiting and other not in outliers for other in graph.members[wait.group].absent)


def _skipped(behind: Sequence[int], graph: WaitGraph, outliers: Mapping[int, DivergenceFacts]) -> tuple[int, ...]:
    """The members past the calls that these wait in; empty where most are past one, or nothing lets them skip it."""
    found: set[int] = set()
    for rank in behind:
        group = graph.waiting[rank].group
        members = graph.members[group] if group is not None else NO_MEMBERS
        past = [other for other in members.absent if other in graph.waiting and other not in outliers]
        if outliers[rank].skip is None or len(past) > len(members.waiting):
            return ()
        found.update(past)
    return tuple(sorted(found))


def _same_call(cycle: Sequence[int], seen: Mapping[int, StackFacts], places: Mapping[int, Thread]) -> bool:
    """Helpers that send and receive are called from several places: then the whole call paths have to be equal."""
    if cycle and all(seen[rank].op in ("send", "isend", "send_object_list") for rank in cycle):
        return True
    paths = {places[rank].path.lines for rank in cycle if rank in places}
    return len({(seen[rank].op, seen[rank].site) for rank in cycle}) == 1 and len(paths) <= 1


def _number(case: Case, key: Key) -> int | None:
    record: Any = case.record(key, "groups")
    rank = case.ranks[key].target.rank
    return rank if rank is not None else record.rank if isinstance(record, ProcessGroups) else None


def _members(group: Group, waiting: Mapping[int, Wait], seen: Mapping[int, StackFacts]) -> Members:
    present: list[int] = []
    absent: list[int] = []
    hidden: list[int] = []
    ranks = group.ranks
    if isinstance(ranks, range):  # its size is a claim and may be huge: never iterate over it
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


def _edges(
    waiting: Mapping[int, Wait], members: Mapping[Group, Members], matched: frozenset[int]
) -> dict[Node, frozenset[Node]]:
    """Who waits for whom; ranks in a collective share one node, which keeps the graph of a large job small."""
    edges: dict[Node, frozenset[Node]] = {}
    into: dict[int, frozenset[Node]] = {}  # by identity: equal groups are one object
    for rank, wait in waiting.items():
        if wait.p2p:
            known = wait.peer is not None and wait.peer != rank and rank not in matched
            edges[rank] = frozenset([wait.peer]) if known and wait.peer is not None else frozenset()
        elif wait.group is not None:
            if id(wait.group) not in into:
                into[id(wait.group)] = frozenset([wait.group])
                edges[wait.group] = frozenset(members[wait.group].absent)
            edges[rank] = into[id(wait.group)]
    return edges


def _matched(rank: int, wait: Wait, waiting: Mapping[int, Wait], started: Started) -> bool:
    """True if the peer runs the counterpart of this send or receive, or has started it before."""
    peer = waiting.get(wait.peer) if wait.peer is not None else None
    runs = (
        peer is not None
        and peer.p2p
        and peer.sends is not None
        and peer.sends != wait.sends
        and (peer.peer == rank or peer.anyone)
        and peer.group == wait.group
        and (peer.tag == wait.tag or None in (peer.tag, wait.tag))
    )
    return runs or any(
        one.sends != wait.sends and one.peer in (rank, None) and one.group == wait.group and wait.tag in (one.tag, None)
        for one in (started.get(wait.peer, ()) if wait.peer is not None else ())
    )


def _roots(edges: Edges, waiting: Mapping[int, Wait], seen: Mapping[int, StackFacts]) -> frozenset[Node]:
    """Ranks that others wait for and that are known not to wait themselves."""
    return frozenset(
        rank
        for ends in edges.values()
        for rank in ends
        if isinstance(rank, int) and rank in seen and rank not in waiting
    )


def cycle_nodes(edges: Mapping[N, Iterable[N]]) -> frozenset[N]:
    """Nodes on a cycle, or on a path between cycles: what is left once dead ends in both directions are removed."""
    after = {node: [end for end in ends if end in edges] for node, ends in edges.items()}
    before = _reversed(after)
    onward = {node: len(ends) for node, ends in after.items()}
    entered = {node: len(before.get(node, ())) for node in edges}
    left, dead = set(edges), [node for node in edges if not onward[node] or not entered[node]]
    while dead:
        node = dead.pop()
        if node in left:
            left.discard(node)
            for counts, neighbours in ((onward, before.get(node, ())), (entered, after[node])):
                for neighbour in neighbours:
                    counts[neighbour] -= 1
                    if not counts[neighbour]:
                        dead.append(neighbour)
    return frozenset(left)


def _reversed(edges: Mapping[N, Iterable[N]]) -> dict[N, list[N]]:
    found: dict[N, list[N]] = defaultdict(list)
    for node, ends in edges.items():
        for end in ends:
            found[end].append(node)
    return found


def _blocked_on(waiting: Iterable[int], edges: Edges, roots: frozenset[Node]) -> dict[int, tuple[int, ...]]:
    """The roots each rank waits for, directly or not; searched from the side with fewer starting points."""
    starts = set(edges.values())
    if len(starts) <= len(roots):
        ends = {ahead: _ranks(roots & _reachable(edges, ahead)) for ahead in starts}
        return {rank: ends[edges[rank]] for rank in waiting if rank in edges}
    behind = _reversed(edges)
    blocked: dict[Node, list[int]] = defaultdict(list)
    for root in _ranks(roots):
        for node in _reachable(behind, [root]):
            blocked[node].append(root)
    return {rank: tuple(blocked.get(rank, ())) for rank in waiting if rank in edges}


def _reachable(edges: Mapping[Node, Iterable[Node]], start: Iterable[Node]) -> frozenset[Node]:
    """These nodes and everything reachable from them."""
    found, fresh = set(start), set(start)
    while fresh:
        fresh = {end for node in fresh for end in edges.get(node, ())} - found
        found |= fresh
    return frozenset(found)


def _waited_by(
    waiting: Mapping[int, Wait], edges: Edges, members: Mapping[Group, Members]
) -> dict[int, tuple[int, ...]]:
    found: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for group_members in members.values():
        for rank in group_members.absent if group_members.waiting else ():
            found[rank].append(group_members.waiting)
    for rank, wait in waiting.items():
        if wait.p2p:
            for end in _ranks(edges[rank]):
                found[end].append((rank,))
    # If half of a group waits for the other half, all absent members share one tuple of waiting members.
    return {rank: parts[0] if len(parts) == 1 else tuple(sorted(set().union(*parts))) for rank, parts in found.items()}


def _strayed(cycle: Collection[int], graph: WaitGraph, outliers: Collection[int]) -> tuple[int, ...]:
    """The ranks of the cycle that went on to a collective, if they are few, or further than their peers in the script.

    Which half of a pair is missing is unknown otherwise: a rank skipped its call, or its peer made one too many.
    """
    gone = tuple(rank for rank in cycle if not graph.waiting[rank].p2p)
    if len(gone) < len(cycle) - len(gone):
        return gone
    minority = tuple(rank for rank in cycle if rank in outliers)
    return minority if len(gone) < len(cycle) and set(minority) <= set(gone) else ()


def _parted(cycle: Collection[int], graph: WaitGraph, places: Mapping[int, Thread]) -> tuple[int, ...]:
    """The pair whose transfers cannot match, or the one rank that all such pairs have in common."""
    pairs = {
        frozenset([rank, wait.peer])
        for rank, wait in graph.waiting.items()
        if wait.p2p and wait.peer is not None and wait.peer in _ranks(graph.edges[rank])
        if _cannot_match(rank, wait, graph, places)
    }
    # What else such a rank has started, towards peers that are in a collective: they all lack it.
    for rank in [rank for rank, wait in graph.waiting.items() if wait.p2p and any(rank in pair for pair in pairs)]:
        others = {one.peer for one in graph.started.get(rank, ()) if one.peer not in (rank, None)}
        gone = {peer for peer in others if peer in graph.waiting and not graph.waiting[peer].p2p}
        pairs |= {frozenset([rank, peer]) for peer in gone} if len(gone) == len(others) > 1 else set()
    common = frozenset[int]().union(*pairs).intersection(*pairs)
    return tuple(sorted(common)) if common and not common.isdisjoint(cycle) else ()


def _cannot_match(rank: int, wait: Wait, graph: WaitGraph, places: Mapping[int, Thread]) -> bool:
    """True if the peer is in a collective, past this call in its loops, or called it with another tag or rank."""
    peer = wait.peer if wait.peer is not None else UNKNOWN
    if _has_other_tag(rank, wait, graph.started) or (peer in graph.waiting and not graph.waiting[peer].p2p):
        return True
    here, there = places.get(rank), places.get(peer)
    if here is None or there is None:
        return False
    lead = _lead(there, here)
    if lead != 0 or there.path.lines != here.path.lines:
        return lead is not None and lead > 0
    return any(one.sends != wait.sends and one.peer not in (rank, None) for one in graph.started.get(peer, ()))


def _lead(peer: Thread, own: Thread) -> float | None:
    """How far one thread is ahead of another: the first difference of the counters of their loops; None: unknown."""
    lead: float | None = None
    for there, here in zip(peer, own, strict=False):
        if (there.function, there.file) != (here.function, here.file) or there.place is None or here.place is None:
            break
        for far, near in zip(there.place.loops, here.place.loops, strict=False):
            if far.first != near.first or not far.counters:
                return lead
            counts = [step.variables.get(far.counters[0]) for step in (there, here)]
            numbers = [count.number for count in counts if count is not None and count.number is not None]
            if len(numbers) == 2 and numbers[0] != numbers[1]:
                return numbers[0] - numbers[1]
            lead = 0 if len(numbers) == 2 else lead
        if there.line != here.line:
            break
    return lead


def _ranks(nodes: frozenset[Node]) -> tuple[int, ...]:
    return tuple(sorted(node for node in nodes if isinstance(node, int)))


class FactsCache:
    """Facts by rank; ranks in the same collective that wait for the same ranks share one object."""

    def __init__(self, graph: WaitGraph) -> None:
        self.picture = graph
        self._known: dict[Hashable, WaitGraphFacts] = {}

    def of(self, rank: int, wait: Wait | None) -> WaitGraphFacts:
        edges = self.picture.edges
        if wait.p2p if wait is not None else rank in edges:  # not shared: a peer is one rank's own
            return _facts(rank, wait, self.picture)
        behind, ahead = self.picture.waited_by.get(rank), self.picture.blocked_on.get(rank)
        same = (wait and (id(wait.group), wait.op, wait.label, wait.threads), id(behind), id(ahead))
        if same not in self._known:
            self._known[same] = _facts(rank, wait, self.picture)
        return self._known[same]


def _facts(rank: int, wait: Wait | None, graph: WaitGraph) -> WaitGraphFacts:
    group = wait.group if wait is not None else None
    members = graph.members.get(group, NO_MEMBERS) if group is not None else NO_MEMBERS
    collective = wait is not None and not wait.p2p
    return WaitGraphFacts(
        name=group.name if group else None,
        label=wait.label if wait else None,
        default=group.default if group else None,
        ranks=_listed(group, members) if group else (),
        member_waiting=members.waiting,
        absent=members.absent if collective else (),
        hidden=members.hidden if collective else (),
        op=wait.op if wait else None,
        p2p=wait.p2p if wait else None,
        peer=wait.peer if wait else None,
        call=_call(Posted(wait.sends, wait.peer, wait.tag, group)) if wait and wait.sends is not None else None,
        started=_started(graph.started.get(rank, frozenset())),
        other_tag=_has_other_tag(rank, wait, graph.started) if wait is not None and wait.peer is not None else None,
        matched=rank in graph.matched if wait is not None and wait.peer is not None else None,
        waits_for=members.absent if collective else _ranks(graph.edges.get(rank, frozenset())),
        waited_by=graph.waited_by.get(rank, ()),
        blocked_on=graph.blocked_on.get(rank, ()),
        crossed=bool(members.crossed_by) if group and collective else None,
        threads=wait.threads if wait and group else None,
    )


def _has_other_tag(rank: int, wait: Wait, started: Started) -> bool:
    own = Posted(bool(wait.sends), rank, wait.tag, wait.group)
    others = started.get(wait.peer, frozenset()) if wait.peer is not None else ()
    return wait.tag is not None and any(
        one.sends != own.sends and one.peer == rank and one.group == own.group and one.tag != own.tag for one in others
    )


def _started(calls: frozenset[Posted]) -> str | None:
    texts = sorted({_call(one) for one in calls})
    more = [f"{len(texts) - MAX_LISTED} more"] if len(texts) > MAX_LISTED else []
    return " and ".join([*texts[:MAX_LISTED], *more]) or None


def _call(one: Posted) -> str:
    """A send or receive as text; tag 0 is torch's default."""
    peer = f"rank {one.peer}" if one.peer is not None else "any rank"
    return f"{'send to' if one.sends else 'receive from'} {peer}" + (f" (tag {one.tag:g})" if one.tag else "")


def _listed(group: Group, members: Members) -> tuple[int, ...]:
    return (
        group.ranks
        if isinstance(group.ranks, tuple)
        else tuple(sorted((*members.waiting, *members.absent, *members.hidden)))
    )


ANALYSIS = GroupAnalysis()
