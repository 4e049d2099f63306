"""Collectives in logs: ranks that timed out, ranks that never arrived, and ranks that called another collective."""

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
    """One process group, as known from logs. Ranks are global ranks."""

    name: str
    whole: bool  # the default group: all ranks
    members: dict[int, int] = field(default_factory=dict)  # rank in the group -> global rank
    timed_out: dict[int, int | None] = field(default_factory=dict)  # rank -> sequence number of that collective
    failed: dict[int, int | None] = field(default_factory=dict)  # the same for timeouts and errors
    enqueued: dict[int, int] = field(default_factory=dict)  # rank -> newest collective it started
    calls: dict[int, Call] = field(default_factory=dict)  # rank -> call of the collective that timed out
    named: dict[int, str] = field(default_factory=dict)  # rank -> line that names it as missing
    joined: bool = False  # a line reports that all ranks had joined

    @property
    def front(self) -> int | None:
        """Sequence number of the collective that most ranks timed out in."""
        counts = Counter(sequence for sequence in self.timed_out.values() if sequence is not None)
        return counts.most_common(1)[0][0] if counts else None


def failed_groups(logs: JobLogs) -> list[Group]:
    """Process groups with a timeout, or with a line that names missing ranks or reports that all had joined."""
    found: dict[str, Group] = {}
    by_key = {key: rank for rank, key in logs.keys.items()}
    pending: list[tuple[int, LogEvent]] = []
    for key, event in logs.of_ranks(*TIMEOUTS, "work_status", "dump_signal"):
        rank = by_key.get(key)
        if rank is None:
            continue
        if event.kind in TIMEOUTS and "group" not in event.fields:
            pending.append((rank, event))  # a later line names its group
        else:
            _add(_group(found, event), rank, event)
    known = {(rank, sequence): group for group in found.values() for rank, sequence in group.failed.items()}
    for rank, event in pending:
        _add(_group_of_unnamed(found, known, rank, event), rank, event)
    for event in logs.all("lagging", "barrier_lacks", "joined"):
        group = _group(found, event)
        group.joined |= event.kind == "joined"
        for member in numbers(event.fields.get("ranks", "")) if event.kind != "joined" else ():
            rank = group.members.get(member, member if group.whole else -1)
            if rank >= 0:
                group.named[rank] = event.text
    return [group for group in found.values() if group.timed_out or group.named or group.joined]


def _group(found: dict[str, Group], event: LogEvent) -> Group:
    name, label = event.fields.get("group", DEFAULT[0]), event.fields.get("group_name", "")
    group = found.setdefault(name, Group(name, name == DEFAULT[0] and label in ("", DEFAULT[1])))
    if label and label not in group.name:
        group.name = f"{name} ({label})"
    return group


def _group_of_unnamed(
    found: dict[str, Group], known: Mapping[tuple[int, int | None], Group], rank: int, event: LogEvent
) -> Group:
    """Group of a line that names none: another line of the same rank may name it for the same collective."""
    sequence, group_rank = number(event, "sequence"), number(event, "group_rank")
    if (rank, sequence) in known:
        return known[rank, sequence]
    if group_rank is not None and group_rank != rank:  # not the default group, and nothing else is known
        name = f"of rank {rank}"
        return found.setdefault(name, Group(name, False))
    return _group(found, event)


def _add(group: Group, rank: int, event: LogEvent) -> None:
    group_rank, enqueued = number(event, "group_rank"), number(event, "enqueued")
    if group_rank is not None:
        group.members[group_rank] = rank
    if event.kind != "dump_signal":
        group.failed[rank] = number(event, "sequence")
    if event.kind in TIMEOUTS or "timeout" in event.fields:
        group.timed_out[rank] = number(event, "sequence") or group.timed_out.get(rank)
    if enqueued is not None and enqueued >= 0:
        group.enqueued[rank] = max(enqueued, group.enqueued.get(rank, 0))
    if "op" in event.fields:
        group.calls[rank] = event.fields["op"], _size(event.fields)


def _size(fields: Mapping[str, str]) -> str:
    if "shape" in fields:
        return f"[{fields['shape']}]"
    if "numel_in" in fields and fields.get("op") in SAME_SIZE:
        return f"{fields['numel_in']} elements"
    return ""


def ranks_behind(group: Group, logs: JobLogs) -> dict[int, str]:
    """Ranks that never arrived at the collective their peers timed out in, and the reason to think so."""
    found = dict(group.named)
    front = group.front
    for rank, newest in group.enqueued.items():
        if front is not None and newest < front:
            found.setdefault(rank, f"its newest collective is {newest}; its peers wait in {front}")
    if front is None and not group.timed_out:
        return found
    arrived = group.timed_out.keys() | _lost_a_peer(logs) if group.whole else set(group.timed_out)
    if group.whole and logs.size and 2 * len(arrived) >= logs.size and not group.joined:
        missing = set(range(logs.size)) - arrived - group.enqueued.keys() - found.keys()
        if len(missing) < len(arrived) and missing:
            found |= dict.fromkeys(missing, "its peers report a collective timeout, and it reports none")
    return found if len(found) < max(logs.size or 0, len(found.keys() | group.timed_out.keys())) else {}


def _lost_a_peer(logs: JobLogs) -> set[int]:
    """Ranks that lost a connection: they were in the collective until the first rank timed out."""
    lost = {key for key, _ in logs.of_ranks(*LOST)}
    return {rank for rank, key in logs.keys.items() if key in lost}


def is_complete(group: Group, logs: JobLogs) -> bool:
    """All ranks of the group waited in the same collective, so the transport failed."""
    if group.joined and not group.named:
        return True
    expected = logs.size if group.whole else None
    return bool(
        expected
        and expected > 1
        and len(group.timed_out) == expected
        and len({*group.timed_out.values()}) == 1
        and group.front is not None
        and len(set(group.calls.values())) <= 1
    )


@dataclass(frozen=True, slots=True)
class CallMismatch:
    """Ranks that called different collectives, or the same one with different sizes or dtypes."""

    calls: Mapping[int, Call]  # by rank
    outliers: Sequence[int]  # ranks of the minority; on a tie, the side with the higher ranks
    tied: bool
    sizes: bool  # the operations agree; sizes or dtypes differ

    def format_call(self, rank: int) -> str:
        return " ".join(part for part in self.calls[rank] if part)


def call_mismatches(logs: JobLogs, groups: Sequence[Group]) -> Iterator[CallMismatch]:
    """Mismatched calls: found by torch's own check (TORCH_DISTRIBUTED_DEBUG), or in the watchdogs' reports."""
    calls: dict[int, Call] = {}
    for event in logs.all("mismatch"):
        for side in "ab":
            rank = number(event, f"rank_{side}")
            if rank is not None:
                calls[rank] = event.fields.get(f"op_{side}", ""), _shape(event.fields, side)
    yield from _mismatch(calls)
    for group in groups:
        front = group.front
        yield from _mismatch({rank: call for rank, call in group.calls.items() if group.timed_out.get(rank) == front})


def _shape(fields: Mapping[str, str], side: str) -> str:
    shape, kind = fields.get(f"shape_{side}"), fields.get(f"dtype_{side}", "")
    return f"[{shape}] {kind}".strip() if shape is not None else kind


def _mismatch(calls: Mapping[int, Call]) -> Iterator[CallMismatch]:
    """At most one mismatch; none if all calls agree."""
    sizes = len({op for op, _ in calls.values()}) == 1
    sides: dict[str | Call, list[int]] = defaultdict(list)
    for rank, call in sorted(calls.items()):
        sides[call if sizes else call[0]].append(rank)
    if len(sides) < 2:
        return
    usual, second = sorted(sides.values(), key=lambda ranks: (-len(ranks), ranks))[:2]
    outliers = [rank for ranks in sides.values() if ranks is not usual for rank in ranks]
    yield CallMismatch(calls, outliers, len(usual) == len(second), sizes)


def first_timeout(logs: JobLogs, key: Key) -> LogEvent | None:
    """The first collective timeout that a rank reports; later ones are its consequences."""
    events = logs.ranks.get(key, ())
    return next((event for event in events if event.kind in TIMEOUTS or "timeout" in event.fields), None)
