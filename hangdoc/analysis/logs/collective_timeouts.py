"""Collectives in logs: ranks that timed out, ranks that never arrived, and ranks that called another collective."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hangdoc.analysis import Key
from hangdoc.analysis.logs.log_events import TIMEOUTS, JobLogs, number, numbers
from hangdoc.analysis.thresholds import FEW_ABSENT, RAS_BEHIND, REPORTERS, SAME_GROUP
from hangdoc.evidence import limits
from hangdoc.evidence.logs import LOST, LogEvent
from hangdoc.formatting import name_ranks

DEFAULT = ("0", "default_pg")
SAME_SIZE = frozenset({"ALLREDUCE", "BROADCAST", "REDUCE", "ALLGATHER", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"})
GATHERS = frozenset({"ALLGATHER", "_ALLGATHER_BASE"})
SCATTERS = frozenset({"REDUCE_SCATTER", "_REDUCE_SCATTER_BASE"})
# Operations between some ranks only: their sequence numbers differ in a healthy job.
BETWEEN_TWO = frozenset({"SEND", "RECV", "RECVANYSOURCE", "COALESCED"})

MAX_COMPARED = 4096  # ranks that agree with the one that reports a mismatch

Call = tuple[str, str]  # operation; sizes and type
_NumberedCall = tuple[str, str, str, int | None]  # sequence number, operation, sizes, distance of rank and group rank


@dataclass(slots=True)
class Group:
    """One process group, as known from logs. Ranks are global ranks."""

    name: str
    whole: bool  # the default group: all ranks
    members: dict[int, int] = field(default_factory=dict)  # rank in the group -> global rank
    timed_out: dict[int, int | None] = field(default_factory=dict)  # rank -> sequence number of that collective
    failed: dict[int, int | None] = field(default_factory=dict)  # the same for timeouts and errors
    enqueued: dict[int, int] = field(default_factory=dict)  # rank -> newest collective it started
    completed: dict[int, int] = field(default_factory=dict)  # rank -> newest collective it completed
    calls: dict[int, Call] = field(default_factory=dict)  # rank -> call of the collective that timed out
    named: dict[int, str] = field(default_factory=dict)  # rank -> line that names it as missing
    slow: dict[int, str] = field(default_factory=dict)  # rank -> line that shows it behind at a moment
    size: int | None = None  # ranks in the group, by the sizes of a gather or scatter; None: unknown
    joined: bool = False  # a line reports that all ranks had joined

    @property
    def front(self) -> int | None:
        """Sequence number of the collective that most ranks timed out in; on a tie, the highest."""
        return _most_common(self.timed_out.values()) or _most_common(self.failed.values())

    @property
    def ordered(self) -> bool:
        """True if sequence numbers of its ranks can be compared: all its calls are of the whole group."""
        return not any(op in BETWEEN_TWO for op, _ in self.calls.values())


def _most_common(sequences: Iterable[int | None]) -> int | None:
    counts = Counter(sequence for sequence in sequences if sequence is not None)
    return max(counts, key=lambda sequence: (counts[sequence], sequence), default=None)


def failed_groups(logs: JobLogs) -> list[Group]:
    """Process groups with a timeout, or with a line that names missing ranks or reports that all had joined."""
    found: dict[str, Group] = {}
    by_key = {key: rank for rank, key in logs.keys.items()}
    pending: list[tuple[int, LogEvent]] = []
    # "detected by watchdog" stands for an error or a timeout: a timeout, if any rank reports one.
    timeout = any(True for _ in logs.all(*TIMEOUTS, "dump_signal", "dump_observed"))
    for key, event in logs.of_ranks(*TIMEOUTS, "work_status", "dump_signal"):
        rank = by_key.get(key)
        if rank is None:
            continue
        if event.kind in TIMEOUTS and "group" not in event.fields:
            pending.append((rank, event))  # a later line names its group
        else:
            _add(_group(found, event), rank, event, timeout)
    known = {(rank, sequence): group for group in found.values() for rank, sequence in group.failed.items()}
    shared = _shared_groups(known, pending)
    for rank, event in pending:
        group = shared.get(_numbered_call(rank, event)) or _group_of_unnamed(found, known, rank, event)
        _add(group, rank, event, timeout)
    for event in logs.all("lagging", "barrier_lacks", "joined"):
        group = _group(found, event)
        group.joined |= event.kind == "joined"
        for member in numbers(event.fields.get("ranks", "")) if event.kind != "joined" else ():
            rank = group.members.get(member, member if group.whole else -1)
            if rank >= 0:
                group.named[rank] = event.text
    for event in logs.all("behind_at_a_look"):
        group = _group(found, event)
        if (number(event, "lag") or 0) >= RAS_BEHIND or "alone" in event.fields:
            ranks = [
                group.members.get(one, one if group.whole else -1) for one in numbers(event.fields.get("ranks", ""))
            ]
            group.slow |= {rank: event.text for rank in ranks if rank >= 0}
    return [one for one in found.values() if one.timed_out or one.failed or one.named or one.slow or one.joined]


def _group(found: dict[str, Group], event: LogEvent) -> Group:
    name, label = event.fields.get("group", DEFAULT[0]), event.fields.get("group_name", "")
    group = found.setdefault(name, Group(name, name == DEFAULT[0] and label in ("", DEFAULT[1])))
    if label and label not in group.name:
        group.name = f"{name} ({label})"
    return group


def _shared_groups(
    known: Mapping[tuple[int, int | None], Group], pending: Iterable[tuple[int, LogEvent]]
) -> dict[_NumberedCall | None, Group]:
    """The groups of calls that several ranks report, where a line of one rank names the group."""
    groups: dict[_NumberedCall | None, dict[str, Group]] = defaultdict(dict)
    for rank, event in pending:
        call, group = _numbered_call(rank, event), known.get((rank, number(event, "sequence")))
        if call and group:
            groups[call][group.name] = group
    return {call: group for call, each in groups.items() if len(each) == 1 for group in each.values()}


def _numbered_call(rank: int, event: LogEvent) -> _NumberedCall | None:
    """None: the line has no sequence number. Ranks in a row are as far from their rank in the group."""
    sequence, group_rank = event.fields.get("sequence"), number(event, "group_rank")
    distance = rank - group_rank if group_rank is not None else None
    return (sequence, event.fields.get("op", ""), _size(event.fields), distance) if sequence else None


def _group_of_unnamed(
    found: dict[str, Group], known: Mapping[tuple[int, int | None], Group], rank: int, event: LogEvent
) -> Group:
    """Group of a line that names none: another line of the same rank may name it for the same collective."""
    sequence, group_rank = number(event, "sequence"), number(event, "group_rank")
    if (rank, sequence) in known:
        return known[rank, sequence]
    if group_rank is not None and group_rank != rank:  # not the default group, and nothing else is known
        # Ranks in a row, as of tensor parallelism, in the same collective: the distance of the two numbers is the same.
        name = (
            f"of ranks from {rank - group_rank}, collective {sequence}" if sequence is not None else f"of rank {rank}"
        )
        return found.setdefault(name, Group(name, False))
    return _group(found, event)


def _add(group: Group, rank: int, event: LogEvent, timeout: bool) -> None:
    group_rank, enqueued, completed = (number(event, name) for name in ("group_rank", "enqueued", "completed"))
    if group_rank is not None:
        group.members[group_rank] = rank
    if event.kind != "dump_signal":
        group.failed[rank] = number(event, "sequence") or group.failed.get(rank)
    elif group.whole and (reporter := number(event, "from_rank")) is not None:
        group.timed_out.setdefault(reporter, None)
    if event.kind in TIMEOUTS or "timeout" in event.fields or (timeout and event.kind == "work_status"):
        group.timed_out[rank] = number(event, "sequence") or group.timed_out.get(rank)
    if enqueued is not None and enqueued >= 0:
        group.enqueued[rank] = max(enqueued, group.enqueued.get(rank, 0))
    if completed is not None and completed >= 0:
        group.completed[rank] = max(completed, group.completed.get(rank, 0))
    group.size = _group_size(event) or group.size
    if "op" in event.fields:
        group.calls[rank] = event.fields["op"], _size(event.fields)


def _group_size(event: LogEvent) -> int | None:
    """Ranks in the group: an all-gather returns what each of them gives, and a reduce-scatter the reverse."""
    given, returned = number(event, "numel_in"), number(event, "numel_out")
    if event.fields.get("op") in SCATTERS:
        given, returned = returned, given
    elif event.fields.get("op") not in GATHERS:
        return None
    return returned // given if given and returned and returned > given and returned % given == 0 else None


def _size(fields: Mapping[str, str]) -> str:
    if "shape" in fields:
        return f"[{fields['shape']}]"
    if "numel_in" in fields and fields.get("op") in SAME_SIZE:
        return f"{fields['numel_in']} elements"
    return ""


@dataclass(frozen=True, slots=True)
class Behind:
    """Why a rank is thought to be behind its peers."""

    why: str
    proved: bool = False  # torch names the rank, or its own numbers show it; otherwise it is only silent


def ranks_behind(group: Group, logs: JobLogs) -> dict[int, Behind]:
    """Ranks that never arrived at the collective their peers timed out in, and the reason to think so."""
    found = {rank: Behind(line, True) for rank, line in group.named.items()}
    found |= {rank: Behind(line) for rank, line in group.slow.items() if rank not in found}
    front = group.front
    if front is not None and group.ordered:
        for rank, newest in group.enqueued.items():
            if newest < front:
                idle = group.completed.get(rank, newest) == newest  # otherwise it waits itself, in an older one
                found.setdefault(rank, Behind(f"its newest collective is {newest}; its peers wait in {front}", idle))
        for rank, sequence in group.timed_out.items():
            behind = sequence is not None and 0 < front - sequence < SAME_GROUP
            if behind and rank not in group.enqueued:
                found.setdefault(rank, Behind(f"it timed out in collective {sequence}; its peers in {front}"))
    if not group.timed_out:
        return found if len(found) < len(found.keys() | group.failed.keys()) or group.named or group.slow else {}
    arrived = set(group.timed_out) | (_lost_a_peer(logs) if group.whole else set())
    # Groups of one kind have one size, which divides that of the job: one with more than half of its ranks has all.
    whole = group.whole or (len(group.timed_out) >= REPORTERS and 2 * len(group.timed_out) > (logs.named or logs.least))
    if whole and not group.joined and not is_part(group, logs):
        size = logs.named or group.size or logs.size
        for rank in _silent(arrived | group.enqueued.keys() | found.keys(), arrived - found.keys(), size, logs):
            found[rank] = Behind("its peers report a collective timeout, and it reports none")
    return found if len(found) < max(logs.size or 0, len(found.keys() | group.timed_out.keys())) else {}


def is_part(group: Group, logs: JobLogs) -> bool:
    """The sizes of its collectives show fewer ranks than the job has: of the others, none is missing in them."""
    return group.size is not None and group.size < logs.least


def _silent(known: Collection[int], arrived: Collection[int], named: int | None, logs: JobLogs) -> Sequence[int]:
    """Ranks of which no line tells, if they are few among many that report a timeout.

    A text that somebody copied may lack the lines of many ranks: then nobody is named. If no line names the world size,
    ranks above the highest one that reports are unknown.
    """
    size = named or logs.least
    absent = limits.absent_ranks(size, known)
    if not absent or 2 * len(arrived) < size:
        return ()
    if len(absent) >= len(arrived):  # of two ranks, one waits, and the log of the other one goes on without a timeout
        return absent if size == 2 and logs.keys.keys() >= set(absent) else ()
    if named is None and (len(arrived) < REPORTERS or len(absent) > FEW_ABSENT * len(arrived)):
        return ()
    return absent


def _lost_a_peer(logs: JobLogs) -> set[int]:
    """Ranks that lost a connection: they were in the collective until the first rank timed out."""
    lost = {key for key, _ in logs.of_ranks(*LOST)}
    return {rank for rank, key in logs.keys.items() if key in lost}


def is_complete(group: Group, logs: JobLogs) -> bool:
    """All ranks of the group waited in the same collective, so the transport failed."""
    if group.joined and not group.named:
        return True
    expected = (group.size or logs.size) if group.whole else None
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
    outliers: Sequence[int]  # ranks of the minority; none on a tie: nothing shows which call is wrong
    tied: bool
    sizes: bool  # the operations agree; sizes or dtypes differ

    def format_call(self, rank: int) -> str:
        return " ".join(part for part in self.calls[rank] if part)

    @property
    def text(self) -> str:
        """Both sides: `Rank 2 called REDUCE [4], ranks 0-1 called ALLREDUCE [4]`."""
        sides: dict[str, list[int]] = defaultdict(list)
        for rank in sorted(self.calls, key=lambda rank: (rank not in self.outliers, rank)):
            sides[self.format_call(rank)].append(rank)
        text = ", ".join(f"{name_ranks(ranks)} called {call}" for call, ranks in sides.items())
        return text[:1].upper() + text[1:]


def call_mismatches(logs: JobLogs, groups: Sequence[Group]) -> Iterator[CallMismatch]:
    """Mismatched calls: found by torch's own check (TORCH_DISTRIBUTED_DEBUG), or in the watchdogs' reports."""
    calls: dict[int, Call] = {}
    sequences: dict[int, str] = {}
    checked = list(logs.all("mismatch"))
    # A line that was cut in a paste lost the dtype of its second call.
    typed = all(
        event.fields.get(f"dtype_{side}") for event in checked for side in "ab" if f"rank_{side}" in event.fields
    )
    for event in checked:
        for side in "ab":
            rank = number(event, f"rank_{side}")
            if rank is not None:
                calls[rank] = event.fields.get(f"op_{side}", ""), _shape(event.fields, side, typed)
                sequences[rank] = event.fields.get(f"sequence_{side}", "")
    for event in checked:
        speaker, other = number(event, "rank_a"), number(event, "rank_b")
        # torch compares the ranks in order and names the first that differs: those before it agree with the speaker.
        if "first" in event.fields and speaker is not None and other is not None:
            for rank in range(min(other, MAX_COMPARED)):
                calls.setdefault(rank, calls[speaker])
                sequences.setdefault(rank, sequences[speaker])
    # In detail, each rank also logs its own call before the check.
    for event in logs.all("fingerprint") if calls else ():
        if event.fields["sequence"] in sequences.values() and (rank := number(event, "reporter")) is not None:
            shape = {f"{name}_a": event.fields[name] for name in ("shape", "dtype") if name in event.fields}
            calls.setdefault(rank, (event.fields["op"], _shape(shape, "a", typed)))
            sequences.setdefault(rank, event.fields["sequence"])
    found = list(_mismatch(calls))
    if not found and "" not in sequences.values():  # the same call, one of a rank that left out an earlier one
        found = list(
            _mismatch({rank: (f"{op} (number {sequences[rank]})", size) for rank, (op, size) in calls.items()})
        )
    yield from found
    for group in groups:
        front = group.front
        yield from _mismatch({rank: call for rank, call in group.calls.items() if group.timed_out.get(rank) == front})


def _shape(fields: Mapping[str, str], side: str, typed: bool) -> str:
    shape, kind = fields.get(f"shape_{side}"), fields.get(f"dtype_{side}", "") if typed else ""
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
    tied = len(usual) == len(second)
    outliers = [] if tied else [rank for ranks in sides.values() if ranks is not usual for rank in ranks]
    yield CallMismatch(calls, outliers, tied, sizes)


def first_timeout(logs: JobLogs, key: Key) -> LogEvent | None:
    """The first collective timeout that a rank reports; later ones are its consequences."""
    events = logs.ranks.get(key, ())
    return next((event for event in events if event.kind in TIMEOUTS or "timeout" in event.fields), None)
