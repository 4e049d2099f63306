"""Tables of ranks and their hosts, PIDs or GPUs: `RANK HOST PID GPU` above rows, `rank -> host` above `0 -> a01`.

`srun --label hostname` prints such a table, too: `0: n11` for each task.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hangdoc.postmortem.readers._host_names import NAME, listed_numbers
from hangdoc.postmortem.readers._placement.statements import Seat

MAX_CELLS = 12
MAX_LINE = 300  # characters
MAX_SPAN = 1024  # ranks of one row
_COLUMNS = {
    "rank": "rank", "ranks": "rank", "global ranks": "rank", "rank range": "rank", "global rank": "rank",
    "global_rank": "rank", "world_rank": "rank", "procid": "rank",
    "slurm_procid": "rank", "globalid": "rank", "host": "host", "hostname": "host", "node": "host",
    "nodename": "host", "machine": "host", "pod": "host", "server": "host", "nodes": "host", "hosts": "host",
    "pid": "pid",
    "gpu": "gpu", "cuda": "gpu", "device": "gpu", "local": "local",
    "local rank": "local", "local_rank": "local", "localid": "local", "localrank": "local", "node_rank": "node",
    "node rank": "node",
}  # fmt: skip
_NEEDED = frozenset({"host", "pid", "gpu", "local"})
_SPLIT = re.compile(r"\s*(?:->|=>|\u2192|\||\t|,|=|:(?=\s|$)|\s{2,})\s*")
_HOST_OF_EACH = re.compile(r"\bsrun\b.{0,120} (?:-l|--label)\b.{0,120}\bhostname\b")
# `I log rank/pid`, `pids by rank:`, above or in front of `0:4276 1:4277`
_OF_PAIRS = re.compile(r"\branks?\b.{0,20}\bpids?\b|\bpids?\b.{0,40}\branks?\b", re.IGNORECASE)
_PAIR = re.compile(r"(?<![\w.:/=-])(\d{1,9}) ?(?:[:=/]|->) ?(\d{1,9})(?![\w.:/=-])")
# `pids on vm-a (10.0.3.21): 24468 = 0, 24469 = 1`: what stands behind a PID is its rank
_PIDS_OF_HOST = re.compile(
    rf"\bpids? (?:on|of|at) (?:host |node )?(?P<host>{NAME})(?: \([^()\n]{{1,60}}\))? ?[:=]"
    r"(?P<pairs>(?: {0,4}\d{2,9} ?(?:=|->|is|:) ?(?:rank )?\d{1,6}[,;]?){1,64})\s*\.?\s*$",
    re.IGNORECASE,
)
_PID_AND_RANK = re.compile(r"(\d{2,9}) ?(?:=|->|is|:) ?(?:rank )?(\d{1,6})")
LEAST_PAIRS = 2  # fewer may be a time
_NAME, _NUMBER = re.compile(NAME), re.compile(r"\d{1,9}")
# The ranks of a whole host in one cell: `16-23`, ` 0- 7`, `0..7`, `0 to 7`; and as one word.
_SPAN = re.compile(r"(?<![\w.:/-])(\d{1,6})\s?(?:-|\u2013|\.{2,3}|to)\s{0,6}(\d{1,6})(?![\w.:/-])")
_SPANNED = re.compile(r"\d{1,6}-\d{1,6}")


def _cells(text: str, wide: bool) -> list[str]:
    text = text.strip().strip("|+-#*").strip()
    return (text.split() if wide else _SPLIT.split(text))[:MAX_CELLS]


class PlacementTable:
    """Takes the lines of a text in order, and finds the rows below a head."""

    def __init__(self) -> None:
        self._columns: Sequence[str] = ()
        self._wide = False
        self._of_pairs = False  # the line above speaks of ranks and their PIDs

    def feed(self, text: str) -> Seat | None:
        """The statement in a row."""
        if not text.strip() or len(text) > MAX_LINE:
            self._columns = () if len(text) > MAX_LINE else self._columns
            return None
        if listed := _PIDS_OF_HOST.search(text):
            pids, ranks = zip(
                *((int(pid), int(rank)) for pid, rank in _PID_AND_RANK.findall(listed["pairs"])), strict=True
            )
            return Seat(ranks, listed["host"], pids) if len({*ranks}) == len(ranks) else None
        of_pairs, self._of_pairs = self._of_pairs, _OF_PAIRS.search(text) is not None
        if (of_pairs or self._of_pairs) and (pairs := _pairs(text)):
            return pairs
        if self._opens(text):
            return None
        return self._row(text) if self._columns else None

    def _opens(self, text: str) -> bool:
        if _HOST_OF_EACH.search(text):
            self._columns, self._wide = ("rank", "host"), False
            return True
        for wide in (False, True):
            names = [_COLUMNS.get(cell.lower(), "") for cell in _cells(text, wide)]
            known = [name for name in names if name]
            firm = {*names[:2]} == {"rank", "host"}  # columns of any name may follow
            if (
                "rank" in known
                and _NEEDED & set(known)
                and len(known) == len(set(known))
                and (firm or 3 * len(known) >= len(names))
            ):
                if any(re.search(r"\d", cell) for cell in _cells(text, wide)[: 2 if firm else None]):
                    continue
                self._columns, self._wide = names, wide
                return True
        return False

    def _row(self, text: str) -> Seat | None:
        if not re.search(r"\w", text):
            return None  # a ruler
        cells = _cells(_SPAN.sub(r"\1-\2", text), self._wide)
        if len(cells) != len(self._columns):
            self._columns = ()
            return None
        row = dict(_typed(zip(self._columns, cells, strict=True)))
        if "rank" not in row or len(row) < 2:
            self._columns = ()
            return None
        number = {name: listed_numbers(value, MAX_SPAN) for name, value in row.items() if name != "host"}
        if not number["rank"] or any(len(several) != 1 for name, several in number.items() if name != "rank"):
            return None
        return Seat(
            number["rank"], row.get("host"), number.get("pid", ()), number.get("gpu", ()), number.get("local", ()),
            number.get("node", ()),
        )  # fmt: skip


def _pairs(text: str) -> Seat | None:
    """The ranks and PIDs in `0:4276 1:4277 2:4278`: all ranks of a job, in either order. None: they are none."""
    found = [(int(one), int(other)) for one, other in _PAIR.findall(text)]
    if len(found) < LEAST_PAIRS or re.search(r"\w", _PAIR.sub("", text).rpartition(":")[2]):
        return None
    ranks, pids = zip(*(sorted(pair) for pair in found), strict=True)
    in_order = sorted(ranks) == list(range(len(ranks)))
    return Seat(ranks, pids=pids) if in_order and min(pids) > max(ranks) and len(set(pids)) == len(pids) else None


def _typed(pairs: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """The cells of known columns that hold what their head says."""
    for name, cell in pairs:
        word = "" if name == "host" else r"^(?:rank|cuda:|gpu ?|pid )"
        value = re.sub(word, "", cell, flags=re.IGNORECASE).strip(" :|")
        form = _NAME if name == "host" else _NUMBER
        if name and (form.fullmatch(value) or (name == "rank" and _SPANNED.fullmatch(value))):
            yield name, value
