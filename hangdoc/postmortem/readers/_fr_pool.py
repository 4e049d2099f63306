"""Digests Flight Recorder pickles in confined child processes, several at a time and ahead of their reader."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
import weakref
from array import array
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec.json import decode
from msgspec.structs import replace

from hangdoc.evidence import FlightRecorder, RecordedCall
from hangdoc.postmortem.readers import Source, _fr_worker
from hangdoc.postmortem.readers._fr_trace import MALFORMED, Entries, SharedParts, group_name, label, trace_header
from hangdoc.postmortem.readers._safe_pickle import pipes, stop
from hangdoc.system import input_limits

CPU_S, CPU_BYTES_S = 2, 20 << 20  # CPU seconds to digest a pickle, plus one per CPU_BYTES_S bytes
MAX_WORKERS = 2
WAITED_S = 1.0  # for dumps that are not digested yet, until a second child process is worth its 16 MiB
MAX_AHEAD = 256  # dumps that are digested before they are read,
MAX_AHEAD_BYTES = 64 << 20  # and their size on disk
MAX_ALIKE = 1024  # lists of calls that are kept, for ranks that made the same ones
MAX_ANSWER = 16  # times the size of the pickle, plus
ANSWER_FLOOR = 1 << 20  # bytes
SWITCH_S = 0.0005  # between Python threads, instead of 0.005: else those that feed the children wait for the reader
PROGRAM = Path(_fr_worker.__file__)
PROTOCOL = b"\x80"  # first byte of a pickle of protocol 2 or newer

Jobs = queue.SimpleQueue["tuple[Source, Future[Digested | None]] | None"]  # None: no more


@dataclass(frozen=True, slots=True)
class Digested:
    """A dump that was intact: its record, and how many older entries were left out."""

    record: FlightRecorder
    left_out: int


@dataclass(slots=True)
class _Worker:
    """A child process, and all calls and stacks that it has answered, by number."""

    process: subprocess.Popen[bytes]
    calls: list[tuple[RecordedCall, int]] = field(default_factory=list)  # without and with number of its group
    stacks: list[list[Any]] = field(default_factory=list)
    # By the numbers of its calls and the names of their groups: ranks of the same groups make the same calls.
    entries: dict[tuple[bytes, tuple[str, ...]], tuple[RecordedCall, ...]] = field(default_factory=dict)

    @classmethod
    def started(cls) -> _Worker:
        pipe = subprocess.PIPE
        return cls(
            subprocess.Popen(
                [sys.executable, "-I", "-S", str(PROGRAM)],
                stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, start_new_session=True,
            )
        )  # fmt: skip

    def ask(self, data: bytes, packed: int) -> tuple[bytes, bytes]:
        """The answer. Raises OSError if the process has ended, or answers more than a dump can hold."""
        requests, answers = pipes(self.process)
        memory = input_limits.most_memory(packed, len(data))
        requests.write(_fr_worker.REQUEST.pack(len(data), memory, CPU_S + len(data) // CPU_BYTES_S))
        requests.write(data)
        requests.flush()
        header = answers.read(_fr_worker.ANSWER.size)
        if len(header) < _fr_worker.ANSWER.size:
            raise OSError("it has ended")
        lengths = _fr_worker.ANSWER.unpack(header)
        if sum(lengths) > MAX_ANSWER * len(data) + ANSWER_FLOOR:
            raise OSError("its answer is too long")
        meta, indices = (answers.read(length) for length in lengths)
        return meta, indices


class DumpPool:
    """Digests dumps in child processes, each fed by a thread. Both end when no dump is left, or with the pool."""

    def __init__(self, shared: SharedParts) -> None:
        self.shared = shared
        self._jobs: Jobs = queue.SimpleQueue()
        self._ahead: dict[Path, tuple[Source, Future[Digested | None]]] = {}
        self._making = threading.Lock()  # one answer at a time becomes records
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads = 0
        self._waited_s = 0.0
        self._switch_s = sys.getswitchinterval()
        weakref.finalize(self, _end, self._jobs, self._processes)

    def look_ahead(self, source: Source, following: Iterable[Source]) -> None:
        """Start to digest a source and those that come next, up to the limits and the first that is no pickle."""
        size = sum(one.size for one, _ in self._ahead.values())
        for one in chain([source], following):
            if one.path in self._ahead:
                continue
            if len(self._ahead) >= MAX_AHEAD or size > MAX_AHEAD_BYTES or one.head[:1] != PROTOCOL:
                return
            one.drop_head()
            self._submit(one)
            size += one.size

    def digested(self, source: Source) -> Digested | None:
        """The record of a dump; None: it is no intact dump, or the child process did not survive it."""
        if source.path not in self._ahead:
            self._submit(source)
        future = self._ahead[source.path][1]
        began_s = time.monotonic()
        found = future.result()
        self._waited_s += time.monotonic() - began_s
        del self._ahead[source.path]
        if not self._ahead:
            self._rest()
        return found

    def _rest(self) -> None:
        """End the threads and their child processes, of 16 MiB each; another dump starts new ones."""
        for _ in range(self._threads):
            self._jobs.put(None)
        self._threads = 0
        sys.setswitchinterval(self._switch_s)

    def _submit(self, source: Source) -> None:
        future: Future[Digested | None] = Future()
        self._ahead[source.path] = source, future
        self._jobs.put((source, future))
        wanted = MAX_WORKERS if self._waited_s > WAITED_S else 1
        if self._threads < min(wanted, os.cpu_count() or 1):
            self._threads += 1
            sys.setswitchinterval(SWITCH_S)
            # The thread must not keep the pool alive.
            arguments = (self._jobs, self._processes, self._making, self.shared)
            threading.Thread(target=_work, args=arguments, daemon=True).start()


def _end(jobs: Jobs, processes: list[subprocess.Popen[bytes]]) -> None:
    """End the threads and child processes of a pool."""
    for _ in range(MAX_WORKERS):
        jobs.put(None)
    for process in tuple(processes):
        stop(process)


def _work(jobs: Jobs, processes: list[subprocess.Popen[bytes]], making: threading.Lock, shared: SharedParts) -> None:
    """Feed one child process; start another if it ends."""
    worker: _Worker | None = None
    while job := jobs.get():
        source, future = job
        found: Digested | None = None
        try:
            data = _content(source)
            if data is not None:
                if worker is None:
                    worker = _Worker.started()
                    processes.append(worker.process)
                meta, indices = worker.ask(data, source.size)
                with making:
                    found = _record(worker, meta, indices, shared) if meta else None
        except (OSError, MemoryError, *MALFORMED):
            found = None
        if worker is not None and (found is None or len(worker.calls) > _fr_worker.MAX_KNOWN):
            processes.remove(worker.process)
            stop(worker.process)
            worker = None
        future.set_result(found)
    if worker is not None:
        processes.remove(worker.process)
        stop(worker.process)


def _content(source: Source) -> bytes | None:
    most = input_limits.most_whole(source.size)
    with source.open() as file:
        data = file.read(most + 1)
    return data if len(data) <= most else None


def _record(worker: _Worker, meta: bytes, indices: bytes, shared: SharedParts) -> Digested:
    """The record of an answer. Raises ValueError or one of MALFORMED if the dump needs the careful path."""
    answer: Mapping[str, Any] = decode(meta)
    names = ("name", "filename", "line")
    worker.stacks += [[dict(zip(names, frame, strict=True)) for frame in stack] for stack in answer["stacks"]]
    entries = Entries(shared)
    for raw in answer["calls"]:
        entry = dict(zip(_fr_worker.FIELDS, raw, strict=True))
        entry["frames"] = worker.stacks[entry["frames"]]
        worker.calls.append((entries.call(entry, entry["thread"]), entry["group"]))
    numbers = array("I", indices)
    groups = tuple([group_name(*group) for group in answer["groups"]])
    indices = shared.one(indices)
    calls = worker.entries.get((indices, groups))
    if calls is None:
        if len(worker.entries) >= MAX_ALIKE:
            worker.entries.clear()
        made = [entries.in_group(call, groups[group]) for call, group in map(worker.calls.__getitem__, numbers)]
        calls = worker.entries[indices, groups] = tuple(entries.closed(made))
    labels: dict[str, str] = {}
    for name, (group, _) in zip(groups, answer["groups"], strict=True):
        labels.setdefault(name, label(group))
    record = replace(
        trace_header(answer["head"], shared),
        entries=calls,
        labels=labels,
        begun=tuple([time / 1e9 for time in answer["times"]]),
        missed=max(0, answer["first"] or 0),
    )
    return Digested(record, answer["count"] - len(numbers))
