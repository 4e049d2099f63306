"""The child process that digests Flight Recorder pickles: `python -I -S _fr_worker.py`, standard library only.

It loads each pickle under kernel limits, without classes or persistent objects, and answers with what is new in it:
most ranks of a job make the same calls and differ only in times, threads and names of groups. A pickle that is damaged
in any way, or that the child does not survive, is left to the careful path of `flight_recorder`.

A request is a header (bytes of the pickle, bytes of memory, CPU seconds), then the pickle. An answer is a header (bytes
of JSON, bytes of indices), then an object with the fields of `Digest.answer`, then one unsigned integer for each entry:
the number of its call among all calls that this process has answered. Two zeros: not digested.

A call names its group and thread by a number in order of their appearance in the dump, so that the calls of groups with
other names are the same calls. An answer lists the groups of its dump.
"""

from __future__ import annotations

import gc
import io
import json
import marshal
import pickle
import resource
import struct
import sys
import threading
from array import array
from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any, NamedTuple, NoReturn

REQUEST, ANSWER = struct.Struct("<QQQ"), struct.Struct("<QQ")
MAX_ENTRIES = 100_000  # of a dump, the newest ones: torch's buffer has 2,000 by default
MAX_FRAMES = 64  # of a stack
MAX_TENSORS, MAX_DIMS = 512, 32  # of a call
MAX_KNOWN = 400_000  # calls remembered; beyond that, this process starts over
LONGEST = 1200  # characters of a text
TIMED_ENTRIES = 64  # newest entries whose times are answered
HEAD = ("version", "comm_lib_version", "nccl_version", "pg_config", "pg_status")
# The fields of a call that hangdoc reads, in the order of an answer; the last three are numbers.
VALUES = (
    "collective_seq_id", "p2p_seq_id", "profiling_name", "state", "retired", "timeout_ms", "is_p2p",
    "input_sizes", "output_sizes", "input_dtypes", "output_dtypes",
)  # fmt: skip
FIELDS = (*VALUES, "frames", "thread", "group")
GROUP = ("process_group", "pg_id")  # the fields of an entry that name its group
_IN_ENTRY = (*VALUES, "frames", "thread_id", *GROUP)
_READ = itemgetter(*_IN_ENTRY)  # of an entry of version 2.10
_THREAD_IDS = (int, str, type(None))

Group = tuple[Any, Any]  # its name and description, and its number, as an entry has them


class Plain(pickle.Unpickler):
    """Builds plain builtins only."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise ValueError(module, name)


class Digest:
    """The calls and stacks that were answered before, by content."""

    def __init__(self) -> None:
        self.numbers: dict[bytes, int] = {}  # content of a call -> its number
        self.stacks: dict[Any, int] = {}
        self.models = Models()
        self.new_calls: list[tuple[Any, ...]] = []
        self.new_stacks: list[Any] = []

    def answer(self, data: bytes) -> tuple[dict[str, Any], array[int]]:
        """What is new in a pickle, and the number of each entry's call. Raises Exception if it is no intact dump."""
        self.new_calls, self.new_stacks = [], []
        head, body = split(data)
        found = self.models.find(head[1], body) if head else None
        if head is not None and found is not None:
            model, names = found
            groups = [(_renamed(group, names), number) for group, number in model.groups]
            times = [int.from_bytes(body[at : at + 8], "little") for at in model.created]
            return self._made(head[0], model.first, times, model.total, groups, model.indices)
        trace = Plain(io.BytesIO(data)).load()
        raw = trace["entries"][-MAX_ENTRIES:]
        seen = Groups()
        indices = array("I", self._entries(raw, seen))
        newest = [entry.get("time_created_ns") for entry in raw[-TIMED_ENTRIES:]]
        times = [time for time in newest if type(time) is int and 0 < time < 2**63]
        first = raw[0].get("record_id") if raw else None
        if head is not None and len(raw) == len(trace["entries"]):
            self.models.add(head[1], body, indices, tuple(seen.found), first, TIMED_ENTRIES)
        return self._made(trace, first, times, len(trace["entries"]), seen.found, indices)

    def _made(
        self,
        trace: Mapping[str, Any],
        first: Any,
        times: list[int],
        count: int,
        groups: list[Group],
        indices: array[int],
    ) -> tuple[dict[str, Any], array[int]]:
        head = {name: _named(trace[name]) for name in HEAD if name in trace}
        more = {"first": first if type(first) is int else None, "times": times, "count": count}
        new = {"groups": [*map(_clipped, groups)], "calls": self.new_calls, "stacks": self.new_stacks}
        return {"head": head, **more, **new}, indices

    def _entries(self, raw: list[Any], groups: Groups) -> Iterator[int]:
        threads: dict[Any, int | None] = {None: None}
        stacks: dict[tuple[int, ...], int] = {}  # by the ids of the trace's frame objects
        numbers = self.numbers
        for entry in raw:
            try:
                *values, frames, thread_id, group, group_number = _READ(entry)
            except KeyError:  # an older version, and before 2.1 there was one number for all operations
                number = entry.get("seq_id")
                older = {"collective_seq_id": number, "p2p_seq_id": number, **entry}
                *values, frames, thread_id, group, group_number = map(older.get, _IN_ENTRY)
            if type(thread_id) not in _THREAD_IDS:
                raise TypeError
            thread = threads.setdefault(thread_id, len(threads) - 1)
            at = tuple(map(id, frames or ()))
            stack = stacks.get(at)
            if stack is None:
                stack = stacks[at] = self._stack((frames or ())[:MAX_FRAMES])
            of = groups.number(group, group_number)
            key = marshal.dumps((values, stack, thread, of), 2)  # faster than any tuple of plain values
            known = numbers.get(key)
            if known is None:
                known = numbers[key] = len(numbers)
                self.new_calls.append((*map(_clipped, values), stack, thread, of))
            yield known

    def _stack(self, frames: Any) -> int:
        content = tuple([(frame["name"], frame["filename"], frame["line"]) for frame in frames])
        number = self.stacks.get(content)
        if number is None:
            number = self.stacks[content] = len(self.stacks)
            self.new_stacks.append([tuple(map(_clipped, frame)) for frame in content])
        return number


class Groups:
    """The groups of a dump, numbered in order of appearance."""

    def __init__(self) -> None:
        self.found: list[Group] = []
        self._numbers: dict[bytes, int] = {}  # by content

    def number(self, group: Any, number: Any) -> int:
        key = marshal.dumps((group, number), 2)
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.found)
            self.found.append((group, number))
        return found


def _renamed(group: Any, names: Mapping[str, str]) -> Any:
    """The name and description of the same group in another dump."""
    name = _name(group)
    return (names[name], *group[1:]) if name is not None and name in names else group


def _name(group: Any) -> str | None:
    name = group[0] if group else None
    return name if type(name) is str else None


def _clipped(value: Any) -> Any:
    """A value of a call with its texts and lists shortened; sizes are lists of lists of integers."""
    if type(value) is str:
        return value[:LONGEST]
    if type(value) in (list, tuple):
        return [_clipped(part) for part in value[: MAX_TENSORS if type(value[:1]) is list else MAX_DIMS]]
    return value


def _named(value: Any) -> Any:
    """A mapping with the keys that are text; JSON would turn numbers into text."""
    return {name: part for name, part in value.items() if type(name) is str} if type(value) is dict else value


# --- dumps whose bytes equal those of an earlier one ----------------------------------------------

ENTRIES = b"X\x07\x00\x00\x00entries"  # torch writes them last
MAX_HEAD = 1 << 20  # bytes before the entries
MAX_BYTES = 32 << 20  # of a dump kept as a model
MAX_MODELS = 64
MAX_UNUSED = 3  # models made without a single match, then no more are made: each costs as much as twenty dumps
_PER_RANK = frozenset({
    "time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns", "duration_ms", "thread_id"
})  # fmt: skip
_NO_ARGUMENT = b"]})(Nueat\x85\x86\x87\x88\x89"  # opcodes without an argument
_ARGUMENT = {**dict.fromkeys(_NO_ARGUMENT, 0), 0x4B: 1, 0x4D: 2, 0x4A: 4, 0x47: 8}  # opcode -> bytes of its argument
_PUT, _GET = {0x71: 1, 0x72: 4}, {0x68: 1, 0x6A: 4}
_TEXT, _LONG1, _FLOAT = 0x58, 0x8A, 0x47
_CREATED = "time_created_ns"

Memo = Mapping[int, Any]


def split(data: bytes) -> tuple[tuple[Mapping[str, Any], Memo] | None, bytes]:
    """The fields before the entries, with their pickle memo, and the bytes from the entries on."""
    at = data.find(ENTRIES)
    if not 0 <= at <= MAX_HEAD:
        return None, b""
    reader = Plain(io.BytesIO(data[:at] + b"u."))
    try:
        head = reader.load()
    except Exception:
        return None, b""
    return ((head, reader.memo.copy()), data[at:]) if isinstance(head, dict) else (None, b"")


class Model(NamedTuple):
    """The entries of one dump."""

    memo: Memo  # values before the entries, by memo number
    body: int  # bytes of the entries, as an integer
    mask: int  # bits that must be equal
    used: frozenset[int]  # memo numbers that the entries use
    created: tuple[int, ...]  # offsets of the newest creation times in the body
    indices: array[int]
    groups: tuple[Group, ...]  # in order of appearance
    names: frozenset[str]  # of the groups
    first: Any  # record_id of the first entry
    total: int  # entries of the dump


class Models:
    """The models of a job.

    Entries are equal if their bytes are, except times and thread ids (which do not change how the rest is parsed), and
    if the memo values that the entries use are equal, except names of process groups, which are mapped.
    """

    def __init__(self) -> None:
        self.models: dict[int, list[Model]] = {}  # by the length of the body
        self.hits = self.count = 0

    def find(self, memo: Memo, body: bytes) -> tuple[Model, Mapping[str, str]] | None:
        """The model with equal entries, and its group names mapped to the names in this dump."""
        models = self.models.get(len(body), ())
        number = int.from_bytes(body, "little") if models else 0
        for model in models:
            if not (number ^ model.body) & model.mask:
                names = _group_names(model, memo)
                if names is not None:
                    self.hits += 1
                    return model, names
        return None

    def add(
        self, memo: Memo, body: bytes, indices: array[int], groups: tuple[Group, ...], first: Any, newest: int
    ) -> None:
        """Keep a loaded dump as a model."""
        if len(body) > MAX_BYTES or self.count >= (MAX_MODELS if self.hits else MAX_UNUSED):
            return
        layout = _layout(body, memo)
        if layout is None:
            return
        own, used, created = layout
        mask = bytearray(b"\xff" * len(body))
        for start, end in own:
            mask[start:end] = bytes(end - start)
        bodies = int.from_bytes(body, "little"), int.from_bytes(mask, "little")
        named = frozenset(name for group, _ in groups if (name := _name(group)) is not None)
        model = Model(memo, *bodies, used, tuple(created[-newest:]), indices, groups, named, first, len(indices))
        self.models.setdefault(len(body), []).append(model)
        self.count += 1


def _group_names(model: Model, memo: Memo) -> dict[str, str] | None:
    """Group name in the model -> name in this dump; None: the entries use other values that differ."""
    names: dict[str, str] = {}
    for number in model.used:
        there, here = model.memo.get(number), memo.get(number)
        if not isinstance(here, str) or not isinstance(there, str):
            return None
        if here != there:
            if there not in model.names:
                return None
            names[there] = here
    kept = model.names - names.keys()
    return names if len({*names.values(), *kept}) == len(names) + len(kept) else None


def _layout(body: bytes, memo: Memo) -> tuple[list[tuple[int, int]], frozenset[int], list[int]] | None:
    """Spans of per-rank values, used memo numbers, and offsets of creation times; None: an unknown opcode."""
    own: list[tuple[int, int]] = []
    used: set[int] = set()
    created: list[int] = []
    names: dict[int, Any] = {}
    last: Any = None  # last string: the key, if a value follows
    for op, start, end in _tokens(body):
        if op in _PUT:
            names[int.from_bytes(body[start:end], "little")] = last
            continue
        if op in _GET:
            number = int.from_bytes(body[start:end], "little")
            if number not in names:
                used.add(number)
            last = names.get(number, memo.get(number))
            continue
        if isinstance(last, str) and last in _PER_RANK and op in (_LONG1, _FLOAT, _TEXT):
            own.append((start, end))
            if last == _CREATED and op == _LONG1 and end - start == 8:
                created.append(start)
        last = body[start:end].decode("utf-8", "replace") if op == _TEXT else None
        if op < 0:
            return None
    return own, frozenset(used), created


def _tokens(body: bytes) -> Iterator[tuple[int, int, int]]:
    """(opcode, start, end) of each argument in the body; opcode -1: unknown."""
    at, size = 0, len(body)
    while at < size:
        op = body[at]
        at += 1
        length = _ARGUMENT.get(op)
        if length is None:
            if op == _TEXT:
                length = int.from_bytes(body[at : at + 4], "little")
                at += 4
            elif op == _LONG1:
                length = body[at] if at < size else 0
                at += 1
            elif op in _PUT or op in _GET:
                length = _PUT.get(op) or _GET[op]
            else:
                length, op = 0, -1 if op != 0x2E or at != size else 0x2E
        yield op, at, at + length
        at += length


# --- the process ----------------------------------------------------------------------------------


def serve() -> None:
    """Answer requests until the input ends."""
    digest = Digest()
    while header := sys.stdin.buffer.read(REQUEST.size):
        size, memory, cpu_s = REQUEST.unpack(header)
        data = sys.stdin.buffer.read(size)
        limit(memory, cpu_s)
        gc.disable()  # plain values are no garbage
        meta, indices = b"", b""
        try:
            answer, numbers = digest.answer(data)
            meta, indices = json.dumps(answer).encode(), numbers.tobytes()
        except Exception:  # whatever a hostile or damaged pickle leads to
            meta, indices = b"", b""
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        answer = numbers = data = None  # type: ignore[assignment]
        gc.enable()
        sys.stdout.buffer.write(ANSWER.pack(len(meta), len(indices)) + meta + indices)
        sys.stdout.buffer.flush()
        if not meta or len(digest.numbers) > MAX_KNOWN:
            return  # the next request gets a new process, whose numbers start again


def limit(memory: int, cpu_s: int) -> None:
    """At most so much more memory (bytes) and CPU time (s) until the next request: getrlimit(2)."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used_s = int(usage.ru_utime + usage.ru_stime)
    resource.setrlimit(resource.RLIMIT_CPU, (used_s + cpu_s + 1, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + memory, resource.RLIM_INFINITY))


def main() -> None:
    # A stack smaller than any main thread's: nested tuples as keys are hashed by recursion in C.
    threading.stack_size(2 << 20)
    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
