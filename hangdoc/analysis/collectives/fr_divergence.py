"""Where two ranks diverged in the code, and how, from the call sites that their Flight Recorders hold.

There is no source to consult, so the history has to show the loops: a call site that repeats is in a loop. Where the
history does not show it, the kind is left open.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass

from hangdoc.analysis.collectives.fr_history import Calls, RankCalls
from hangdoc.analysis.ranks.call_path import is_library

Line = tuple[str, str, int]  # file, function, line
CallSite = tuple[Line, ...]  # lines of user code, outermost first


@dataclass(frozen=True, slots=True)
class Divergence:
    """How one rank's calls diverged from its peers'.

    kind: left_loop (it went on past a loop that the peers are still in) | in_loop (its mirror image) | out_of_branch
    (it skipped a call that the peers made) | in_branch (it made a call, seen on all ranks before, that the peers did
    not) | apart (the call sites differ; how is not known).
    """

    kind: str
    sequence: int  # the first collective at which the call sites differ
    is_new: bool | None = None  # True: its step was never seen before, its peers' was; False: the reverse


def divergence(own: RankCalls, peers: RankCalls, number: int) -> Divergence | None:
    """How `own` came to make another call than `peers` at `number`; None if the sites are equal or not recorded."""
    at = _first_divergence(own, peers, number)
    if at is None:
        return None
    before = call_site(peers.calls.get(at - 1))
    here, there = call_site(own.calls.get(at)), call_site(peers.calls.get(at))
    if before is None or here is None or there is None:
        return Divergence("apart", at)
    seen = {*_steps(peers, at), *_steps(own, at)}
    own_step_seen, peer_step_seen = (before, here) in seen, (before, there) in seen
    is_new = peer_step_seen if own_step_seen != peer_step_seen else None
    return Divergence(_kind(before, here, there, set(_steps(peers, at))), at, is_new)


def _kind(before: CallSite, here: CallSite, there: CallSite, seen: Set[tuple[CallSite, CallSite]]) -> str:
    """How `here` (own) and `there` (peers) diverged after `before`; `seen`: the peers' earlier steps."""
    own_leaves, peers_leave = not _loops_back(before, here), not _loops_back(before, there)
    peer_step_seen, own_step_seen = (before, there) in seen, (before, here) in seen
    if own_leaves and not peers_leave:
        return "left_loop" if peer_step_seen else "apart"
    if peers_leave and not own_leaves:
        if peer_step_seen and not own_step_seen:
            return "out_of_branch"
        return "in_loop" if own_step_seen else "apart"
    if (there, here) in seen:
        return "out_of_branch"
    return "in_branch" if peer_step_seen and here in {to for _, to in seen} else "apart"


def call_site(calls: Calls | None) -> CallSite | None:
    """The lines of user code that led to a call; None if not recorded."""
    if not calls:
        return None
    lines = [(f.file, f.function, f.line or 0) for f in calls[0].frames if not is_library(f.file)]
    return tuple(reversed(lines)) or None


def _first_divergence(own: RankCalls, peers: RankCalls, number: int) -> int | None:
    """The first collective, up to `number`, from which on all call sites differ."""
    found = None
    usual = {(call_site(own.calls.get(n)), call_site(peers.calls.get(n))) for n in own.calls if n < number - 1}
    for at in range(number, max(own.first, peers.first) - 1, -1):
        here, there = call_site(own.calls.get(at)), call_site(peers.calls.get(at))
        if here is None and at == number and number not in own.calls:
            continue  # it never started this one: it may have diverged earlier
        if here is None or there is None or here == there:
            break
        if at < number and (here, there) in usual and _known_pair(own, peers, at, here, there):
            break
        found = at
    return found


def _known_pair(own: RankCalls, peers: RankCalls, before: int, here: CallSite, there: CallSite) -> bool:
    """True if ranks with different roles made one collective from these two sites earlier, and then met again."""
    return any(
        call_site(own.calls.get(n)) == here and call_site(peers.calls.get(n)) == there
        and call_site(own.calls.get(n + 1)) == call_site(peers.calls.get(n + 1)) is not None
        for n in own.calls
        if n < before - 1
    )  # fmt: skip


def _steps(rank_calls: RankCalls, before: int) -> Iterator[tuple[CallSite, CallSite]]:
    """Consecutive call sites, of the collectives before `before`."""
    for number in sorted(number for number in rank_calls.calls if rank_calls.first < number < before):
        a, b = call_site(rank_calls.calls.get(number - 1)), call_site(rank_calls.calls.get(number))
        if a is not None and b is not None:
            yield a, b


def _loops_back(before: CallSite, after: CallSite) -> bool:
    """True if `after` is the same line as `before` or an earlier one: the mark of a loop."""
    for one, other in zip(before, after, strict=False):
        if one[:2] != other[:2]:
            return False
        if one[2] != other[2]:
            return other[2] < one[2]
    return True
