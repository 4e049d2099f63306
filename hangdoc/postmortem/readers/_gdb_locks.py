"""Locks in a session of gdb: the mutex, or the GIL, that each thread waits for, and who holds it.

glibc keeps the holder of a mutex (`__data.__owner`, a thread ID; sysdeps/nptl/bits/struct_mutex.h), which people print.
Without that, two things show a holder. A thread called from Python that waits for a mutex holds the GIL, if another
thread waits for the GIL (CPython's `take_gil`). And a thread that waits for the GIL inside a function of the same C++
class that another thread wants to enter holds the mutex of that class.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hangdoc.evidence import Frame
from hangdoc.evidence.locks import Holding, Locks, LockWait

MAX_OWNERS = 64
MAX_INNER = 16  # frames of a wait
GIL = 1  # stands for its address

_HELPER = re.compile(
    r"futex|lll_|_L_lock|cond_(?:timed|clock)?wait|\bsyscall|__syscall|sem_(?:timed|clock)?wait|PyCOND|PyThread_|\?\?"
    r"|__gthread|^std::(?:unique_lock|lock_guard|scoped_lock|condition_variable)"
)
_MUTEX = re.compile(r"pthread_(?:mutex|rwlock|spin)_(?:clock|timed)?(?:rd|wr)?lock|^std::(?:\w+_)?mutex::lock")
_TAKES_GIL = re.compile(
    r"^(?:take_gil|PyEval_(?:RestoreThread|AcquireThread|AcquireLock)|PyGILState_Ensure)|gil_scoped_acquire"
)
_INTERPRETER = re.compile(r"^_?PyEval_|^_PyFunction_Vectorcall")
_ADDRESS = re.compile(r"\b(?:__)?(?:mutex|m|futex(?:_word)?|lock)=(?:\w+@entry=)?(0x[0-9a-f]{4,16})")
_PRINTS = re.compile(r"\(gdb\)\s*(?:p|print|ptype|x|inspect)(?:/\w+)?\s(?P<what>.{1,400})")
_ANY_ADDRESS = re.compile(r"0x[0-9a-f]{4,16}")
_OWNER = re.compile(r"\b__owner['\"]?\s?[=:]\s?(\d{1,9})\b")
_VALUE = re.compile(r"\$\d{1,6} = (\d{1,9})\s*")


@dataclass(frozen=True, slots=True)
class NativeThread:
    """A thread of the dump, and the address of the mutex in its frames, if they show one."""

    tid: int
    frames: Sequence[Frame]  # innermost first
    mutex: int | None


@dataclass(slots=True)
class PrintedOwners:
    """The holders of mutexes that commands of the session print."""

    by_mutex: dict[int, int] = field(default_factory=dict)  # address -> thread ID
    _address: int | None = None
    _asks: bool = False

    def feed(self, text: str, mutex: int | None) -> bool:
        """True for a command, or an answer. `mutex`: what the thread of the last backtrace waits for."""
        if command := _PRINTS.match(text):
            named = _ANY_ADDRESS.search(command["what"])
            self._address = int(named[0], 16) if named else mutex
            self._asks = "__owner" in command["what"]
            return True
        owner = _OWNER.search(text) or (_VALUE.fullmatch(text) if self._asks else None)
        if owner is None:
            return False
        address = self._address if self._address is not None else mutex
        if address is not None and int(owner[1]) and len(self.by_mutex) < MAX_OWNERS:
            self.by_mutex[address] = int(owner[1])
        self._asks = False
        return True


def mutex_in(text: str) -> int | None:
    """The address of a mutex, or of its futex, among the arguments of a frame."""
    found = _ADDRESS.search(text)
    return int(found[1], 16) if found else None


def locks_of(threads: Sequence[NativeThread], owners: Mapping[int, int]) -> Locks | None:
    """The locks of one process; None: no holder of a lock that a thread waits for is known."""
    waits = [wait for thread in threads if (wait := _wait(thread, owners)) is not None]
    known = {thread.tid: thread for thread in threads}
    holdings = [*_holding_gil(waits, known), *_holding_mutex(waits, known)]
    if not holdings and all(wait.owner is None for wait in waits):
        return None
    return Locks(tuple(wait.tid for wait in waits), tuple(waits), tuple(holdings))


def _wait(thread: NativeThread, owners: Mapping[int, int]) -> LockWait | None:
    at = _wait_at(thread.frames)
    if at is None:
        return None
    if _TAKES_GIL.search(thread.frames[at].function):
        return LockWait(thread.tid, GIL, "the GIL")
    address = thread.mutex
    name = f"the mutex at {address:#x}" if address is not None else "a mutex"
    owner = owners.get(address) if address is not None else None
    return LockWait(thread.tid, address if address is not None else -thread.tid, name, owner=owner)


def _wait_at(frames: Sequence[Frame]) -> int | None:
    """Index of the frame that asks for a lock, if nothing but the implementation of that wait is below it."""
    for at, frame in enumerate(frames[:MAX_INNER]):
        if frame.native and (_MUTEX.search(frame.function) or _TAKES_GIL.search(frame.function)):
            return at
        if not frame.native or not _HELPER.search(frame.function):
            return None
    return None


def _holding_gil(waits: Sequence[LockWait], known: Mapping[int, NativeThread]) -> list[Holding]:
    """The only thread called from Python that waits for something else, while a thread waits for the GIL."""
    if not any(wait.semaphore == GIL for wait in waits):
        return []
    called = [
        wait.tid
        for wait in waits
        if wait.semaphore != GIL
        and any(not frame.native or _INTERPRETER.search(frame.function) for frame in known[wait.tid].frames)
    ]
    return [_holding(known[called[0]], GIL, "the GIL")] if len(called) == 1 else []


def _holding_mutex(waits: Sequence[LockWait], known: Mapping[int, NativeThread]) -> list[Holding]:
    """For each mutex without a printed holder, the only thread that waits for the GIL in a function of its class."""
    found = []
    for wait in waits:
        if wait.semaphore == GIL or wait.owner is not None:
            continue
        wanted = _classes(known[wait.tid].frames)[:1]
        inside = [
            other.tid
            for other in waits
            if other.semaphore == GIL and wanted and wanted[0] in _classes(known[other.tid].frames)
        ]
        if len(inside) == 1:
            found.append(_holding(known[inside[0]], wait.semaphore, wait.name))
    return found


def _classes(frames: Sequence[Frame]) -> list[str]:
    """The C++ classes and namespaces of the functions above the wait, innermost first."""
    at = _wait_at(frames)
    above = frames[at + 1 :] if at is not None else ()
    names = (re.sub(r"\(.*", "", re.sub(r"\(anonymous namespace\)", "_", frame.function)) for frame in above)
    classes = (name.rpartition("::")[0] for name in names if not _TAKES_GIL.search(name) and not _HELPER.search(name))
    return [name for name in classes if name.count("::") >= 1 and not name.startswith("std::")]


def _holding(thread: NativeThread, semaphore: int, name: str) -> Holding:
    at = _wait_at(thread.frames)
    frame = thread.frames[min((at or 0) + 1, len(thread.frames) - 1)]
    return Holding(thread.tid, semaphore, name, frame.function, frame.file, frame.line or 0, found=False)
