"""Collectives as logs tell of them: who waited in which until its timeout, who had not come, who called another one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hangdoc.analysis import Key
from hangdoc.analysis.logs.log_events import TIMEOUTS, JobLogs, number, numbers
from hangdoc.evidence.logs import LOST, LogEvent

DEFAULT = ("0", "default_pg")
SAME_SIZE = frozenset({"ALLREDUCE", "BROADCAST", "REDUCE", "ALLGATHER", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"})

Call = tuple[str, str]  # operation; sizes and type


@dataclass(slots=True)
class Group:
    """One process group, as far as lines speak of it; ranks are global."""

    name: str
    whole: bool  # it is the group of all ranks
    members: dict[int, int] = field(default_factory=dict)  # rank in the group -> rank
    timed: dict[int, int | None] = field(default_factory=dict)  # rank -> number of the collective that timed out
    failed: dict[int, int | None] = field(default_factory=dict)  # the same, be it by a timeout or by an error
    enqueued: dict[int, int] = field(default_factory=dict)  # rank -> newest collective it began
    calls: dict[int, Call] = field(default_factory=dict)  # of the collective that timed out
    named: dict[int, str] = field(default_factory=dict)  # rank -> line that says it had not come
    joined: bool = False  # a line says that all had

    @property
    def front(self) -> int | None:
        """The number of the collective that most of them waited in."""
        told = Counter(sequence for sequence in self.timed.values() if sequence is not None)
        return told.most_common(1)[0][0] if told else None


def groups(heard: JobLogs) -> list[Group]:
    """Those in which something timed out, or somebody is missed."""
    found: dict[str, Group] = {}
    by_key = {key: rank for rank, key in heard.numbers.items()}
    pending: list[tuple[int, LogEvent]] = []
    for key, said in heard.of(*TIMEOUTS, "work_status", "dump_signal"):
        rank = by_key.get(key)
        if rank is None:
            continue
        if said.kind in TIMEOUTS and "group" not in said.fields:
            pending.append((rank, said))  # its group is named by a line that follows it
        else:
            _take(_group(found, said), rank, said)
    known = {(rank, sequence): group for group in found.values() for rank, sequence in group.failed.items()}
    for rank, said in pending:
        _take(_unnamed(found, known, rank, said), rank, said)
    for said in heard.anyone("lagging", "barrier_lacks", "joined"):
        group = _group(found, said)
        group.joined |= said.kind == "joined"
        for one in numbers(said.fields.get("ranks", "")) if said.kind != "joined" else ():
            rank = group.members.get(one, one if group.whole else -1)
            if rank >= 0:
                group.named[rank] = said.text
    return [group for group in found.values() if group.timed or group.named or group.joined]


def _group(found: dict[str, Group], said: LogEvent) -> Group:
    name, label = said.fields.get("group", DEFAULT[0]), said.fields.get("group_name", "")
    group = found.setdefault(name, Group(name, name == DEFAULT[0] and label in ("", DEFAULT[1])))
    if label and label not in group.name:
        group.name = f"{name} ({label})"
    return group


def _unnamed(
    found: dict[str, Group], known: Mapping[tuple[int, int | None], Group], rank: int, said: LogEvent
) -> Group:
    """The group of a line that names none: another line of the same rank may speak of that collective."""
    sequence, group_rank = number(said, "sequence"), number(said, "group_rank")
    if (rank, sequence) in known:
        return known[rank, sequence]
    if group_rank is not None and group_rank != rank:  # not the group of all, and no more is known
        name = f"of rank {rank}"
        return found.setdefault(name, Group(name, False))
    return _group(found, said)


def _take(group: Group, rank: int, said: LogEvent) -> None:
    group_rank, enqueued = number(said, "group_rank"), number(said, "enqueued")
    if group_rank is not None:
        group.members[group_rank] = rank
    if said.kind != "dump_signal":
        group.failed[rank] = number(said, "sequence")
    if said.kind in TIMEOUTS or "timeout" in said.fields:
        group.timed[rank] = number(said, "sequence") or group.timed.get(rank)
    if enqueued is not None and enqueued >= 0:
        group.enqueued[rank] = max(enqueued, group.enqueued.get(rank, 0))
    if "op" in said.fields:
        group.calls[rank] = said.fields["op"], _size(said.fields)


def _size(fields: Mapping[str, str]) -> str:
    if "shape" in fields:
        return f"[{fields['shape']}]"
    if "numel_in" in fields and fields.get("op") in SAME_SIZE:
        return f"{fields['numel_in']} elements"
    return ""


def behind(group: Group, heard: JobLogs) -> dict[int, str]:
    """The ranks that had not come to the collective that the others waited in, and how that is known."""
    found = dict(group.named)
    front = group.front
    for rank, newest in group.enqueued.items():
        if front is not None and newest < front:
            found.setdefault(rank, f"its newest collective is {newest}; the others wait in {front}")
    if front is None and not group.timed:
        return found
    came = group.timed.keys() | _cut_off(heard) if group.whole else set(group.timed)
    if group.whole and heard.size and 2 * len(came) >= heard.size and not group.joined:
        missed = set(range(heard.size)) - came - group.enqueued.keys() - found.keys()
        if len(missed) < len(came) and missed:
            found |= dict.fromkeys(missed, "no collective of it timed out, while those of the others did")
    return found if len(found) < max(heard.size or 0, len(found.keys() | group.timed.keys())) else {}


def _cut_off(heard: JobLogs) -> set[int]:
    """The ranks that lost a peer: they were there until the first of those that waited gave up."""
    lost = {key for key, _ in heard.of(*LOST)}
    return {rank for rank, key in heard.numbers.items() if key in lost}


def complete(group: Group, heard: JobLogs) -> bool:
    """All its ranks waited in the same collective: what is missing did not get from one to the other."""
    if group.joined and not group.named:
        return True
    expected = heard.size if group.whole else None
    return bool(
        expected
        and expected > 1
        and len(group.timed) == expected
        and len({*group.timed.values()}) == 1
        and group.front is not None
        and len(set(group.calls.values())) <= 1
    )


@dataclass(frozen=True, slots=True)
class CallMismatch:
    """Ranks of which some called another collective than the rest."""

    calls: Mapping[int, Call]
    odd: Sequence[int]  # the minority; of two sides alike in number the one with the higher ranks
    tied: bool
    sizes: bool  # the operations agree, sizes or types do not

    def of_rank(self, rank: int) -> str:
        return " ".join(part for part in self.calls[rank] if part)


def call_mismatches(heard: JobLogs, found: Sequence[Group]) -> Iterator[CallMismatch]:
    """Where ranks called different collectives, by torch's own check or by the watchdogs' reports."""
    told: dict[int, Call] = {}
    for said in heard.anyone("mismatch"):
        for side in "ab":
            rank = number(said, f"rank_{side}")
            if rank is not None:
                told[rank] = said.fields.get(f"op_{side}", ""), _shape(said.fields, side)
    yield from _split(told)
    for group in found:
        front = group.front
        yield from _split({rank: call for rank, call in group.calls.items() if group.timed.get(rank) == front})


def _shape(fields: Mapping[str, str], side: str) -> str:
    shape, kind = fields.get(f"shape_{side}"), fields.get(f"dtype_{side}", "")
    return f"[{shape}] {kind}".strip() if shape is not None else kind


def _split(calls: Mapping[int, Call]) -> Iterator[CallMismatch]:
    sizes = len({op for op, _ in calls.values()}) == 1
    sides: dict[str | Call, list[int]] = defaultdict(list)
    for rank, call in sorted(calls.items()):
        sides[call if sizes else call[0]].append(rank)
    if len(sides) < 2:
        return
    usual, second = sorted(sides.values(), key=lambda ranks: (-len(ranks), ranks))[:2]
    odd = [rank for ranks in sides.values() if ranks is not usual for rank in ranks]
    yield CallMismatch(calls, odd, len(usual) == len(second), sizes)


def waiting_in(heard: JobLogs, key: Key) -> LogEvent | None:
    """The line that says in which collective a rank waited until its timeout; the first counts, others follow of it."""
    lines = heard.ranks.get(key, ())
    return next((one for one in lines if one.kind in TIMEOUTS or "timeout" in one.fields), None)
