"""Figures in reports that name only the extremes of all ranks: Megatron's timers and its straggler detector.

* `(min, max) time across ranks (ms):` and `forward-compute ......: (702.40, 1828.19)` (megatron/core/timers.py): the
  fastest and the slowest rank, without their numbers
* `MnEtpt/Rnk: 101.12TF/21 | MxEtpt/Rnk: 312.95TF/10`, `^^^^ Bottom 4 Ranks with lowest Etpt(TF): 101.12/21 306.72/3`
  (megatron/core/utils.py, StragglerDetector.report): the estimated throughput of each of these ranks
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hangdoc.evidence.figures import Figure

MAX_FIGURES = 4_096
FASTEST, SLOWEST, EXTREME = "fastest", "slowest", "extreme"
THROUGHPUT = "estimated throughput"

_ACROSS = re.compile(r"\(min, max\) time across ranks \(ms\)")
_TIMER = re.compile(
    r"(?:^|\s)(?P<name>[a-z][\w/-]{2,60})[ .]{1,60}"
    r": \((?P<least>\d{1,9}(?:\.\d{1,6})?), ?(?P<most>\d{1,9}(?:\.\d{1,6})?)\)"
)
_OWN_WORK = frozenset({"forward-compute", "backward-compute"})  # of a rank, without waits for others
_MEASURED = re.compile(r"\bM[nx]Etpt/Rnk: (\d{1,6}(?:\.\d{1,6})?)TF/(\d{1,6})\b")
_LISTED = re.compile(r"Ranks with (?:lowest|highest) Etpt\(TF\): ((?:\d{1,6}(?:\.\d{1,6})?/\d{1,6},? {0,3}){1,256})")


@dataclass(slots=True)
class RankReports:
    """Takes the lines of a text in order."""

    found: list[Figure] = field(default_factory=list)
    _timers: bool = False

    def feed(self, text: str, number: int) -> None:
        if len(self.found) >= MAX_FIGURES:
            return
        head = _ACROSS.search(text)
        self._timers = head is not None or (self._timers and _TIMER.search(text) is not None)
        for timer in _TIMER.finditer(text) if self._timers else ():
            if timer["name"] in _OWN_WORK:
                self.found += [
                    Figure(
                        "work", timer["name"], EXTREME, owner, f"{float(value) / 1e3:.9g}", False, True, None, number
                    )
                    for owner, value in ((FASTEST, timer["least"]), (SLOWEST, timer["most"]))
                ]
        pairs = _MEASURED.findall(text)
        for listed in _LISTED.finditer(text):
            pairs += [tuple(one.strip(", ").split("/")) for one in listed[1].split()]
        for value, rank in pairs:
            self.found.append(Figure("rate", THROUGHPUT, "rank", str(int(rank)), value, False, False, None, number))
