"""Analysis `figures`: which rank, GPU or host has another figure than its peers, in tables and lists of a text.

Ranks of a job that synchronises all have the same step time: only their own work, what they wait for, and how long they
wait for others tells them apart. A rank that waits less than all others is the one that they wait for.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from hangdoc.analysis import Case, Detector, Key, Suspect
from hangdoc.analysis.ranks.host_ranks import on_hosts
from hangdoc.analysis.thresholds import (
    BARELY_SLOWER,
    COMPARABLE_RANKS,
    DATA_APART,
    DATA_WAIT_S,
    FIRST_STEP,
    GRADIENT_ROUNDING,
    HALF,
    LEAST_WAIT_S,
    LONG_WAIT_S,
    MUCH_MORE_CPU,
    MUCH_MORE_OF_TWO,
    PART_OF_LONGEST,
    ROUNDING,
    WIDE_GAP,
)
from hangdoc.evidence.figures import Figure, Figures
from hangdoc.formatting import name_ranks

MAX_NEWEST = 5  # values of an owner that are compared
MAX_SUSPECTS = 64
MAX_SHOWN = 8  # values
EXTREME, USUAL = "extreme", "usual"  # of a report of the least and the most, and its mean or median
RANKED = frozenset({"rank", EXTREME})  # kinds of owners with numbers of ranks
SLOW_IF_HIGH = ("work", "backward", "step")
SLOW_IF_LOW = ("rate", "score")
PARTS = ("work", "backward", "wait")  # of a step, besides the wait for its batch
# The first shows the cause best: its own work, then what only shows that it is late.
ORDER = ("work", "score", "backward", "rate", "step")

_POD = re.compile(r".{0,240}[a-z\d]-(0|[1-9]\d{0,5})")  # of a stateful set: no zeros in front of its ordinal

Values = Mapping[str, float]  # owner -> value


@dataclass(frozen=True, slots=True)
class _Group:
    """What is compared."""

    kind: str
    of: str  # kind of owner
    name: str
    timed: bool  # in seconds; else a rate, or a share of the time

    @property
    def unit(self) -> str:
        return " s" if self.timed else "" if self.kind in SLOW_IF_LOW else " %"


@dataclass(frozen=True, slots=True)
class FiguresFacts:
    """One rank."""

    slow: bool | None = None  # it works longer, or gets less done, than its peers
    loading: bool | None = None  # it waits longer for its batches than its peers
    odd: bool | None = None  # most ranks have another value of what replicas have in common


@dataclass(frozen=True, slots=True)
class FiguresJob:
    """All owners of figures. Suspects are ranks and hosts; a GPU or replica of no known rank is none."""

    slow: tuple[Suspect, ...] = ()
    slow_why: str | None = None  # "forward 0.271 s on rank 11, 0.0885 s on others"
    slow_firm: bool = False  # by a wide margin, in a figure of its own work, and of three owners or more
    others: frozenset[int] = frozenset()  # ranks of which the same figure shows that they are not slow
    loading: tuple[Suspect, ...] = ()
    loading_why: str | None = None
    loading_firm: bool = False  # by a wide margin, and of three owners or more
    loading_share: float | None = None  # of the steps, over all lines; None: no line shows both, or it is small
    loading_s: float | None = None  # wait for the batch of a step, seconds, over these lines
    # Of these lines; the first of each rank waits for the workers to start and does not count. 0: no line says.
    loading_steps: int = 0
    odd: tuple[Suspect, ...] = ()
    only_rank0_odd: bool = False  # only rank 0 is, from which wrappers copy the first state to the others
    apart: str | None = None  # name of a value that replicas have in common and that differs: "param checksum"
    apart_why: str | None = None  # "7be0 on ranks 1-3, c314 on rank 0"
    apart_kind: str | None = None  # state | grad | batch
    apart_exact: bool = False  # a checksum, not a number that is rounded, and no text says that ranks hold parts
    step: int | None = None  # of these values


@dataclass(frozen=True, slots=True)
class _Outlier:
    owners: tuple[tuple[str, str], ...]  # kind of owner, owner
    why: str
    firm: bool
    others: tuple[tuple[str, str], ...] = ()


class FiguresDetector(Detector[FiguresFacts, FiguresJob]):
    rank_facts = FiguresFacts
    job_facts = FiguresJob

    def derive(self, case: Case) -> tuple[dict[Key, FiguresFacts], FiguresJob]:
        figures = case_figures(case)
        if not figures:
            return dict.fromkeys(case.ranks, FiguresFacts()), FiguresJob()
        numbered = numbered_as_ranks(figures)
        values = [one for record in figures for one in record.values]
        loading = _loading(values)
        slow = _slow(values)
        if slow and loading and set(slow.owners) <= set(loading.owners):
            slow = None
        sharded = any(one.sharded for one in figures)
        parted = _parted(values) or ({} if sharded else _unequal(values))
        if sharded:
            parted["apart_exact"] = False
        job = FiguresJob(
            slow=on_hosts(case, _suspects(slow, numbered)),
            slow_why=slow.why if slow else None,
            slow_firm=slow.firm and not any(one.staged for one in figures) if slow else False,
            others=frozenset(int(owner) for of, owner in slow.others if of in RANKED and owner.isdecimal())
            if slow
            else frozenset(),
            loading=on_hosts(case, _suspects(loading, numbered)),
            loading_why=loading.why if loading else None,
            loading_firm=loading.firm if loading else False,
            **_share(values),
            **parted,
        )
        late, starving, odd = (keys_of(case, suspects) for suspects in (job.slow, job.loading, job.odd))
        return {
            key: FiguresFacts(key in late or None, key in starving or None, key in odd or None) for key in case.ranks
        }, job


def case_figures(case: Case) -> list[Figures]:
    """The figures of all texts, each once."""
    found: dict[str, Figures] = {}
    for shot in case.history:
        record = shot.records.get("figures")
        if isinstance(record, Figures):
            found[record.source] = record
    return list(found.values())


def ranks_alike(case: Case, odd: Mapping[int | None, bool]) -> Sequence[int]:
    """The other ranks with the newest value of the weights that the odd ones have, and no rank that is not odd.

    `odd`: of each rank that is known, whether it is odd.
    """
    states: dict[tuple[str, int | None], dict[int, str]] = defaultdict(dict)
    for one in (one for record in case_figures(case) for one in record.values):
        if one.kind == "state" and one.of == "rank" and one.owner.isdecimal():
            states[one.name, one.step][int(one.owner)] = one.value
    if not states:
        return ()
    newest = states[max(states, key=lambda known: known[1] or 0)]
    sides = {newest.get(rank) if rank is not None else None for rank, is_odd in odd.items() if is_odd}
    others = {newest.get(rank) if rank is not None else None for rank, is_odd in odd.items() if not is_odd}
    if not sides or not others or None in sides | others or sides & others:
        return ()
    return [rank for rank, value in newest.items() if value in sides and rank not in odd][:MAX_SUSPECTS]


def keys_of(case: Case, suspects: Iterable[Suspect]) -> set[Key]:
    """The ranks among the suspects of which there is evidence."""
    keys = {rank.target.rank: key for key, rank in case.ranks.items()}
    return {keys[one.rank] for one in suspects if one.rank in keys}


@dataclass(frozen=True, slots=True)
class Numbered:
    """What the texts number as they number the ranks."""

    gpus: bool = False
    pods: bool = False
    ranks: Mapping[str, int] = field(default_factory=dict)  # GPU -> its rank


def numbered_as_ranks(figures: Iterable[Figures]) -> Numbered:
    known = list(figures)
    ranks = {gpu: rank for one in known for gpu, rank in one.ranks.items()}
    return Numbered(any(one.index_is_rank for one in known), any(one.ordinal_is_rank for one in known), ranks)


def suspect(of: str, owner: str, numbered: Numbered) -> Suspect | None:
    """The rank or the host; None: the text does not say which rank it is."""
    if of == "gpu" and owner in numbered.ranks:
        return Suspect(numbered.ranks[owner], None, owner.rpartition("/")[0] or None)
    if of in RANKED or (of == "gpu" and numbered.gpus):
        return Suspect(int(owner)) if owner.isdecimal() else None
    if of == "number" and numbered.pods and owner.isdecimal():
        return Suspect(int(owner))  # `worker 3`
    if of == "host":
        pod = _POD.fullmatch(owner) if numbered.pods else None
        return Suspect(int(pod[1])) if pod else Suspect(None, None, owner)
    return None


def _suspects(found: _Outlier | None, numbered: Numbered) -> tuple[Suspect, ...]:
    named = [suspect(of, owner, numbered) for of, owner in found.owners] if found else []
    return tuple(one for one in named if one is not None)[:MAX_SUSPECTS]


# --- slower than its peers ------------------------------------------------------------------------


def _slow(values: Sequence[Figure]) -> _Outlier | None:
    if judged := _judged(values):
        return judged
    groups = _groups(values)
    found: list[tuple[int, _Outlier]] = []
    for group, by_owner in groups.items():
        if group.kind in SLOW_IF_HIGH:
            owners, usual = _high(by_owner)
        elif group.kind in SLOW_IF_LOW:
            owners, usual = _low(by_owner)
        else:
            continue
        if owners:
            firm = len(by_owner) >= COMPARABLE_RANKS and _much(by_owner, owners, usual)
            others = _of(group.of, (owner for owner in by_owner if owner not in owners))
            outlier = _Outlier(_of(group.of, owners), _why(group, by_owner, owners, usual), firm, others)
            found.append((ORDER.index(group.kind), outlier))
    if found:
        return min(found, key=lambda one: (not one[1].firm, one[0]))[1]
    return _awaited(groups)


def _judged(values: Sequence[Figure]) -> _Outlier | None:
    """The owners that a tool calls slow after it has compared all of them."""
    judged = {(one.of, one.owner, one.name): one for one in values if one.kind == "judged"}
    owners = tuple(dict.fromkeys((of, owner) for of, owner, _ in judged))
    if not owners:
        return None
    # Without a figure, the tool has its own threshold; 1: it compares no ranks, or judges nodes, and proves less.
    shares: dict[tuple[str, str], float] = {}
    for one in judged.values():
        share = float(one.value) if one.value else 0.0
        shares[one.of, one.owner] = min(share, shares.get((one.of, one.owner), share))
    shown = "; ".join(
        f"{one.name}: {called(one.of, one.owner)}"
        + (f" at {float(one.value):.0%} of the median" if one.value not in ("", "1") else " is called slow")
        for one in list(judged.values())[:4]
    )
    return _Outlier(owners, shown, max(shares.values()) * BARELY_SLOWER <= 1)


def _awaited(groups: Mapping[_Group, Values]) -> _Outlier | None:
    """The owner that waits least, where all others wait long."""
    for group, by_owner in groups.items():
        if group.kind not in ("wait", "backward") or not group.timed or len(by_owner) < COMPARABLE_RANKS:
            continue
        waits = {owner: max(wait, LEAST_WAIT_S) for owner, wait in by_owner.items()}
        owners, usual = _low(waits)
        if len(owners) == 1 and usual >= LONG_WAIT_S and waits[owners[0]] * MUCH_MORE_OF_TWO <= usual:
            return _Outlier(_of(group.of, owners), _why(group, by_owner, owners, usual), False)
    return None


def _groups(values: Sequence[Figure]) -> dict[_Group, Values]:
    """The median of the newest values of each owner, without the first step."""
    series: dict[_Group, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in values:
        first = one.timed and one.step is not None and one.step <= FIRST_STEP
        if (
            one.owner
            and not one.exact
            and not first
            and one.kind not in ("state", "grad", "batch", "judged", "unequal")
        ):
            series[_Group(one.kind, one.of, one.name, one.timed)][one.owner].append(float(one.value))
    return {
        group: {owner: median(several[-MAX_NEWEST:]) for owner, several in by_owner.items()}
        for group, by_owner in series.items()
        if len(by_owner) > 1
    }


def _high(values: Values) -> tuple[list[str], float]:
    """The owners whose value is above that of most others, and the usual value."""
    if len(values) < COMPARABLE_RANKS:
        (least, _), (most, high) = sorted(values.items(), key=lambda item: item[1])
        return ([most], values[least]) if high >= MUCH_MORE_OF_TWO * values[least] > 0 else ([], 0.0)
    for limit in (MUCH_MORE_CPU, BARELY_SLOWER):
        usual = median(values.values())
        owners = [owner for owner, value in values.items() if value >= limit * usual > 0]
        if 0 < len(owners) < len(values) / 2 and _stands_out(values, owners):
            return owners, median(value for owner, value in values.items() if owner not in owners)
    return [], 0.0


def _low(values: Values) -> tuple[list[str], float]:
    """The same, below it."""
    if any(value <= 0 for value in values.values()):
        return [], 0.0
    owners, usual = _high({owner: 1 / value for owner, value in values.items()})
    return owners, 1 / usual if owners else 0.0


def _stands_out(values: Values, owners: Sequence[str]) -> bool:
    """True if the outliers are further from the others than these are from one another."""
    rest = [value for owner, value in values.items() if owner not in owners]
    gap = min(values[owner] for owner in owners) - max(rest)
    return gap >= WIDE_GAP * (max(rest) - min(rest)) or (gap > 0 and len(owners) == 1 and gap >= median(rest))


def _much(values: Values, owners: Sequence[str], usual: float) -> bool:
    ratios = [values[owner] / usual for owner in owners]
    return all(max(ratio, 1 / ratio if ratio else 0.0) >= MUCH_MORE_CPU for ratio in ratios)


def _of(of: str, owners: Iterable[str]) -> tuple[tuple[str, str], ...]:
    return tuple((of, owner) for owner in owners)


def _why(group: _Group, values: Values, owners: Sequence[str], usual: float) -> str:
    shown = ", ".join(f"{values[owner]:.3g}{group.unit} on {called(group.of, owner)}" for owner in owners[:4])
    rest = [owner for owner in values if owner not in owners]
    if group.of != EXTREME:
        return f"{group.name}: {shown}; {usual:.3g}{group.unit} on the other {len(rest)}"
    near = USUAL if USUAL in rest else rest[0]
    return f"{group.name}: {shown}; {values[near]:.3g}{group.unit} {_on(near)}"


def _on(owner: str) -> str:
    return "as a mean or median" if owner == USUAL else f"on {called(EXTREME, owner)}"


def called(of: str, owner: str) -> str:
    """`rank 3`, `gpu07`, `GPU 3 of gpu07`, `the slowest rank`."""
    if of == EXTREME:
        return f"rank {owner}" if owner.isdecimal() else f"the {owner} rank"
    if of == "process" and "/" in owner:
        host, _, pid = owner.rpartition("/")
        return f"process {pid} of {host}"
    if of != "gpu":
        return owner if of == "host" else f"{of} {owner}"
    host, _, number = owner.rpartition("/")
    name = f"GPU {number}" if number != "?" else "a GPU"
    return f"{name} of {host}" if host else name


# --- waits for batches ----------------------------------------------------------------------------


def _loading(values: Sequence[Figure]) -> _Outlier | None:
    """Owners that wait for batches, by far longer than others, and for a part of the step that matters."""
    groups = _groups(values)
    for group, by_owner in groups.items():
        if group.kind != "input":
            continue
        spent = [
            max(more.values())
            for other, more in groups.items()
            if other.of == group.of and other.timed == group.timed and other.kind in SLOW_IF_HIGH
        ]
        least = PART_OF_LONGEST * max(spent) if spent else DATA_WAIT_S if group.timed else HALF * 100
        # Waits that are too short to matter are alike, however much one is longer than another.
        short = max(LEAST_WAIT_S, least / DATA_APART if spent else 0.0)
        waits = {owner: max(wait, short) for owner, wait in by_owner.items()}
        owners, usual = _high(waits)
        apart = all(waits[owner] >= DATA_APART * usual for owner in owners)
        several = len(waits) >= COMPARABLE_RANKS
        if (
            owners
            and (apart or (several and _much(waits, owners, usual)))
            and min(waits[owner] for owner in owners) >= least
        ):
            others = median(wait for owner, wait in by_owner.items() if owner not in owners)
            return _Outlier(_of(group.of, owners), _why(group, by_owner, owners, others), several and apart)
    return None


def _share(values: Sequence[Figure]) -> dict[str, Any]:
    """The share of the steps in which ranks wait for data, by the lines that show both times.

    Some loops print the whole step, some its parts, some what is left of it. A profiler prints
    means over several steps.
    """
    shown: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    counts: dict[tuple[str, int], int] = defaultdict(int)
    later: set[tuple[str, int]] = set()  # lines of a later step
    for one in values:
        if one.timed:
            shown[one.owner, one.line][one.kind].append(float(one.value))
            counts[one.owner, one.line] = one.count
            if one.step is not None and one.step > FIRST_STEP:
                later.add((one.owner, one.line))
    begun: set[str] = set()  # owners of which a line was read
    counted: list[tuple[float, float, int]] = []
    for (owner, line), kinds in shown.items():
        data = kinds["input"][0] if kinds["input"] else 0.0
        parts = sum(sum(kinds[part]) for part in PARTS)
        if kinds["input"] and (kinds["step"] or parts):
            step = kinds["step"][0] if kinds["step"] else data + parts
            one_step = data, step if data <= step else data + step, counts[owner, line]
            if owner in begun or one_step[2] != 1 or (owner, line) in later:
                counted.append(one_step)
            begun.add(owner)
    weights = [count or 1 for _, _, count in counted]  # a list of sums or means counts once
    total = sum(step * weight for (_, step, _), weight in zip(counted, weights, strict=True))
    waited = sum(data * weight for (data, _, _), weight in zip(counted, weights, strict=True))
    if not total or waited / total < HALF or waited / sum(weights) < DATA_WAIT_S:
        return {}
    stated = all(count for _, _, count in counted)
    return {
        "loading_share": waited / total,
        "loading_s": waited / sum(weights),
        "loading_steps": sum(weights) if stated else 0,
    }


# --- replicas that differ -------------------------------------------------------------------------


def _parted(values: Sequence[Figure]) -> dict[str, Any]:
    """The newest value in which replicas differ: a checksum rather than a norm, a norm of weights before one of
    gradients."""
    found: dict[tuple[str, str, str, int | None, int], dict[str, Figure]] = defaultdict(dict)
    owners_of: dict[int, set[str]] = defaultdict(set)
    for one in values:
        owners_of[one.line].add(one.owner)
    for one in values:
        if one.kind in ("state", "grad", "batch") and one.owner and one.of != "host":
            together = one.line if len(owners_of[one.line]) > 1 and one.step is None else 0
            found[one.kind, one.name, one.of, one.step, together].setdefault(one.owner, one)
    ranked = sorted(
        found.items(), key=lambda item: (-_rank(item[0][0], item[1]), item[0][3] or 0, item[0][4]), reverse=True
    )
    for (kind, name, of, step, _), owners in ranked:
        texts = {owner: one.value for owner, one in owners.items()}
        if len(texts) < 2 or not _differ(kind, texts.values()):
            continue
        (usual, count), *others = Counter(texts.values()).most_common()
        majority = bool(others) and count > max(1, others[0][1]) and kind != "grad"
        odd = [owner for owner, text in texts.items() if text != usual] if majority else []
        named = [suspect(of, owner, Numbered()) for owner in odd]
        return {
            "odd": tuple(one for one in named if one is not None)[:MAX_SUSPECTS],
            "only_rank0_odd": of == "rank" and odd == ["0"],
            "apart": name,
            "apart_why": _by_value(of, texts),
            "apart_kind": kind,
            "apart_exact": any(one.exact for one in owners.values()),
            "step": step,
        }
    return {}


def _by_value(of: str, texts: Mapping[str, str]) -> str:
    """`7be0 on ranks 1-3, c314 on rank 0`."""
    owners: dict[str, list[str]] = defaultdict(list)
    for owner, text in texts.items():
        owners[text].append(owner)
    if of != "rank" or not all(map(str.isdecimal, texts)):
        return ", ".join(f"{text} on {called(of, owner)}" for owner, text in list(texts.items())[:MAX_SHOWN])
    shown = list(owners.items())[:MAX_SHOWN]
    return ", ".join(f"{text} on {name_ranks(sorted(map(int, ranks)))}" for text, ranks in shown)


def _unequal(values: Sequence[Figure]) -> dict[str, Any]:
    """What a person counted as not equal on the ranks, the last one."""
    found = [one for one in values if one.kind == "unequal"]
    if not found:
        return {}
    name = found[-1].name
    kind = "grad" if name.startswith("grad") else "state"
    return {"apart": name, "apart_why": f"not equal on the ranks: {found[-1].value}", "apart_kind": kind}


def _rank(kind: str, owners: Mapping[str, Figure]) -> int:
    if kind == "state":
        return 0 if any(one.exact for one in owners.values()) else 1
    return 2 if kind == "batch" else 3


def _differ(kind: str, values: Iterable[str]) -> bool:
    texts = set(values)
    numbers = list(_numbers(texts))
    if len(numbers) < len(texts) or kind == "batch":
        return len(texts) > 1
    if all("." not in text and "e" not in text for text in texts):
        return kind == "state" and len(texts) > 1
    slack = GRADIENT_ROUNDING if kind == "grad" else ROUNDING
    return max(numbers) - min(numbers) > slack * max(map(abs, numbers))


def _numbers(texts: Iterable[str]) -> Iterator[float]:
    for text in texts:
        try:
            yield float(text)
        except ValueError:
            continue


ANALYSIS = FiguresDetector()
