"""Host names whose beginning a person cut off, in front of lines of NCCL: `...-17:22816:22901 [0] NCCL WARN`.

A cut name is that of the only host in the text with this end; if there is none, the cut name stands for the host.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from hangdoc.postmortem.readers._cleaning import TextLine
from hangdoc.postmortem.readers._host_names import NAME
from hangdoc.postmortem.readers._placement.tokens import may_be_host

MAX_LINES = 20_000
MAX_LINE = 1_000  # characters
MAX_CUT = 256  # different names

_CUT = re.compile(r"(\s{0,8})(?:\.{2,4}|\u2026)([\w.-]{1,60}?)(:\d{1,9}:\d{1,9} \[-?\d{1,3}\] )")
_NAME = re.compile(rf"(?<![\w./-]){NAME}")


def with_whole_names(lines: Sequence[TextLine]) -> list[TextLine]:
    """The lines, with the whole name of the host where one was cut and the text has it elsewhere."""
    cut = {at: found for at, line in enumerate(lines[:MAX_LINES]) if (found := _CUT.match(line.text[:MAX_LINE]))}
    ends = list(dict.fromkeys(found[2] for found in cut.values()))
    if not 0 < len(ends) <= MAX_CUT:
        return list(lines)
    whole = _whole(ends, [line.text[:MAX_LINE] for at, line in enumerate(lines[:MAX_LINES])])
    found_lines = list(lines)
    for at, found in cut.items():
        text = lines[at].text
        name = whole.get(found[2], f"\u2026{found[2]}")
        found_lines[at] = replace(lines[at], text=f"{found[1]}{name}{text[found.end(2) :]}")
    return found_lines


def _whole(ends: Sequence[str], texts: Sequence[str]) -> dict[str, str]:
    """The name of each end, if exactly one host in the text has this end."""
    names: dict[str, str] = {}
    for text in texts:
        for found in _NAME.finditer(text):
            name = found[0].rstrip(".-")
            if "." not in text[max(found.start() - 2, 0) : found.start()] and may_be_host(name):
                names.setdefault(name.lower(), name)
    known: dict[str, str] = {}
    for end in ends:
        core = end.lstrip("._-").lower()
        fits = [
            name
            for low, name in names.items()
            if low != core and low.endswith(core) and not low[-len(core) - 1].isdigit()
        ]
        if core and len(fits) == 1:
            known[end] = fits[0]
    return known
