"""Locks that a line acquires or holds, from the source alone."""

from __future__ import annotations

import pytest

from hangdoc.introspect.parsers.lock_calls import table
from hangdoc.introspect.source_records import Guards, guards

SOURCE = """\
def update(self, batch):
    with self.guard:
        self.sums += batch
        with self.locks[i], open(path) as file:
            self.write(file)
    self.done()

def acquire(self):
    self.busy.acquire()
    try:
        self.work()
    finally:
        self.busy.release()
    self.rest()

def inner(lock):
    lock.acquire()
    def later():
        return other.acquire()
    later()
    get_lock().acquire()
    with lock: self.short()

LOCK.acquire()
work()
"""


@pytest.mark.parametrize(
    ("line", "acquires", "inside"),
    [
        (2, ["self.guard"], []),
        (3, [], ["self.guard"]),
        (4, ["self.locks[i]"], ["self.guard"]),
        (5, [], ["self.guard", "self.locks[i]"]),
        (6, [], []),
        (9, ["self.busy"], []),
        (11, [], ["self.busy"]),
        (14, [], []),  # given back
        (19, ["other"], []),  # a function of its own
        (20, [], ["lock"]),
        (21, [], ["lock"]),  # what a call returns has no name
        (22, ["lock"], ["lock"]),
        (24, ["LOCK"], []),
        (25, [], ["LOCK"]),
    ],
)
def test_guards(line: int, acquires: list[str], inside: list[str]) -> None:
    assert guards(table(SOURCE.encode()), line) == Guards(tuple(acquires), tuple(inside))
