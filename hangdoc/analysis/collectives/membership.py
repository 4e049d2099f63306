"""Analysis `membership`: is a rank in a process group, and does it train if it is not?

torch.distributed joins nobody by itself: a launcher sets WORLD_SIZE, and the program must call init_process_group. One
that does so only on a GPU trains on its own elsewhere, without an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hangdoc.analysis import Analysis, Case, Key
from hangdoc.analysis.ranks.call_path import loops_around
from hangdoc.analysis.ranks.progress import looks_at
from hangdoc.analysis.thresholds import TRAINING_LOOKS
from hangdoc.evidence import Environ, ProcessGroups, limits
from hangdoc.evidence.collectives import JoinCalls

TRAINS = frozenset({"backward", "optimizer"})  # operations of a rank that changes its parameters


@dataclass(frozen=True, slots=True)
class MembershipFacts:
    """One rank over all looks; None: not seen."""

    joined: bool | None = None  # a process group existed in some look; false: torch had none in each of them
    launched: int | None = None  # WORLD_SIZE that its launcher gave it; None: no rank and size in its environment
    trains: bool | None = None  # it was seen in a loop in which some rank was in backward or an optimizer
    call: str | None = None  # the call in its script that creates the group: "train.py:14"
    guard: str | None = None  # conditions under which that call runs: "torch.cuda.is_available()"


UNSEEN = MembershipFacts()


class MembershipAnalysis(Analysis[MembershipFacts, None]):
    rank_facts = MembershipFacts
    seen_by = ("groups",)

    def derive(self, case: Case) -> tuple[dict[Key, MembershipFacts], None]:
        return {key: _facts(case, key) for key in case.ranks}, None


def _facts(case: Case, key: Key) -> MembershipFacts:
    seen = [one.exists or bool(one.groups) or one.exists for one in _groups(case, key)]
    joined = True if True in seen else False if seen and None not in seen else None
    if joined is not False:  # the rest is of interest only without a group
        return MembershipFacts(joined)
    looks, loops = looks_at(case, key), case.once("training loops", lambda: _training_loops(case))
    trains = sum(not loops.isdisjoint(loops_around(look.path.steps)) for look in looks) >= TRAINING_LOOKS
    calls = case.record(key, "joins")
    call = next(iter(calls.calls), None) if isinstance(calls, JoinCalls) else None
    return MembershipFacts(
        joined=False,
        launched=_launched(case, key),
        trains=trains if looks else None,
        call=call.at if call else None,
        guard=" and ".join(f"`{one}`" for one in call.conditions) or None if call else None,
    )


def _training_loops(case: Case) -> frozenset[tuple[str, int]]:
    """The loops, by file and line, in which a rank was seen in backward or in an optimizer."""
    training = (look for key in case.ranks for look in looks_at(case, key) if look.op in TRAINS)
    return frozenset(loop for look in training for loop in loops_around(look.path.steps))


def _groups(case: Case, key: Key) -> list[ProcessGroups]:
    return [one for one in case.distinct(key, "groups") if isinstance(one, ProcessGroups)]


def _launched(case: Case, key: Key) -> int | None:
    """WORLD_SIZE, if RANK is set too: at the start of the process, or since in os.environ."""
    environ, groups = case.record(key, "environ"), case.record(key, "groups")
    variables: Mapping[str, str] = environ.variables if isinstance(environ, Environ) else {}
    rank, size = (limits.parse_count(variables.get(name)) for name in ("RANK", "WORLD_SIZE"))
    if (rank is None or size is None) and isinstance(groups, ProcessGroups):
        rank, size = groups.rank, groups.world_size
    return limits.valid_world_size(size) if rank is not None else None


ANALYSIS = MembershipAnalysis()
