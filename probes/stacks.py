"""Probe `stacks`: the Python threads of every rank, with the local variables of their frames, by py-spy.

Nonblocking: a running rank is never paused. Native frames need a pause, so only a rank that has stopped gets them. A
LOOK reuses the previous stacks of a rank if none of its threads has run since. Where an event loop of asyncio waits,
the coroutines of its main task are shown above it, as if it had called them. Dataloader and pool workers are dumped as
well when their rank waits for them.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from subprocess import Popen
from typing import Any

from hangdoc.evidence import Frame, Helper, Io, Process, Stack, Stacks, Target, Tensor, Unseen, Variable
from hangdoc.introspect import coroutines, local_variables, py_spy
from hangdoc.introspect.frames import main_stack, short_name
from hangdoc.introspect.memory import Memory, Unreadable
from hangdoc.introspect.module_globals import Globals
from hangdoc.introspect.objects import Objects, Seen
from hangdoc.introspect.py_spy import Dump, NativeDumps
from hangdoc.introspect.tensors import read_tensors
from hangdoc.introspect.unchanged_stacks import UnchangedStacks
from hangdoc.system import procfs, programs
from probes import Observation, Request, Tier

_WORKERS = 8  # py-spy processes in parallel; a dump takes 5-12 ms of CPU
_MAX_HELPERS = 8  # dumped for a rank in an EXAMINE
_THREADS = 512  # of a process: the main thread and the oldest others
_VARIABLES = 40  # of a frame
_HEAD, _TAIL = 140, 57  # characters kept of a long native function name
_PTHREAD_TID = 720  # offset of `tid` in glibc's struct pthread on x86-64; the value is checked
LONG_S = 1.0  # a dump that fails sooner costs little
# After 1, 2, ... slow failures in a row; the first may be due to a busy host.
PAUSES_S = (0.0, 5.0, 10.0, 20.0, 40.0, 60.0)
_LOOK_HELPERS = 4  # dumped for a rank in a LOOK: each costs 10 ms of CPU
# "file:function" of frames in which a rank waits for its helpers.
_HELPER_WAITS = re.compile(
    r"torch/utils/data/|/multiprocess(ing)?/((pool|queues|connection|synchronize|managers)\.py:|process\.py:join$)"
    r"|concurrent/futures/|/joblib/|/loky/|/datasets/|/webdataset/|subprocess\.py:"
)
_LOOP = re.compile(r"/lib/python3[^/]*/(?:selectors|asyncio/base_events)\.py$")
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*[a-z]?")
_SERVICE = re.compile(r"resource_tracker|semaphore_tracker|forkserver")
_ORDER = {"lock": 1, "semaphore": 3, "poll": 4, "file": 2, "time": 2}  # by what they sleep in, likely culprits first

ProcessId = tuple[int, int]  # PID and start time
Known = Mapping[int, tuple[Seen, Tensor | None]]  # by address


class StacksProbe:
    """Caches stacks of idle processes, native dumps and failures."""

    name = "stacks"
    scope = "rank"
    tier = Tier.LOOK
    needs = "ptrace"
    record = Stacks
    order = 10
    steady = False

    def __init__(self) -> None:
        self._globals = Globals()
        self._natives = NativeDumps()
        self._unchanged = UnchangedStacks()
        self._failing = Backoff()
        self._left_out: dict[int, int] = {}  # threads left out, by PID
        self._stuck: dict[int, Popen[bytes]] = {}

    def observe(self, request: Request) -> Observation:
        if not request.targets:
            return Observation({})
        binary = programs.py_spy()
        if binary is None:
            return Observation({}, unseen=(Unseen(self.name, "py-spy is missing: `pip install py-spy`"),))
        self._stuck = {pid: dump for pid, dump in self._stuck.items() if dump.poll() is None}
        spy, examine = py_spy.PySpy(binary, self._stuck), request.tier >= Tier.EXAMINE
        helpers = {t.pid: choose_helpers(t, request, _MAX_HELPERS) for t in request.targets}
        same = (
            {} if examine else {t.pid: stacks for t in request.targets if (stacks := self._same(t, request, helpers))}
        )
        processes = {t.pid: (t.pid, t.start_ticks) for t in request.targets}
        skipped = (
            {}
            if examine
            else {pid: failed for pid, process in processes.items() if (failed := self._failing.skip_reason(process))}
        )
        ranks = [pid for pid in processes if pid not in same and pid not in skipped]
        known: dict[int, Known] = {}
        took_s: dict[int, float] = {}

        def dump_of(pid: int) -> Dump:
            began_s = time.monotonic()
            try:
                whole = spy.dump(pid)
            finally:
                took_s[pid] = time.monotonic() - began_s
            # Beyond is bounded already.
            dump = whole if isinstance(whole, py_spy.Beyond) else _with_coroutines(pid, _oldest(whole))
            self._left_out[pid] = len(whole) - len(dump)
            known[pid] = _known(pid, dump)  # at once: a running rank soon reuses the addresses
            return dump

        dumps = py_spy.in_parallel(spy, dump_of, [*ranks, *(p for some in helpers.values() for p in some)], _WORKERS)
        for pid in ranks:
            self._failing.note(processes[pid], took_s.get(pid, 0.0), dumps[pid])
        dumps |= skipped
        still = [t.pid for t in request.targets if examine and t.pid in request.still]
        still = [t.pid for t in request.targets if t.pid in still and not waits_for_storage(t, request)]
        still = [pid for pid in still if not isinstance(dumps[pid], py_spy.Beyond)]
        natives = self._natives.take(spy, still, dumps)
        self._globals.keep(set(processes.values()))
        self._failing.keep(set(processes.values()))
        by_pid: dict[int, Stacks] = dict(same)
        unseen: list[Unseen] = []
        for target in (target for target in request.targets if target.pid not in same):
            native, dump = natives.get(target.pid), dumps.get(target.pid)
            native = _with_coroutines(target.pid, native) if isinstance(native, list) else native
            best = native if isinstance(native, list) else dump
            if isinstance(best, list):
                seen = _known(target.pid, best) if best is native else known[target.pid]
                children = tuple(
                    (pid, _threads(pid, helper_dump, known[pid]))
                    for pid in helpers[target.pid]
                    if isinstance(helper_dump := dumps.get(pid), list)
                )
                python, variables = self._globals.read(target.pid, target.start_ticks)
                threads = _threads(target.pid, best, seen)
                by_pid[target.pid] = Stacks(threads, best is native, python, variables, children)
                if isinstance(best, py_spy.Beyond):
                    unseen.append(_unseen(target, best.why))
                if isinstance(native, Exception):
                    unseen.append(_unseen(target, f"no native frames: {native}"))
            else:
                unseen.append(_unseen(target, str(best)))
        self._left_out = {pid: count for pid, count in self._left_out.items() if count and pid in by_pid}
        for target in request.targets:
            if count := self._left_out.get(target.pid):
                why = f"it has {_THREADS + count} Python threads; only {_THREADS} are shown"
                unseen.append(_unseen(target, why))
        self._unchanged.keep(request.targets, lambda target: _read(target, request, by_pid))
        return Observation(by_pid, unseen=tuple(unseen))

    def _same(self, target: Target, request: Request, helpers: Mapping[int, Sequence[int]]) -> Stacks | None:
        """The previous stacks, if they cannot have changed and no helpers are to be dumped."""
        return None if helpers[target.pid] else self._unchanged.of(target, _process(target, request))


def _read(target: Target, request: Request, by_pid: Mapping[int, Stacks]) -> tuple[object, Stacks] | None:
    """A rank's `cpu` record and stacks; None: nothing to reuse, as its helpers or native frames were read too."""
    stacks = by_pid.get(target.pid)
    return None if stacks is None or stacks.native or stacks.children else (_process(target, request), stacks)


def _process(target: Target, request: Request) -> object:
    return (request.records or {}).get(target.pid, {}).get("cpu")


def _unseen(target: Target, why: str) -> Unseen:
    return Unseen("stacks", why, rank=target.rank, pid=target.pid, host=target.host)


def _oldest(dump: Dump) -> Dump:
    """The main thread and the oldest others, in py-spy's order: newest first."""
    if len(dump) <= _THREADS:
        return dump
    main = [thread for thread in dump if thread["thread_name"] == "MainThread"][:1]
    return [*[thread for thread in dump if thread not in main][len(main) - _THREADS :], *main]


def _with_coroutines(pid: int, dump: Dump) -> Dump:
    """The dump with the coroutines that an event loop waits for, in front of the frames of the loop."""
    return [_awaiting(pid, thread) if _loops(thread) else thread for thread in dump]


def _loops(thread: Mapping[str, Any]) -> bool:
    """True if a thread is in an event loop of asyncio that waits for events."""
    python = [frame for frame in thread["frames"] if frame["module"] is None][:2]
    return [bool(_LOOP.search(frame["filename"])) for frame in python] == [True, True]


def _awaiting(pid: int, thread: Mapping[str, Any]) -> dict[str, Any]:
    frames = thread["frames"]
    tasks = (
        local["addr"]
        for frame in frames
        if frame["name"].rpartition(".")[2] == "run_until_complete"
        for local in frame["locals"] or ()
        if local["name"] == "future" and local["addr"]
    )
    at = next(number for number, frame in enumerate(frames) if frame["module"] is None)
    found = coroutines.awaiting(pid, task) if (task := next(tasks, None)) else []
    return {**thread, "frames": [*frames[:at], *found, *frames[at:]]}


def _known(pid: int, dump: Dump) -> Known:
    """The objects behind a dump's variables."""
    addresses = [
        local["addr"]
        for thread in dump
        for frame in thread["frames"]
        for local in frame["locals"] or ()
        if local["addr"]
    ]
    return look(Memory(pid), addresses)


def _threads(pid: int, dump: Dump, known: Known) -> tuple[Stack, ...]:
    """py-spy's JSON as records; variables gain values, lengths and tensors from the process's memory."""
    memory, tasks = Memory(pid), _tasks(pid)
    return tuple(
        Stack(
            tid=thread["os_thread_id"] or _tid(memory, thread["thread_id"], tasks),
            name=thread["thread_name"],
            frames=tuple(_frame(frame, known) for frame in thread["frames"]),
            holds_gil=bool(thread["owns_gil"]),
            active=bool(thread["active"]),
            left_out=thread.get("left_out", 0),
        )
        for thread in dump
    )


def look(memory: Memory, addresses: Iterable[int]) -> Known:
    """The objects at `addresses`; whatever is not or no longer an object is left out. Never raises."""
    objects = Objects(memory)
    try:
        seen = objects.describe(addresses)
        tensors = read_tensors(memory, seen)
    except Unreadable:
        return {}
    return {address: (item, tensors.get(address)) for address, item in seen.items()}


def _frame(frame: Mapping[str, Any], known: Known) -> Frame:
    if frame["module"] is not None:
        short = (frame["filename"] or "").rpartition("/")[2]
        return Frame(_middle(frame["name"]), frame["module"], frame["line"] or None, short, native=True)
    variables = frame["locals"]
    return Frame(
        # From CPython 3.11 on py-spy may show the qualified name; rules must not depend on the version.
        function=frame["name"].rpartition(".")[2],
        file=frame["filename"],
        line=frame["line"] or None,
        short=short_name(frame["filename"]),
        # py-spy shows no module variables: unknown, not empty.
        variables=None if variables is None or frame["name"] == "<module>" else _variables(variables, known),
    )


def _variables(variables: Sequence[Mapping[str, Any]], known: Known) -> tuple[Variable, ...]:
    kept = [v for v in variables if local_variables.is_data(v["name"], v["repr"] or "")][:_VARIABLES]
    return tuple(
        local_variables.from_text(
            v["name"], v["repr"] or "", v["addr"] or None, bool(v["arg"]), *known.get(v["addr"], (None, None))
        )
        for v in kept
    )


def _middle(name: str) -> str:
    """A native function's name without the middle of long template arguments."""
    return name if len(name) <= _HEAD + 3 + _TAIL else f"{name[:_HEAD]}...{name[-_TAIL:]}"


def _tasks(pid: int) -> frozenset[int]:
    try:
        return frozenset(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return frozenset()


def _tid(memory: Memory, pthread: int, tasks: frozenset[int]) -> int:
    """TID of a pthread_t, which py-spy does not show for CPython 3.10; if unknown, the pthread_t itself."""
    try:
        tid = int.from_bytes(memory.read(pthread + _PTHREAD_TID, 4), "little")
    except Unreadable:
        return pthread
    return tid if tid in tasks else pthread


# --- helpers --------------------------------------------------------------------------------------


def choose_helpers(target: Target, request: Request, most: int) -> Sequence[int]:
    """PIDs of the Python helpers to dump; none in a LOOK unless the rank waited for them in the previous round."""
    if request.tier < Tier.EXAMINE and not _waits_for_helpers(target.pid, request):
        return ()
    records = (request.records or {}).get(target.pid, {})
    process, io = records.get("cpu"), records.get("io")
    children = (
        [c.pid for c in process.children if c.state not in "ZX" and not _SERVICE.search(" ".join(c.command))]
        if (isinstance(process, Process))
        else target.children
    )
    helpers = {helper.pid: helper for helper in io.helpers} if isinstance(io, Io) else {}
    chosen = sorted((pid for pid in children if _is_python(pid)), key=lambda pid: (_order(helpers.get(pid)), pid))
    return chosen[: most if request.tier >= Tier.EXAMINE else _LOOK_HELPERS]


def waits_for_storage(target: Target, request: Request) -> bool:
    """True if a thread of the rank is blocked on storage: it cannot be paused before the storage answers."""
    io = (request.records or {}).get(target.pid, {}).get("io")
    calls = io.calls if isinstance(io, Io) else ()
    return any(call.pid == target.pid and (call.state == "D" or call.kind in ("file", "unknown")) for call in calls)


def _waits_for_helpers(pid: int, request: Request) -> bool:
    """True if the rank's main thread waited for its dataloader or a pool in the previous round."""
    ranks = getattr(request.previous, "ranks", ())
    stacks = next((rank.records.get("stacks") for rank in ranks if rank.target.pid == pid), None)
    if not isinstance(stacks, Stacks) or not stacks.threads:
        return False
    main = main_stack(stacks.threads)
    return any(_HELPER_WAITS.search(f"{frame.file}:{frame.function}") for frame in main.frames if not frame.native)


def _order(helper: Helper | None) -> int:
    if helper is None:
        return 5
    if helper.locked or helper.state in "TtD":
        return 0
    return 1 if helper.state == "R" else _ORDER.get(helper.sleeps or "", 4)


def _is_python(pid: int) -> bool:
    return bool(_PYTHON.fullmatch(os.path.basename(procfs.link(f"/proc/{pid}/exe") or "")))


# --- backoff --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Failed:
    error: Exception
    times: int
    until_s: float


class Backoff:
    """Processes that repeatedly took long to fail are skipped, each time for longer."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._failed: dict[ProcessId, _Failed] = {}
        self._now = now

    def keep(self, processes: Collection[ProcessId]) -> None:
        """Forget all other processes."""
        self._failed = {process: failed for process, failed in self._failed.items() if process in processes}

    def skip_reason(self, process: ProcessId) -> Exception | None:
        """The last error of a process to skip now; None: try it."""
        failed = self._failed.get(process)
        return failed.error if failed and self._now() < failed.until_s else None

    def note(self, process: ProcessId, took_s: float, outcome: object) -> None:
        """Record the outcome of a dump: an exception, or anything else for success."""
        if not isinstance(outcome, Exception) or took_s < LONG_S:
            self._failed.pop(process, None)
            return
        times = self._failed[process].times + 1 if process in self._failed else 1
        pause_s = PAUSES_S[min(times, len(PAUSES_S)) - 1]
        self._failed[process] = _Failed(outcome, times, self._now() + pause_s)


PROBE = StacksProbe()
