"""Step counters and progress bars in logs: ranks of one job count in step, so that a rank that stopped early is behind.

The output of a rank may be buffered, and ranks may log a step apart. A difference counts if a collective timed out, or
if it is larger than the distance of two lines of the counter.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hangdoc.analysis import Key
from hangdoc.analysis.logs.log_events import TIMEOUTS, JobLogs, caused_by_peer, number
from hangdoc.analysis.thresholds import AT_ONE_PLACE, COMPARABLE_RANKS, REPORTERS, SAME_PLACE
from hangdoc.evidence.logs import LOST, LogEvent

LENGTH = "length"  # unit of a number that is the length of a loop
FAREWELL = "farewell"  # name of a line by which a rank ends its training
EPOCH_END = "end of epoch"  # of a line by which it says that its loop over the batches is over
_IN_COLLECTIVE = re.compile(  # a peer lost by gloo or NCCL, not by the store
    r"(?:gloo|pair\.cc).*by (?:remote )?peer|remote process exited|ncclRemoteError|exiting prematurely"
    r"|\bNCCL\b.*closed by"
)
_DIGITS = re.compile(r"\d{1,18}")

Value = tuple[int, int]  # epoch (0: none), counter


@dataclass(frozen=True, slots=True)
class LastCount:
    """The last line of a rank's counter."""

    value: Value
    every: int  # distance of two lines of this counter; 1: unknown
    of: int | None  # the number that it counts to
    text: str

    @property
    def shown(self) -> str:
        epoch, at = self.value
        return f"epoch {epoch}, {at}" if epoch else str(at)


def ranks_with_shorter_loops(logs: JobLogs, timed_out: bool) -> dict[int, str]:
    """The ranks whose loop has the fewest iterations, if most have more, and the evidence.

    Without a timeout it counts only if the peers stand where the shorter loops ended.
    """
    for counts in sorted(_by_unit(logs).values(), key=len, reverse=True):
        lengths = {rank: count.of for rank, count in counts.items() if count.of is not None}
        shortest = min(lengths.values(), default=None)
        short = sorted(rank for rank, length in lengths.items() if length == shortest)
        longer = sorted({*lengths.values()} - {shortest})
        if not short or not longer or len(lengths) != len(counts):
            continue
        few = len(short) < len(lengths) - len(short)
        if (timed_out and few) or (2 * len(short) <= len(lengths) and _stand_at_the_end(counts, short)):
            of_peers = f"{longer[0]} or more" if longer[1:] else longer[0]
            return dict.fromkeys(short, f"its loop has {shortest} iterations, that of its peers {of_peers}")
    return {}


def counts_from_different_starts(logs: JobLogs) -> dict[int, int]:
    """The last count of each rank, if all advance alike from different starts: some resumed, and others did not.

    Only if their last lines follow one another: then they were written at about the same time. Else empty.
    """
    ranks = {key: rank for rank, key in logs.keys.items()}
    newest: dict[int, LogEvent] = {}
    for key, event in logs.of_ranks("progress"):
        if key in ranks and number(event, "every") is not None and event.fields.get("unit") != LENGTH:
            newest[ranks[key]] = event
    lines = [event.line for event in newest.values()]
    distances = {number(event, "every") or 0 for event in newest.values()}
    alike = {(event.source, event.fields.get("unit")) for event in newest.values()}
    if len(newest) < len(logs.keys) or len(newest) < 2 or len(distances) > 1 or len(alike) > 1:
        return {}
    counts = {rank: number(event, "at") or 0 for rank, event in newest.items()}
    spread = max(counts.values()) - min(counts.values())
    if max(lines) - min(lines) >= len(newest) or spread <= min(distances) or min(distances) < 1:
        return {}
    return counts


def ranks_past_their_loop(logs: JobLogs) -> dict[int, str]:
    """Ranks that logged the end of their epoch while at least as many still log steps, and the evidence.

    Rank 0 often logs for the whole job, so its line alone proves nothing.
    """
    ranks = {key: rank for rank, key in logs.keys.items()}
    newest = {key: event for key, event in logs.of_ranks("printed") if event.fields.get("name") == EPOCH_END}
    counts: dict[Key, list[LogEvent]] = defaultdict(list)
    for key, event in logs.of_ranks("progress"):
        if event.fields.get("unit") != LENGTH:
            counts[key].append(event)
    over = {
        ranks[key]: event
        for key, event in newest.items()
        if key in ranks and not any(one.source == event.source and one.line > event.line for one in counts[key])
    }
    counting = {ranks[key] for key, events in counts.items() if events and key in ranks} - over.keys()
    if over.keys() <= {0} or len(over) > len(counting):
        return {}
    return {
        rank: f"it logged the end of its epoch, and {len(counting)} other ranks did not: {event.text}"[:400]
        for rank, event in over.items()
    }


def _stand_at_the_end(counts: Mapping[int, LastCount], short: Collection[int]) -> bool:
    """True if the shorter loops are done, and the peers stopped within SAME_PLACE iterations of their end."""
    ends = {counts[rank].of for rank in short}
    end = ends.pop()
    return (
        not ends
        and end is not None
        and all(counts[rank].value[1] == end for rank in short)
        and all(
            abs(count.value[1] - end) <= SAME_PLACE and count.value[1] != count.of
            for rank, count in counts.items()
            if rank not in short
        )
    )


def ranks_left_behind(logs: JobLogs, timed_out: bool) -> dict[int, str]:
    """Ranks whose counter stopped before that of most ranks, and the evidence.

    `timed_out`: a collective timed out, so that a difference of one line counts.
    """
    for counts in sorted(_by_unit(logs).values(), key=len, reverse=True):
        found = _behind(counts, timed_out)
        if found:
            return found
    return {}


def last_counts(logs: JobLogs) -> Mapping[int, LastCount]:
    """The last line of the counter that most ranks show."""
    return max(_by_unit(logs).values(), key=len, default={})


def _by_unit(logs: JobLogs) -> Mapping[str, dict[int, LastCount]]:
    found: dict[str, dict[int, LastCount]] = defaultdict(dict)
    ranks = {key: rank for rank, key in logs.keys.items()}
    for key, event in logs.of_ranks("progress"):
        at = number(event, "at")
        if at is None or key not in ranks:
            continue
        value = number(event, "epoch") or 0, at
        count = LastCount(value, number(event, "every") or 1, number(event, "of"), event.text)
        before = found[event.fields.get("unit", "")].get(ranks[key])
        if before is None or before.value < count.value:
            found[event.fields.get("unit", "")][ranks[key]] = count
    return found


def ranks_that_skipped(logs: JobLogs) -> dict[int, str]:
    """Ranks that skipped a batch which their peers did not, and the evidence."""
    ranks = {key: rank for rank, key in logs.keys.items()}
    found = {ranks[key]: event.text for key, event in logs.of_ranks("skipped_batch") if key in ranks}
    if not found or len(logs.keys) < COMPARABLE_RANKS or 2 * len(found) >= len(logs.keys):
        return {}
    return {rank: f"it skipped a batch, and its peers did not: {text}"[:400] for rank, text in found.items()}


def ranks_that_left(logs: JobLogs, fewest: float = REPORTERS) -> dict[int, str]:
    """Ranks that ended their training by themselves, while several others lost a peer or timed out, and the evidence.

    The log of the main process often says that training has finished; then the others have finished, too, and what they
    lose is the store. So only errors in a collective count.
    """
    ranks = {key: rank for rank, key in logs.keys.items()}
    farewells = {ranks[key]: event for key, event in logs.of_ranks("printed") if _is_farewell(event) and key in ranks}
    victims: dict[int, LogEvent] = {}
    for key, event in logs.of_ranks(*TIMEOUTS, *LOST, "exception"):
        if event.kind == "exception" and not caused_by_peer(event):
            return {}  # an error of a rank's own
        if key in ranks and (event.kind in TIMEOUTS or _IN_COLLECTIVE.search(event.text)):
            victims.setdefault(ranks[key], event)
    left = {rank: event for rank, event in farewells.items() if rank not in victims}
    most = fewest >= REPORTERS  # of those that show anything
    if len(victims) < fewest or (most and len(left) >= len(victims)) or len(left) < len(farewells):
        return {}
    if any(one.source == other.source and one.line > other.line for one in left.values() for other in victims.values()):
        return {}
    return {
        rank: f"it ended its training by itself, and {len(victims)} other ranks did not: {event.text}"[:400]
        for rank, event in left.items()
    }


def _is_farewell(event: LogEvent) -> bool:
    return event.fields.get("name") == FAREWELL


def ranks_with_other_length(logs: JobLogs) -> dict[int, str]:
    """Ranks whose loader has another length than that of most ranks, and the evidence."""
    ranks = {key: rank for rank, key in logs.keys.items()}
    lengths = {
        ranks[key]: length
        for key, event in logs.of_ranks("progress")
        if key in ranks and event.fields.get("unit") == LENGTH and (length := number(event, "of")) is not None
    }
    if len(lengths) < COMPARABLE_RANKS:
        return {}
    usual, count = Counter(lengths.values()).most_common(1)[0]
    if count < AT_ONE_PLACE * len(lengths):
        return {}
    return {
        rank: f"its loader has {length} batches, that of {count} other ranks {usual}"
        for rank, length in lengths.items()
        if length != usual
    }


def ranks_in_another_state(logs: JobLogs) -> dict[int, str]:
    """Ranks of a list that do something else, or are at an earlier number, than most, and the evidence.

    Most of them wait, which is why the list was made.
    """
    states = {number(event, "rank"): event.text for event in logs.all("rank_state")}
    known = {rank: text for rank, text in states.items() if rank is not None}
    if len(known) < COMPARABLE_RANKS:
        return {}
    shapes = {rank: _DIGITS.sub("#", text.lower()) for rank, text in known.items()}
    usual, count = Counter(shapes.values()).most_common(1)[0]
    others = {rank: text for rank, text in known.items() if shapes[rank] != usual}
    if not others:
        numbers = {rank: tuple(map(int, _DIGITS.findall(text))) for rank, text in known.items()}
        usual_numbers, count = Counter(numbers.values()).most_common(1)[0]
        others = {rank: known[rank] for rank, at in numbers.items() if at < usual_numbers}
        if len(others) + count < len(known):
            return {}
        usual = next(known[rank] for rank, at in numbers.items() if at == usual_numbers)
    if not others or count < AT_ONE_PLACE * len(known):
        return {}
    return {rank: f"it says {text!r}, and {count} other ranks say {usual!r}"[:400] for rank, text in others.items()}


def _behind(counts: Mapping[int, LastCount], timed_out: bool) -> dict[int, str]:
    front = max((count.value for count in counts.values()), default=None)
    if front is None:
        return {}
    near = max(count.every for count in counts.values())
    left = {rank for rank, count in counts.items() if _far(count.value, front, 0 if timed_out else near)}
    ahead = counts.keys() - left
    if not timed_out and (len(ahead) < 2 or all(count.value[1] == count.of for count in counts.values())):
        return {}
    if not left or len(left) >= len(ahead):
        return {}
    top = next(count.shown for count in counts.values() if count.value == front)
    return {rank: f"its counter stopped at {counts[rank].shown}, that of its peers at {top}" for rank in sorted(left)}


def _far(value: Value, front: Value, near: int) -> bool:
    """True if a counter is more than `near` behind; the end of an epoch is next to the start of the following one."""
    epochs = front[0] - value[0]
    return epochs > 1 or (epochs == 1 and (not near or front[1] > near)) or (not epochs and front[1] - value[1] > near)
