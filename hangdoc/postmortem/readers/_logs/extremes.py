"""Reports that name only the extremes of all ranks: the least and the most, and which ranks they are.

* `(min, max) time across ranks (ms):` and `forward-compute ......: (702.40, 1828.19)` (megatron/core/timers.py): the
  fastest and the slowest rank, without their numbers
* `MnRtt/Rnk: 3453.08ms/8 | MxRtt/Rnk: 3468.20ms/0 | MnDRtt/Rnk: 12.27ms/23` (megatron/core/utils.py,
  StragglerDetector.report): Rtt is the time of forward and backward, DRtt that of get_batch
* `data: min 11.2 ms (rank 3) max 4820.1 ms (rank 12) mean 162.4 ms`, `min=0.209s@rank2`, `slowest rank 4`: scripts
* a table with a row for each part of a step, and columns such as `max` and `slowest rank` (`extreme_tables`)
* `r0 input was slower than median global rank (254.5/3.8ms)` (traceml: step time diagnosis)

Where ranks wait for each other, the one that waits least is the one of interest. One line after another may name
another rank: then no rank stands apart.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from hangdoc.evidence.figures import Figure
from hangdoc.postmortem.readers._logs.extreme_tables import NUMBER, TIME_UNIT, End, ExtremeTables, Report
from hangdoc.postmortem.readers._logs.figure_kinds import meaning

MAX_REPORTS = 4_096
MAX_STATISTICS = 64  # of a line
MAX_NAME = 60  # characters
EXTREME, FASTEST, SLOWEST, USUAL = "extreme", "fastest", "slowest", "usual"

_ACROSS = re.compile(r"\(min, max\) time across ranks \(ms\)")
_TIMER = re.compile(
    r"(?:^|\s)(?P<name>[a-z][\w/-]{2,60})[ .]{1,60}"
    rf": \((?P<least>{NUMBER}), ?(?P<most>{NUMBER})\)"
)
_OWN_WORK = frozenset({"forward-compute", "backward-compute"})  # of a rank, without waits for others
_PAIR = re.compile(rf"\bM(?P<end>[nx])(?P<what>D?Rtt)/Rnk: (?P<value>{NUMBER})ms/(?P<rank>\d{{1,6}})\b")
_PAIRS = {"Rtt": "forward and backward", "DRtt": "data time"}
_STATISTIC = re.compile(
    r"(?<![\w/])(?P<which>min(?:imum)?|max(?:imum)?|fastest|slowest|least|most|lowest|highest|worst|best|mean|avg"
    r"|average|median|typical|p50)\b(?! ?of\b)"
    r"(?:[ _(]{1,2}(?:is )?(?:global )?rank[ _=:#]{0,2}(?P<first>\d{1,6})\b(?!\.\d))?"
    rf"[ =:(@\[),]{{0,3}}(?:(?P<value>{NUMBER})(?: ?(?P<unit>{TIME_UNIT}))?)?"
    r"(?:\s?[(\[@/,]?\s?(?:(?:on|at|by|from|in)\s)?(?:global )?rank[ _=:#]{0,2}(?P<rank>\d{1,6})\b)?",
    re.IGNORECASE,
)
_BEFORE = re.compile(rf"(?P<value>{NUMBER})(?: ?(?P<unit>{TIME_UNIT}))?[ ,(]{{1,3}}$", re.IGNORECASE)
_COMPARED = re.compile(
    r"\b(?:rank[ _]?|r)(?P<rank>\d{1,6}) (?P<name>[a-z][a-z0-9 _-]{1,30}?) (?:was|is) slower than (?:the )?"
    rf"(?:median|mean|average|typical)[a-z ]{{0,24}}"
    rf"\((?P<value>{NUMBER})/(?P<usual>{NUMBER}) ?(?P<unit>{TIME_UNIT})\)",
    re.IGNORECASE,
)
_NAME = re.compile(r"[A-Za-z][\w ./|-]{0,60}(?: ?[(\[](?:us|ms|s|sec|seconds)[)\]])?[\s:=|,-]{0,20}$")
_LEAST = frozenset({"min", "minimum", "fastest", "least", "lowest", "best"})
_MIDDLE = frozenset({"mean", "avg", "average", "median", "typical", "p50"})


@dataclass(slots=True)
class Extremes:
    """Takes the lines of a text in order."""

    _timers: bool = False
    _tables: ExtremeTables = field(default_factory=ExtremeTables)
    _reports: list[Report] = field(default_factory=list)

    def feed(self, text: str, number: int) -> None:
        if len(self._reports) >= MAX_REPORTS:
            return
        head = _ACROSS.search(text)
        self._timers = head is not None or (self._timers and _TIMER.search(text) is not None)
        row = self._tables.feed(text, number)
        if row:
            self._reports += row
        elif self._timers:
            self._reports += _timers(text, number)
        elif pairs := {(one["what"], one["end"]): one for one in _PAIR.finditer(text)}:
            self._reports += _pairs(pairs, number)
        elif compared := _COMPARED.search(text):
            self._reports += _compared(compared, number)
        else:
            self._reports += _statistics(text, number)

    def figures(self) -> list[Figure]:
        """Of all lines: those of a name whose extreme is always at the same rank."""
        named: dict[tuple[str, str], list[Report]] = defaultdict(list)
        for one in self._reports[:MAX_REPORTS]:
            named[one.kind, one.name].append(one)
        return [figure for reports in named.values() for figure in _steady(reports)]


def _steady(reports: list[Report]) -> Iterator[Figure]:
    kind = reports[0].kind
    ends = [one.least if kind == "wait" else one.most for one in reports]
    usual, count = Counter(end.rank for end in ends if end).most_common(1)[0] if any(ends) else (None, 0)
    if 2 * count <= len(reports):
        return
    for one, end in zip(reports, ends, strict=True):
        if not end or end.rank != usual:
            continue
        far, near = (FASTEST, SLOWEST) if kind == "wait" else (SLOWEST, FASTEST)
        other = one.most if kind == "wait" else one.least
        if other:
            yield _figure(one, near, other.value)
        yield _figure(one, end.rank or far, end.value)
        if one.middle is not None:
            yield _figure(one, USUAL, one.middle)


def _figure(one: Report, owner: str, value: float) -> Figure:
    return Figure(one.kind, one.name[:MAX_NAME], EXTREME, owner, f"{value:.9g}", False, True, None, one.line)


def _timers(text: str, number: int) -> Iterator[Report]:
    for timer in _TIMER.finditer(text):
        if timer["name"] in _OWN_WORK:
            least, most = (End(float(timer[end]) / 1e3) for end in ("least", "most"))
            yield Report("work", timer["name"], number, least, most, None)


def _pairs(pairs: dict[tuple[str, str], re.Match[str]], number: int) -> Iterator[Report]:
    for what, name in _PAIRS.items():
        least, most = pairs.get((what, "n")), pairs.get((what, "x"))
        if least and most:
            ends = [End(float(one["value"]) / 1e3, str(int(one["rank"]))) for one in (least, most)]
            yield Report("input" if what == "DRtt" else "step", name, number, ends[0], ends[1], None)


def _compared(found: re.Match[str], number: int) -> Iterator[Report]:
    known = meaning(found["name"], found["unit"].lower())
    if known and known.factor is not None:
        most = End(float(found["value"]) * known.factor, str(int(found["rank"])))
        yield Report(known.kind, found["name"].lower(), number, None, most, float(found["usual"]) * known.factor)


def _statistics(text: str, number: int) -> Iterator[Report]:
    """The reports in a line: each has a name, and statistics behind it."""
    if not re.search(r"\brank", text, re.IGNORECASE):
        return
    end, name = 0, ""
    found: dict[str, End] = {}
    for one in [*_STATISTIC.finditer(text)][:MAX_STATISTICS]:
        gap, end = text[end : one.start()][-2 * MAX_NAME :], one.end()
        shown = one if one["value"] is not None else _BEFORE.search(gap)
        before = gap[: shown.start()] if shown and shown is not one else gap
        if named := _NAME.search(re.split(r"[;,\])]\s", before)[-1]):
            yield from _report(name, found, number)
            name, found = " ".join(re.sub(r"[\d_=:|,\[\]]+", " ", named[0].lower()).split()), {}
        if shown is None:
            continue
        known = meaning(name, shown["unit"].lower() if shown["unit"] else None, "." in shown["value"])
        if known and known.factor is not None:
            which, rank = one["which"].lower(), one["rank"] or one["first"]
            role = "least" if which in _LEAST else "middle" if which in _MIDDLE else "most"
            found[role] = End(float(shown["value"]) * known.factor, str(int(rank)) if rank else None)
    yield from _report(name, found, number)


def _report(name: str, found: dict[str, End], number: int) -> Iterator[Report]:
    least, most, middle = (found.get(role) for role in ("least", "most", "middle"))
    known = meaning(name, "s")
    if known and len(found) > 1 and any(end and end.rank for end in (least, most)):
        yield Report(known.kind, name, number, least, most, middle.value if middle else None)
