"""Lock waits and holders in real processes, in every installed interpreter."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from hangdoc.evidence.locks import Locks
from probes import Probe
from probes.locks import PROBE, LocksProbe
from probes.stacks import StacksProbe
from tests.support.paths import PROGRAMS
from tests.support.polling import at_rest
from tests.support.probe_targets import Program, every_python, started

WAITS = {  # thread -> what it waits for, whether that is an RLock, who has it as far as the lock tells
    "forward": ("pair.second", True, "backward"),
    "backward": ("pair.first", False, None),
    "twice": ("once", False, None),
    "orphan": ("abandoned", True, 0),
    "column": ("columns[i]", False, None),
    "save": ("snapshots.other.lock", False, None),
    "note": ("snapshots.lock", False, None),
}
HELD = {  # thread that waits -> thread whose source says that it has the lock, where, and by which name
    "forward": ("backward", "backward", "pair.second"),
    "backward": ("forward", "forward", "pair.first"),
    "twice": ("twice", "twice", "once"),
    "column": ("column", "column", "columns[i]"),
    "save": ("note", "note", "progress.lock"),  # two locks of one name, in two objects
    "note": ("save", "save", "snapshots.lock"),
}


def look(program: Program, probe: LocksProbe | None = None) -> Locks:
    at_rest(program.pid)
    request = program.request()
    stacks = StacksProbe().observe(request).by_pid
    records = {pid: {"stacks": record} for pid, record in stacks.items()}
    seen = (probe or LocksProbe()).observe(replace(request, records=records))
    assert seen.unseen == ()
    record = seen.by_pid[program.pid]
    assert isinstance(record, Locks)
    return record


def test_is_a_probe() -> None:
    assert isinstance(PROBE, Probe)


@every_python
def test_lock_waits_and_holders(python: str) -> None:
    with started("locks_program.py", python=python) as program:
        seen = look(program)
    names = {tid: name for name, tid in program.said.items()}
    found = {names[w.tid]: (w.name, w.reentrant, names.get(w.owner or -1, w.owner)) for w in seen.waits}
    assert found == WAITS
    assert [wait for wait in seen.waits if not wait.found] == []
    assert {names.get(tid) for tid in seen.parked} == {*WAITS, "queued", "joining"}
    waiting = {wait.semaphore: names[wait.tid] for wait in seen.waits}
    held = {waiting[h.semaphore]: (names[h.tid], h.function, h.name) for h in seen.holdings}
    assert held == HELD
    assert [h for h in seen.holdings if not h.found or not h.file.endswith("locks_program.py")] == []


def test_what_has_not_moved_is_not_read_again() -> None:
    probe = LocksProbe()
    with started("locks_program.py") as program:
        first = look(program, probe)
        assert look(program, probe) is first


def test_a_source_changed_since_the_start_says_nothing(tmp_path: Path) -> None:
    script = tmp_path / "changing.py"
    text = (PROGRAMS / "locks_program.py").read_text()
    script.write_text(text)
    with started(str(script)) as program:
        script.write_text(text.replace("with once", "with twin"))
        later = script.stat().st_mtime + 60
        os.utime(script, (later, later))
        seen = look(program)
    assert seen.waits == ()
    assert seen.parked


def test_a_process_that_has_ended() -> None:
    with started("locks_program.py") as program:
        request = program.request()
        records = {pid: {"stacks": record} for pid, record in StacksProbe().observe(request).by_pid.items()}
    found = LocksProbe().observe(replace(request, records=records)).by_pid.get(program.pid, Locks())
    assert found.waits == ()
