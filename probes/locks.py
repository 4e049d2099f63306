"""Probe `locks`: which Python threads of a rank wait for a lock of their own process, and which thread holds it.

A thread that waits for a `threading.Lock` or `RLock` sleeps in futex(2) on the lock's semaphore. The kernel shows its
address (/proc/PID/task/TID/syscall), and the lock object holds it (CPython 3.10 to 3.13: PyObject_HEAD, then the
semaphore; in an RLock the owner follows). A plain lock has no owner field: its holder comes from the source, from the
`with` statements and `acquire` calls around the line of each thread. Nothing is paused.
"""

from __future__ import annotations

import json
import os
import platform
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from hangdoc.evidence import Frame, Stack, Stacks, Target
from hangdoc.evidence.locks import Holding, Locks, LockWait
from hangdoc.introspect.attributes import attributes, levels
from hangdoc.introspect.interpreter import lookup
from hangdoc.introspect.memory import Memory, Unreadable
from hangdoc.introspect.module_globals import MODULE_DICT, Place, Places
from hangdoc.introspect.objects import Objects
from hangdoc.introspect.source_files import Sources
from hangdoc.introspect.source_records import Guards, guards
from hangdoc.system import procfs
from probes import Observation, Request, Tier

_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
_WAIT, _PRIVATE = (0, 9), 0x80  # FUTEX_WAIT, FUTEX_WAIT_BITSET; FUTEX_PRIVATE_FLAG
_PTHREAD_TID = 720  # offset of `tid` in glibc's struct pthread on x86-64; the kernel clears it when the thread ends
_JOINED = 0xFFFFFFFF  # written there by pthread_join
_MAX_TABLES = 256  # of source files in the cache
_ACCESS = re.compile(r"[.\[]")  # attribute access or subscript
_INDEXED = re.compile(r"\[(\w+)\]$")
_FRAMES = 60  # of a thread, checked for held locks
_FOR_THREADS = ("wait", "join", "_wait_for_tstate_lock", "_shutdown")  # wait for an event or a thread
_NOT_ACQUIRED = ("/torch/", "/multiprocessing/")  # native waits, and semaphores shared with other processes


_Near = tuple[dict[int, tuple[bool, int]], Iterator[list[int]]]


@dataclass(slots=True)
class LocksProbe:
    """Caches the records of a process until one of its threads moves."""

    name: str = "locks"
    scope: str = "rank"
    tier: Tier = Tier.LOOK
    needs: str = "ptrace"
    record: type = Locks
    order: int = 40
    steady: bool = False
    _places: Places = field(default_factory=Places)
    _sources: Sources[bytes] = field(
        default_factory=lambda: Sources("hangdoc.introspect.parsers.lock_calls:table", _as_json, most=_MAX_TABLES)
    )
    _kept: dict[int, tuple[Any, Locks]] = field(default_factory=dict)  # by PID

    def observe(self, request: Request) -> Observation:
        found: dict[int, Locks] = {}
        watched = {target.pid for target in request.targets}
        self._kept = {pid: kept for pid, kept in self._kept.items() if pid in watched}
        for target in request.targets:
            stacks = (request.records or {}).get(target.pid, {}).get("stacks")
            if isinstance(stacks, Stacks):
                with suppress(Unreadable):  # ended: other probes report it
                    found[target.pid] = self._locks(target, stacks)
        return Observation(found)

    def _locks(self, target: Target, stacks: Stacks) -> Locks:
        threads = {s.tid: s for s in stacks.threads}
        semaphores = {tid: at for tid in threads if (at := _semaphore(target.pid, tid)) is not None}
        lines = [(s.tid, *((f.file, f.line) for f in s.frames if not f.native)) for s in stacks.threads]
        key = (target.start_ticks, semaphores, lines)
        if target.pid not in self._kept or self._kept[target.pid][0] != key:
            look = _Look(Memory(target.pid), target, self._places)
            waits = tuple(self._waits(look, [(threads[tid], at) for tid, at in semaphores.items()]))
            holdings = tuple(self._holdings(look, stacks.threads, waits)) if waits else ()
            self._kept[target.pid] = key, Locks(tuple(sorted(semaphores)), waits, holdings)
        return self._kept[target.pid][1]

    def _waits(self, look: _Look, sleeping: Sequence[tuple[Stack, int]]) -> Iterator[LockWait]:
        """Lock waits among the threads that sleep on a semaphore."""
        frames = {stack.tid: own[:4] for stack, _ in sleeping if (own := _acquiring(stack))}
        tables = self._tables(look.target.pid, (frame for own in frames.values() for frame in own))
        for stack, semaphore in sleeping:
            if stack.tid in frames and (wait := _wait(look, tables, stack.tid, frames[stack.tid], semaphore)):
                yield wait

    def _holdings(self, look: _Look, threads: Sequence[Stack], waits: Sequence[LockWait]) -> Iterator[Holding]:
        frames = [
            (stack.tid, frame)
            for stack in threads
            for frame in [inner for inner in stack.frames if not inner.native and "/torch/" not in inner.file][:_FRAMES]
        ]
        tables = self._tables(look.target.pid, (frame for _, frame in frames))
        for tid, frame in frames:
            for name in _guards(tables, frame).inside:
                for wait in waits:
                    found = look.is_lock(frame, name, wait, wait.tid == tid)
                    if found is not False:
                        where = (frame.function, frame.file, frame.line or 0)
                        yield Holding(tid, wait.semaphore, name, *where, found=bool(found))

    def _tables(self, pid: int, frames: Iterable[Frame]) -> dict[str, Any]:
        """Lock calls in the files of these frames, by file."""
        found, _ = self._sources.ask({pid: {frame.file: (0,) for frame in frames if frame.line}})
        return {file: json.loads(table) for (_, file, _), table in found.items()}


def _acquiring(stack: Stack) -> list[Frame]:
    """Python frames of a sleeping thread, if it may wait for a lock that its source acquires; else none."""
    frames = [frame for frame in stack.frames if not frame.native]
    elsewhere = not frames or any(part in frames[0].file for part in _NOT_ACQUIRED)
    if elsewhere or (frames[0].function in _FOR_THREADS and frames[0].file.endswith("threading.py")):
        return []
    return frames


def _wait(look: _Look, tables: Mapping[str, Any], tid: int, frames: Sequence[Frame], semaphore: int) -> LockWait | None:
    frame = frames[0]
    names = _guards(tables, frame).acquires
    if not names:
        return None
    user_names = next((named for other in frames if (named := _guards(tables, other).acquires)), names)
    for name in names:
        lock = look.lock(frame, name, semaphore)
        if lock is not None:
            return LockWait(tid, semaphore, user_names[0] if _library(frame.file) else name, True, *lock)
    return LockWait(tid, semaphore, names[0])


def _guards(tables: Mapping[str, Any], frame: Frame) -> Guards:
    table = tables.get(frame.file)
    return guards(table, frame.line) if table and frame.line else Guards((), ())


@dataclass(slots=True)
class _Look:
    """The memory of one process in one round."""

    memory: Memory
    target: Target
    places: Places
    known: dict[tuple[int, int, int | None], _Near] = field(
        default_factory=dict
    )  # locks near an object, as far as read
    place: Place | None = None  # once found: the search takes longer than all other reads

    def lock(self, frame: Frame, name: str, semaphore: int) -> tuple[bool, int | None] | None:
        """Whether the lock of that name is an RLock, and its owner; None: it has another semaphore."""
        root, place = self._root(frame, name), self._place()
        if root is None or place is None:
            return None
        named = self._attribute(root, name)
        # A Condition wraps its lock. If an attribute cannot be read by name, each lock that far from the root counts.
        hops = 1 + ("[" in name if named else len(_ACCESS.findall(name)))
        key = (named or root, hops, self._index(frame, name))
        if key not in self.known:
            self.known[key] = {}, levels(self.memory, place.interpreter, key[0], hops)
        locks, further = self.known[key]
        while semaphore not in locks and (level := next(further, None)) is not None:
            locks.update(self._locks(level if key[2] is None else self._items(level, key[2])))
        reentrant, owner = locks.get(semaphore, (None, 0))
        return None if reentrant is None else (reentrant, self._owner(owner) if reentrant else None)

    def _locks(self, addresses: Sequence[int]) -> Iterator[tuple[int, tuple[bool, int]]]:
        """Locks among these objects: semaphore, whether it is an RLock, and its owner's pthread_t."""
        for kind, head in Objects(self.memory).heads(addresses).values():
            if kind.name.rpartition(".")[2] in ("lock", "RLock"):
                semaphore, owner = struct.unpack_from("<2Q", head, 16)
                yield semaphore, ("RLock" in kind.name, owner)

    def _items(self, addresses: Sequence[int], index: int) -> list[int]:
        """Item `index` of each list (ob_item at 24) and tuple (items from 24) among them."""
        heads = Objects(self.memory).heads(addresses)
        items = {
            address + 24 if kind.name == "tuple" else int.from_bytes(head[24:32], "little")
            for address, (kind, head) in heads.items()
            if kind.name in ("tuple", "list") and index < int.from_bytes(head[16:24], "little")
        }
        words = self.memory.read_many([(start + 8 * index, 8) for start in sorted(items)])
        return [int.from_bytes(word, "little") for word in words if word]

    def _index(self, frame: Frame, name: str) -> int | None:
        """The index in `locks[2]`, or in `locks[i]` with a local variable `i`; None: no index, or no number."""
        found = _INDEXED.search(name)
        if found is None:
            return None
        local = next((v.number for v in frame.variables or () if v.name == found[1] and v.kind == "int"), None)
        return int(found[1]) if found[1].isdecimal() else int(local) if local is not None and local >= 0 else None

    def is_lock(self, frame: Frame, name: str, wait: LockWait, own: bool) -> bool | None:
        """Whether `name` is the lock in `wait`, a wait of the same thread (`own`) or of another.

        None: the lock could not be read, but the names match.
        """
        same_name = _last_name(name) == _last_name(wait.name)
        unknown_item = "[" in name and self._index(frame, name) is None  # some lock in a dict
        root = self._root(frame, name)
        if unknown_item or root is None or self._place() is None:
            return None if same_name and not (unknown_item and own) else False
        if _ACCESS.search(name) and not same_name and self._attribute(root, name) is None:
            return False
        return self.lock(frame, name, wait.semaphore) is not None

    def _attribute(self, root: int, name: str) -> int | None:
        """The object that a dotted name leads to from the object of its first part; None: not readable by name."""
        address = root
        for part in name.partition("[")[0].split(".")[1:]:
            place = self._place()
            try:
                found = attributes(self.memory, place.interpreter, address).get(part) if place else None
            except (Unreadable, struct.error):
                return None
            if found is None:
                return None
            address = found
        return address

    def _root(self, frame: Frame, name: str) -> int | None:
        """The address of the first part of a dotted name: a local variable, else a global one."""
        first = _ACCESS.split(name)[0]
        local = next((v.address for v in frame.variables or () if v.name == first), None)
        return local or self._global(frame.file, first)

    def _global(self, file: str, name: str) -> int | None:
        place = self._place()
        if place is None:
            return None
        try:
            parts = PurePath(file).with_suffix("").parts
            called = {".".join(parts[-n:]) for n in range(1, len(parts))} | {"__main__", "__mp_main__"}
            modules = lookup(self.memory, place.interpreter, place.modules(self.memory), called)
            for module in sorted(modules, key=lambda module_name: module_name.startswith("__")):
                namespace = self.memory.word(modules[module] + MODULE_DICT)
                if found := lookup(self.memory, place.interpreter, namespace, {name}):
                    return found[name]
        except Unreadable:
            pass
        return None

    def _place(self) -> Place | None:
        """Where `sys.modules` is; None: unknown interpreter, or not readable."""
        if self.place is None:
            with suppress(Unreadable):
                self.place = self.places.find((self.target.pid, self.target.start_ticks), self.memory)
        return self.place

    def _owner(self, pthread: int) -> int | None:
        """TID of this pthread_t; 0: the thread has ended; None: unknown layout of the C library."""
        data = self.memory.read_many([(pthread + _PTHREAD_TID, 4)])[0]
        tid = int.from_bytes(data, "little") if data else 0
        if tid == _JOINED:
            return 0
        return tid if not tid or os.path.exists(f"/proc/{self.target.pid}/task/{tid}") else None


def _semaphore(pid: int, tid: int) -> int | None:
    """Futex address of a private wait without timeout: proc_pid_syscall(5). None: no such wait."""
    fields = (procfs.read(f"/proc/{pid}/task/{tid}/syscall") or b"").split()
    if len(fields) < 5 or fields[0] != str(_FUTEX).encode():
        return None
    address, operation, timeout = int(fields[1], 16), int(fields[2], 16), int(fields[4], 16)
    return address if operation & 0x7F in _WAIT and operation & _PRIVATE and not timeout else None


def _as_json(answer: Any) -> Iterator[tuple[int, bytes]]:
    """The table of a file, kept as JSON: few are read twice, and a hostile one is 100 times larger unpacked."""
    yield 0, json.dumps(answer).encode()


def _last_name(name: str) -> str:
    """The last name in an expression: `locks` in `self.locks[i]`."""
    return name.partition("[")[0].rpartition(".")[2]


def _library(file: str) -> bool:
    return "/lib/python3" in file


PROBE = LocksProbe()
