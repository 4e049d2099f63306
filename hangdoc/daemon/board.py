"""The newest round of the daemon, for those who ask over its socket: the rounds write it, connections read it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from hangdoc.evidence import RankEvidence, Snapshot, Target
from probes import Tier

LOOK_GAP_S = 2.0  # between two looks that somebody asks for,
BUSY_GAP_S = 8.0  # and over the budget of the governor
EXAMINE_GAP_S = 8.0  # between two closer looks that one user asks for
FRESH_S = 1.0  # a round so young answers a new question

Process = tuple[int, int]  # PID and start time


@dataclass(frozen=True, slots=True)
class Asked:
    """A round that somebody waits for; `still`: processes that may be paused briefly."""

    tier: Tier
    still: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Wish:
    tier: Tier
    still: frozenset[int]


class Board:
    """The newest masked snapshot, completed with what probes see only once; and the wishes for another one."""

    def __init__(self, steady: Collection[str] = (), clock: Callable[[], float] = time.monotonic) -> None:
        """`steady`: names of probes that run once, see `probes.Probe`."""
        self._steady, self._clock = frozenset(steady), clock
        self._changed = threading.Condition()
        self._shot: Snapshot | None = None
        self._at_s = float("-inf")
        self._number = self._examined = 0  # of the newest round, and of the newest closer look
        self._once: dict[Process, dict[str, Any]] = {}  # steady records of each rank
        self._host: dict[str, Any] = {}  # likewise of the host
        self._wishes: dict[int, _Wish] = {}  # by user ID
        self._taken_s = float("-inf")
        self._closer_s: dict[int, float] = {}  # when a closer look was taken for a user

    # --- the thread of the rounds -----------------------------------------------------------------

    def put(self, shot: Snapshot) -> None:
        """A round has been taken."""
        ranks = tuple(self._completed(rank) for rank in shot.ranks)
        known = {_process(rank.target) for rank in ranks}
        self._once = {process: seen for process, seen in self._once.items() if process in known}
        self._host |= {name: record for name, record in shot.records.items() if name in self._steady}
        with self._changed:
            self._shot = replace(shot, ranks=ranks, records={**self._host, **shot.records})
            self._at_s = self._clock()
            self._number += 1
            if shot.tier == "examine":
                self._examined = self._number
            self._wishes = {
                user: wish for user, wish in self._wishes.items() if wish.tier > Tier.LOOK and shot.tier != "examine"
            }
            self._changed.notify_all()

    def _completed(self, rank: RankEvidence) -> RankEvidence:
        once = self._once.setdefault(_process(rank.target), {})
        once |= {name: record for name, record in rank.records.items() if name in self._steady}
        return replace(rank, records={**once, **rank.records}) if once.keys() - rank.records.keys() else rank

    def due(self, busy: bool) -> bool:
        """True if a round is worth it now; `busy`: the governor is over its budget."""
        with self._changed:
            return bool(self._wishes) and self._clock() - self._taken_s >= (BUSY_GAP_S if busy else LOOK_GAP_S)

    def take(self, busy: bool, stalled: Callable[[Target], bool]) -> Asked | None:
        """The round that is due; None: there is none. Only ranks of stalled jobs may be paused."""
        if not self.due(busy):
            return None
        with self._changed:
            now_s, shot = self._clock(), self._shot
            self._taken_s = now_s
            closer = [
                user
                for user, wish in self._wishes.items()
                if wish.tier > Tier.LOOK and now_s - self._closer_s.get(user, float("-inf")) >= EXAMINE_GAP_S
            ]
            if not closer:
                return Asked(Tier.LOOK)
            self._closer_s = {
                user: at_s for user, at_s in self._closer_s.items() if now_s - at_s < EXAMINE_GAP_S
            } | dict.fromkeys(closer, now_s)
            wanted = frozenset[int]().union(*(self._wishes[user].still for user in closer))
        targets = [rank.target for rank in shot.ranks] if shot else []
        return Asked(Tier.EXAMINE, frozenset(t.pid for t in targets if t.pid in wanted and stalled(t)))

    # --- connections ------------------------------------------------------------------------------

    def newest(self) -> Snapshot | None:
        """The newest round; None: there is none yet."""
        with self._changed:
            return self._shot

    def ask(self, user: int, tier: Tier, still: Collection[int], seen: int, limit_s: float) -> tuple[int, Snapshot]:
        """Wait for a round that answers this question: its number, and the snapshot.

        `seen`: the number of the last answer. After `limit_s`, the answer is the newest round there is. Raises
        TimeoutError if there is none at all.
        """
        until_s = self._clock() + limit_s
        with self._changed:
            asked = self._number
            if not (tier == Tier.LOOK and seen < asked and self._clock() - self._at_s <= FRESH_S):
                old = self._wishes.get(user) or _Wish(tier, frozenset())
                self._wishes[user] = _Wish(max(tier, old.tier), old.still.union(still))
                while (self._examined if tier > Tier.LOOK else self._number) <= asked:
                    left_s = until_s - self._clock()
                    if left_s <= 0 or not self._changed.wait(left_s):
                        break
            if self._shot is None:
                raise TimeoutError("no round has finished yet")
            return self._number, self._shot


def visible(shot: Snapshot, user: int, account: Callable[[int], str | None], hosts: Collection[str]) -> Snapshot:
    """The part of a round that a user may see: their own ranks, and what every user of the host can see of it.

    `account`: the owner of a process now, since it may have changed. `hosts`: names of probes of the whole host.
    """
    name = str(user)
    ranks = tuple(
        rank
        for rank in shot.ranks
        if rank.target.account == name and (rank.alive is False or account(rank.target.pid) in (None, name))
    )
    pids = {rank.target.pid for rank in ranks}
    unseen = tuple(
        lack
        for lack in shot.unseen
        if (lack.pid in pids if lack.pid is not None else lack.rank is None and lack.probe in hosts)
    )
    return replace(shot, ranks=ranks, unseen=unseen, records=_of_others_hidden(shot.records, name, account))


def _of_others_hidden(records: Mapping[str, Any], name: str, account: Callable[[int], str | None]) -> Mapping[str, Any]:
    """The records of the host; what processes of other users run is hidden, as /proc may hide it (`hidepid`)."""
    near = records.get("neighbours")
    if near is None:
        return records
    processes = tuple(
        one if account(one.pid) == name else replace(one, command="a process of another user") for one in near.processes
    )
    return {**records, "neighbours": replace(near, processes=processes)}


def _process(target: Target) -> Process:
    return target.pid, target.start_ticks
