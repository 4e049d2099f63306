"""`py-spy dump --json`: a list of threads; of many processes one list after another, whatever stands between them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hangdoc.evidence import Frame, Variable
from hangdoc.evidence.pieces import Who
from hangdoc.postmortem.readers import Notes, Source
from hangdoc.postmortem.readers import _pasted_text as paste
from hangdoc.postmortem.readers._dump_ranks import Dumped
from hangdoc.postmortem.readers._frames import (
    MOST_THREADS,
    VARIABLES,
    Thread,
    native_frame,
    python_frame,
    stacks,
    variable,
)
from hangdoc.postmortem.readers._pasted_json import documents

MOST = 64 * 2**20  # bytes: a dump of 1,000 threads is 5 MB
_LIST = re.compile(rb"^[ \t]*\[\s*\{", re.MULTILINE)


def is_json(head: bytes) -> bool:
    return all(name in head for name in (b'"owns_gil"', b'"frames"', b'"thread_id"')) and _LIST.search(head) is not None


def dumps(source: Source, notes: Notes) -> Iterator[Dumped]:
    """Every process in the source, in order."""
    claim = paste.Claim()
    for before, threads in documents(source, notes, MOST):
        for line in before:
            claim.note(line)
        if isinstance(threads, list):
            yield from _processes([thread for thread in threads if isinstance(thread, dict)], claim)


def _processes(threads: list[dict[str, Any]], claim: paste.Claim) -> Iterator[Dumped]:
    """A list is one process; with `--subprocesses` each thread says which."""
    by_pid: dict[int | None, list[dict[str, Any]]] = {}
    for thread in threads[:MOST_THREADS]:
        by_pid.setdefault(_int(thread.get("pid")), []).append(thread)
    for number, (pid, mine) in enumerate(by_pid.items()):
        record = stacks([_thread(thread) for thread in mine])
        main = next((thread for thread in mine if thread.get("thread_name") == "MainThread"), None)
        if pid is None and main is not None:
            pid = _int(main.get("os_thread_id"))  # Linux: the main thread's id is the process's
        if record is not None:
            yield Dumped(claim.take(pid) if number == 0 else Who(pid=pid), record)


def _thread(one: dict[str, Any]) -> Thread:
    name = one.get("thread_name")
    tid = _int(one.get("os_thread_id")) or _int(one.get("thread_id")) or 0
    found = Thread(tid, name if isinstance(name, str) else None, one.get("owns_gil") is True, one.get("active") is True)
    frames = one.get("frames")
    for frame in frames if isinstance(frames, list) else ():
        made = _frame(frame) if isinstance(frame, dict) else None
        if made is not None:
            found.add(made)
    return found


def _frame(one: dict[str, Any]) -> Frame | None:
    name, file, module, line = one.get("name"), one.get("filename"), one.get("module"), _int(one.get("line"))
    if not isinstance(name, str):
        return None
    if isinstance(module, str):
        return native_frame(name, module, line)
    if not isinstance(file, str):
        return None
    found = one.get("locals")
    return python_frame(name, file, line, _variables(found) if isinstance(found, list) else None)


def _variables(found: list[Any]) -> list[Variable]:
    kept: list[Variable] = []
    for one in found[: 4 * VARIABLES]:
        if isinstance(one, dict) and isinstance(name := one.get("name"), str):
            text = one.get("repr")
            made = variable(
                name, text if isinstance(text, str) else "", one.get("arg") is True, _int(one.get("addr")) or None
            )
            if made is not None:
                kept.append(made)
    return kept[:VARIABLES]


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None
