"""Work that one rank has more of than its peers: rows of a batch, parts of a step, files of a shard."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd

from hangdoc.analysis import Case, Key
from hangdoc.analysis.compute.wait_time import WaitingRanks
from hangdoc.analysis.ranks.call_path import CallPath, is_library, loops_around, per_path, thread_in
from hangdoc.analysis.ranks.divergence import MUST_DIFFER
from hangdoc.analysis.ranks.phases import WAITING
from hangdoc.analysis.ranks.progress import Look, looks_at
from hangdoc.analysis.thresholds import HALF, MIN_GAPS, MIN_LOOKS, MIN_STEPS, MORE_WORK, MOSTLY, USUAL
from hangdoc.evidence import Stacks, Variable

STARTED_BY_THREADING = ("_bootstrap", "_bootstrap_inner")
MODEL, TORCH = "/torch/nn/modules/", "/torch/"

_Loops = tuple[tuple[str, int], ...]  # file and line, outermost first
Name = tuple[str, str, str]  # function, variable, unit (" rows", " items" or "")


def more_work(case: Case, key: Key) -> str | None:
    """A variable in the user's own frames that is larger on this rank than on all its peers, if the peers agree.

    "inputs in train: 128 rows, 64 on other ranks". Tensor rows are preferred to lengths, and lengths to plain numbers.
    """
    usual = case.once("usual sizes", lambda: {rank: _sizes(case, rank) for rank in case.ranks})
    ranks_by_size = case.once("ranks by size", lambda: _ranks_by_size(usual.values()))
    found = []
    for name, size in usual[key].items():
        counts = ranks_by_size[name]
        if len(counts) != 2 or counts[size] != 1 or counts.total() < len(usual):
            continue  # the peers disagree, or the variable is missing on some rank
        peers = next(other for other in counts if other != size)
        if size >= MORE_WORK * peers > 0:
            function, variable, unit = name
            text = f"{variable} in {function}: {size:g}{unit}, {peers:g} on other ranks"
            found.append((unit != " rows", unit == "", name, text))
    return min(found)[-1] if found else None


def gil_rival(case: Case, key: Key, looks: Sequence[Look]) -> tuple[str, float] | None:
    """A line at which other threads of the rank hold the GIL while it computes, and in which share of the looks.

    The line is the one found most often; the share counts all lines. Python passes the GIL on every 5 ms: a loop that
    never sleeps delays each call of torch by as much (CPython: Python/ceval_gil.c). Threads of autograd, which
    `threading` has not started, work for the rank. None: in fewer than half of the looks, or too few looks.
    """
    computes = {look.at_s: look.thread.stack.tid for look in looks if look.phase == "compute"}
    sites: Counter[str] = Counter()
    for shot, rank in case.rounds(key):
        stacks = rank.records.get("stacks")
        if shot.at_s not in computes or not isinstance(stacks, Stacks):
            continue
        holder = next((stack for stack in stacks.threads if stack.holds_gil and stack.frames), None)
        if holder and holder.tid != computes[shot.at_s] and holder.frames[-1].function in STARTED_BY_THREADING:
            step = thread_in(case, holder, stacks, None).path.user
            sites[step.site if step else f"a thread named {holder.name}"] += 1
    share = sites.total() / max(len(computes), MIN_LOOKS)
    return (sites.most_common(1)[0][0], share) if share >= HALF else None


def _ranks_by_size(usual: Iterable[Mapping[Name, float]]) -> dict[Name, Counter[float]]:
    """Number of ranks with each size, by variable."""
    found: dict[Name, Counter[float]] = defaultdict(Counter)
    for sizes in usual:
        for name, size in sizes.items():
            found[name][size] += 1
    return found


def _sizes(case: Case, key: Key) -> dict[Name, float]:
    """Usual size of each of a rank's variables over the looks."""
    seen: dict[Name, list[float]] = {}
    for look in looks_at(case, key):
        for step in look.own:
            for variable in step.variables.values():
                size = _size(variable)
                if size is not None:
                    seen.setdefault((step.function, variable.name, size[0]), []).append(size[1])
    usual = {name: max(set(sizes), key=sizes.count) for name, sizes in seen.items()}
    return {
        name: size for name, size in usual.items() if seen[name].count(size) >= max(MIN_LOOKS, USUAL * len(seen[name]))
    }


def _size(variable: Variable) -> tuple[str, float] | None:
    """Unit and size of a variable. None: it has no size, or must differ between ranks."""
    if variable.tensor is not None:
        return (" rows", variable.tensor.shape[0]) if variable.tensor.shape else None
    if variable.kind == "int" and variable.number is not None:
        return None if any(word in variable.name.lower() for word in MUST_DIFFER) else ("", variable.number)
    if variable.kind in ("list", "tuple") and variable.length is not None:
        return " items", variable.length
    return None


def same_code(case: Case, key: Key) -> bool | None:
    """True if a rank, while most of its peers wait, runs lines that they run too; an evaluation on one rank does not.

    None: too few looks found most peers waiting.
    """
    waited_for = _waited_for(case, key)
    if len(waited_for) < MIN_LOOKS - 1:
        return None
    return sum(_is_shared(case, key, look) for look in waited_for) >= HALF * len(waited_for)


def in_each_step(case: Case, key: Key) -> bool:
    """True if a rank, while most of its peers wait, runs lines of its own in every step.

    A number in its frames, such as the step or the index of the batch, grows from one such look to the next. Work in
    every Nth step, or after each epoch of N steps, is seen at values that differ by multiples of N. The number of an
    epoch may grow by one, too: it counts a loop around the one in which the ranks meet. Where several looks find the
    same value, the user's code must hold all loops: a loop inside the library of a trainer would not be seen.
    """
    seen: dict[tuple[str, str], list[float]] = defaultdict(list)
    steps: set[tuple[str, str]] = set()  # those of them that count a loop without another one inside
    own = [look for look in _waited_for(case, key) if not _is_shared(case, key, look)]
    meets = _meets(case, key)
    of_peers = _all_meets(case) - meets
    for look in own:
        around: _Loops = ()
        whole = tuple(loops_around(look.own))
        for depth, step in enumerate(look.thread):
            around += tuple(loops_around([step])) if depth in look.path.own else ()
            unseen = depth in look.path.own and step.place is None  # the loops around it, too
            if unseen or _has_loop_inside(around, whole, meets, of_peers) or _is_alone_in(around, meets):
                continue
            in_view = bool(around) and depth in look.path.own and not any(meet.trainer > depth for meet in of_peers)
            for variable in step.variables.values():
                if variable.kind == "int" and variable.number is not None:
                    name = step.function, variable.name
                    seen[name].append(variable.number)
                    steps.update([name] if in_view else ())
    enough = max(MIN_GAPS, MOSTLY * len(own))
    return any(_counts_by_one(values, name in steps) for name, values in seen.items() if len(values) >= enough)


def rounds_alone(case: Case, key: Key) -> int:
    """How often, at least, a rank ran lines of its own while most of its peers waited, and then met them again.

    That is the number of values of a number that grows in a loop in which the ranks meet: of the steps 6, 12 and 18,
    where it works alone after every sixth step.
    """
    seen: dict[tuple[str, str], list[float]] = defaultdict(list)
    meets = _all_meets(case)
    for look in _waited_for(case, key):
        if _is_shared(case, key, look):
            continue
        around: _Loops = ()
        for depth in look.path.own:
            step = look.thread[depth]
            around += tuple(loops_around([step]))
            if not around or all(meet.loops[: len(around)] != around for meet in meets):
                continue
            for variable in step.variables.values():
                if variable.kind == "int" and variable.number is not None:
                    seen[step.function, variable.name].append(variable.number)
    return max((len(set(values)) for values in seen.values() if values == sorted(values)), default=0)


def steps_alone(case: Case, key: Key) -> int:
    """In how many steps one after the other, at least, a rank ran lines of its own while most of its peers waited.

    By the counters of the innermost loop in which the ranks meet: work after every Nth step leaves gaps between them.
    """
    seen: dict[tuple[str, str], list[float]] = defaultdict(list)
    meets = _all_meets(case)
    for look in _waited_for(case, key):
        if _is_shared(case, key, look):
            continue
        around: _Loops = ()
        for depth in look.path.own:
            step = look.thread[depth]
            for loop in step.place.loops if step.place else ():
                around += ((step.file, loop.first),)
                if not any(meet.loops == around for meet in meets) or _meet_inside(around, meets):
                    continue
                for name in loop.counters:
                    variable = step.variables.get(name)
                    if variable is not None and variable.kind == "int" and variable.number is not None:
                        seen[step.function, name].append(variable.number)
    return max((_consecutive(values) for values in seen.values()), default=0)


def _meet_inside(loops: _Loops, meets: Counter[_Meet]) -> bool:
    """True if ranks also meet in a loop inside these loops."""
    return any(len(meet.loops) > len(loops) and meet.loops[: len(loops)] == loops for meet in meets)


def _consecutive(values: Sequence[float]) -> int:
    """How many different numbers these are; 0: they do not grow by one each."""
    distinct = sorted(set(values))
    return len(distinct) if list(values) == sorted(values) and distinct[-1] - distinct[0] == len(distinct) - 1 else 0


@dataclass(frozen=True, slots=True)
class _Meet:
    """A collective that a rank was seen in."""

    loops: _Loops  # around it, in the user's code
    trainer: int  # depth of the innermost frame of a library other than torch; -1: none


def _meets(case: Case, key: Key) -> Counter[_Meet]:
    """How often a rank was seen in each."""
    return Counter(_meet(look.path) for look in looks_at(case, key) if look.phase == "collective")


def _all_meets(case: Case) -> Counter[_Meet]:
    return case.once("collectives", lambda: sum((_meets(case, rank) for rank in case.ranks), Counter()))


@per_path
def _meet(path: CallPath) -> _Meet:
    trainers = [at for at, step in enumerate(path.steps) if is_library(step.file) and TORCH not in step.file]
    return _Meet(tuple(loops_around(path.steps[at] for at in path.own)), max(trainers, default=-1))


def _has_loop_inside(loops: _Loops, whole: _Loops, own: Counter[_Meet], of_peers: Counter[_Meet]) -> bool:
    """True if most collectives of a rank within these loops were in a loop further inside, or several of its peers'.

    While a rank works alone, its peers wait for it outside of that loop. `whole`: the loops around its work.
    """
    if not loops:
        return False

    def within(meets: Counter[_Meet], deeper: bool) -> int:
        return sum(
            count
            for meet, count in meets.items()
            if meet.loops[: len(loops)] == loops
            and not (deeper and (len(meet.loops) == len(loops) or meet.loops == whole[: len(meet.loops)]))
        )

    return within(own, True) > HALF * within(own, False) or within(of_peers, True) >= MIN_LOOKS


def _is_alone_in(loops: _Loops, own: Counter[_Meet]) -> bool:
    """True if a rank was seen to meet its peers, and never within these loops, as in one evaluation."""
    return bool(loops) and bool(own) and not any(meet.loops[: len(loops)] == loops for meet in own)


def _counts_by_one(values: Sequence[float], in_view: bool) -> bool:
    """True if the numbers grow, and not by multiples of some other number than 1.

    They grow from almost each look to the next or, where all loops are `in_view`, take several values.
    """
    grown = [int(b - a) for a, b in pairwise(values)]
    if min(grown) < 0 or gcd(*grown) != 1:
        return False
    return sum(by > 0 for by in grown) >= MOSTLY * len(grown) or (in_view and len(set(values)) >= MIN_STEPS)


def _waited_for(case: Case, key: Key) -> list[Look]:
    """The looks at a rank that did not wait while most of its peers did."""
    looks = {rank: looks_at(case, rank) for rank in case.ranks}
    waiters = case.once("waiting ranks", lambda: WaitingRanks(looks.values()))
    own = looks[key]
    return [
        look for look in own if look.phase not in WAITING and 2 * waiters.at(look.at_s - own[0].at_s) > len(looks) - 1
    ]


def _is_shared(case: Case, key: Key, look: Look) -> bool:
    """True if another rank was seen at the place of this look, too."""
    places = case.once(
        "places by rank", lambda: {rank: {_place(look.path) for look in looks_at(case, rank)} for rank in case.ranks}
    )
    ranks_at = case.once("ranks by place", lambda: Counter(place for rank in places.values() for place in rank))
    place = _place(look.path)
    return ranks_at[place] > (place in places[key])


@per_path
def _place(path: CallPath) -> tuple[tuple[str, str, int], ...]:
    """The call path down to the innermost user code; lines inside a model or a library are ignored."""
    found, in_model = [], False
    for step in path.steps[: path.own[-1] + 1] if path.own else ():
        in_model = in_model or MODEL in step.file
        found.append((step.file, step.function, 0 if in_model or is_library(step.file) else step.line))
    return tuple(found)
