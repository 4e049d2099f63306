"""Owners and values as they stand in a text, before anything is known about their meaning."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hangdoc.postmortem.readers._logs.figure_kinds import UNIT

RANK, GPU, HOST, REPLICA, SHORT, NUMBERED = "rank", "gpu", "host", "replica", "short", "number"
NUMBER = r"-?\d{1,15}(?:,\d{3}){0,4}(?:\.\d{0,20})?(?:[eE][+-]?\d{1,3})?"
HEX = r"(?:0x)?(?=[a-f]{0,63}\d)(?=\d{0,63}[a-f])[0-9a-f]{4,64}"

_CELL = re.compile(
    rf"(?P<value>{NUMBER}|\.\d{{1,12}})(?: ?(?P<unit>{UNIT})| ?(?:MHz|W|C))?|(?P<hash>{HEX})", re.IGNORECASE
)

_LIST = re.compile(rf"\[{NUMBER}(?:, ?{NUMBER}){{1,15}}\]")
_SPAN = re.compile(rf"(\d{{1,9}}(?:\.\d{{1,9}})?) ?(?:-|\u2013|\.\.) ?(\d{{1,9}}(?:\.\d{{1,9}})?)(?: ?({UNIT}))?")


@dataclass(frozen=True, slots=True)
class Owner:
    of: str  # RANK, GPU, HOST, REPLICA; SHORT: `r3`; NUMBERED: `worker 3`, which may be no rank
    name: str


@dataclass(frozen=True, slots=True)
class Value:
    owners: tuple[Owner, ...]
    name: str
    text: str
    unit: str | None = None
    exact: bool = False  # a checksum
    step: int | None = None
    number: bool = True  # False: it is compared as a text


def cell_value(owner: Owner, name: str, cell: str, step: int | None = None) -> Value | None:
    """The value in a cell of a table or in a list. None: it holds something else."""
    if _LIST.fullmatch(cell):
        return Value((owner,), name, " ".join(cell.strip("[]").split()), None, False, step, False)
    found = _CELL.fullmatch(cell)
    if not found and (span := _SPAN.fullmatch(cell)):
        low, high = float(span[1]), float(span[2])
        return Value((owner,), name, f"{(low + high) / 2:.9g}", span[3], False, step) if low <= high else None
    if not found:
        return None
    if found["hash"]:
        return Value((owner,), name, found["hash"].lower(), None, True, step, False)
    return Value((owner,), name, found["value"], found["unit"], False, step)
