"""The send or receive that a thread waits for in `Work.wait()`.

The wait itself shows neither peer nor tag. What a rank has pending does: the variable that is waited for, or the
direction that the native frames show, tells which of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hangdoc.analysis import Case, Key
from hangdoc.analysis.ranks.call_path import CallPath, Step, Thread
from hangdoc.evidence.transfers import Transfer, Transfers

NO_TRANSFERS = Transfers()
_WAIT = re.compile(r"(\w+)(?:\[\s*([\"']?)(\w+)\2\s*\])?\.wait\(")  # name, quote, subscript
_NATIVE = re.compile(r"ProcessGroupGloo::(Send|Recv)Work::\w*[wW]ait")
_STARTS = frozenset({"isend", "irecv"})


def transfers_of(case: Case, key: Key) -> Transfers:
    record = case.record(key, "transfers")
    return record if isinstance(record, Transfers) else NO_TRANSFERS


def awaited(thread: Thread, pending: Sequence[Transfer]) -> list[Transfer]:
    """The pending transfers of which the thread waits for one; empty: it waits for something else, or for none."""
    directions = {match[1] for name, _, _, native in thread.path.frames if native and (match := _NATIVE.search(name))}
    held = _held(thread, pending)
    if not directions and not held and not _started_here(thread.path):
        return []
    likely = held or pending
    return [one for one in likely if not directions or ("Send" if one.sends else "Recv") in directions]


def _held(thread: Thread, pending: Sequence[Transfer]) -> Sequence[Transfer]:
    """Those whose Work is in the variable that is waited for; without source, in a variable of the innermost frame."""
    if not thread.path.steps:
        return ()
    step = thread[-1]
    if step.place is None:
        names, tables = set(step.variables), set(step.variables)
    else:
        found = _WAIT.findall(step.place.text)
        names = {f"{name}[{_subscript(step, quote, at)}]" if at else name for name, quote, at in found}
        tables = {name for name, _, _ in found}
    exact = [one for one in pending if not names.isdisjoint(one.names)]
    return exact or [one for one in pending if not tables.isdisjoint(name.partition("[")[0] for name in one.names)]


def _subscript(step: Step, quote: str, text: str) -> str:
    """A literal, or the value of a variable."""
    variable = None if quote else step.variables.get(text)
    return text if variable is None else variable.text.strip("\"'")


def _started_here(path: CallPath) -> bool:
    """True for `dist.irecv(...).wait()`."""
    place = path.steps[-1].place if path.steps else None
    calls = {name.rpartition(".")[2] for name in (place.calls if place is not None else ())}
    return "wait" in calls and not calls.isdisjoint(_STARTS)
