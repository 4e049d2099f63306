"""Analysis `gil`: does native code hold the GIL and never release it?

A thread that sleeps in the kernel does not need the GIL. If it holds the GIL, asleep at the same line in look after
look, it blocks all other threads of its process for nothing. A thread that spins with the GIL may be in a long
computation of an ordinary library. It must therefore spin for longer, its native frames must not show such a library,
and no variable may change: a loop in Python is no native code. The regular-expression engine is the exception: if it
runs for that long, its pattern backtracks catastrophically.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hangdoc.analysis import Case, Detector, Key
from hangdoc.analysis.ranks.call_path import threads_of
from hangdoc.analysis.ranks.phases import WAITING, phase_of
from hangdoc.analysis.ranks.process import process_looks
from hangdoc.analysis.ranks.process_context import process_context
from hangdoc.analysis.thresholds import BUSY_THREAD, FULL_CORE, HEAP_GROWTH, MIN_LOOKS, SPINS_S, STILL_S
from hangdoc.evidence import Frame, Process, Stack, Stacks, ThreadCpu

ALLOWED = (*WAITING, "startup", "teardown")  # phases of the holder that are another rank's fault, or short
LONG = ("compile", "checkpoint")  # phases in which libraries compute with the GIL for a long time
REGEX = re.compile(r"^_?(sre_|SRE\()")  # CPython's Modules/_sre
FOREIGN_CALL = ("ffi_call", "_call_function_pointer", "_ctypes_callproc")


@dataclass(frozen=True, slots=True)
class GilFacts:
    """The GIL of one rank. None: not seen. If `stuck` is not true, all other fields are None."""

    stuck: bool | None = None  # a thread holds the GIL and will never release it
    owner: str | None = None  # name of that thread
    site: str | None = None  # its innermost user frame: "train (train.py:31)"
    text: str | None = None  # source line at that site
    asleep: bool | None = None  # true: it sleeps in the kernel; false: it spins on a core
    seconds: float | None = None  # how long it has held the GIL at this line, at least
    kernel: str | None = None  # kernel function that it sleeps in
    native: str | None = None  # its native frames, innermost first
    confirmed: bool | None = None  # its native frames show foreign code or `regex`; None: native frames not seen
    regex: bool | None = None  # it is in CPython's regular-expression engine


UNSEEN = GilFacts()
FREE = GilFacts(stuck=False)


class GilDetector(Detector[GilFacts, None]):
    rank_facts = GilFacts

    def derive(self, case: Case) -> tuple[dict[Key, GilFacts], None]:
        return {key: _facts(case, key) for key in case.ranks}, None


def _facts(case: Case, key: Key) -> GilFacts:
    stacks = case.record(key, "stacks")
    if not isinstance(stacks, Stacks) or not stacks.threads or case.ranks[key].alive is False:
        return UNSEEN
    holder = next((thread for thread in threads_of(case, key) if thread.stack.holds_gil), None)
    if holder is None:
        return FREE
    owner, path = holder.stack, holder.path
    looks = [(at, seen) for at, seen in case.series(key, "stacks") if isinstance(seen, Stacks) and seen.threads]
    since = looks[-1][0]
    for count, (at, before) in enumerate(reversed(looks)):
        if not any(s.holds_gil and s.tid == owner.tid and _is_as_before(s, owner) for s in before.threads):
            break
        since, kept = at, count + 1
    seconds = looks[-1][0] - since
    processes = [(at, process) for at, process in process_looks(case, key) if at >= since]
    asleep = _asleep(processes, owner.tid)
    spins = _spins(processes, owner.tid)
    native = _native(owner)
    phase = phase_of(path, process_context(case, key, None, stacks))[0]
    regex = any(REGEX.match(frame.function) for frame in native)
    confirmed = regex or _foreign(native) if native else None
    stuck = (
        kept >= MIN_LOOKS
        and phase not in ALLOWED
        and (
            (asleep and seconds >= STILL_S)
            or (spins and seconds >= SPINS_S and phase not in LONG and confirmed is not False)
        )
    )
    if not stuck:
        return FREE
    user = path.user
    thread = _thread(processes[-1][1], owner.tid)
    return GilFacts(
        stuck=True,
        owner=owner.name or f"thread {owner.tid}",
        site=user.site if user else None,
        text=user.place.text if user and user.place else None,
        asleep=asleep,
        seconds=seconds,
        kernel=thread.wchan if thread and asleep else None,
        native=" <- ".join(_format_frame(frame) for frame in native[:5]) or None,
        confirmed=confirmed,
        regex=regex if native else None,
    )


def _is_as_before(before: Stack, now: Stack) -> bool:
    """True if the thread stands at the same line, and no variable has another value: Python does not run there."""
    return _lines(before) == _lines(now) and all(
        old.variables is None or new.variables is None or old.variables == new.variables
        for old, new in zip(before.frames, now.frames, strict=False)
        if not (old.native or new.native)
    )


def _lines(stack: Stack) -> tuple[tuple[str, int | None], ...]:
    return tuple((frame.function, frame.line) for frame in stack.frames if not frame.native)


def _asleep(processes: Sequence[tuple[float, Process]], tid: int) -> bool:
    """The thread sleeps in every look, and no other thread of the process uses a core."""
    threads = [_thread(process, tid) for _, process in processes]
    share = _share(processes, [process.cpu_s for _, process in processes])
    return all(t is not None and t.state == "S" for t in threads) and share is not None and share < BUSY_THREAD


def _spins(processes: Sequence[tuple[float, Process]], tid: int) -> bool:
    """The thread keeps a core busy, and the process neither allocates nor frees memory."""
    threads = [thread for _, process in processes if (thread := _thread(process, tid))]
    if not threads or len(threads) != len(processes):
        return False
    share = _share(processes, [thread.cpu_s + (thread.run_delay_s or 0.0) for thread in threads])
    sizes = [process.rss_bytes for _, process in processes]
    slept = (threads[-1].voluntary or 0) - (threads[0].voluntary or 0)
    return share is not None and share >= FULL_CORE and max(sizes) - min(sizes) < HEAP_GROWTH and slept <= len(threads)


def _share(processes: Sequence[tuple[float, Process]], used: Sequence[float]) -> float | None:
    if len(processes) < 2 or processes[-1][0] <= processes[0][0]:
        return None
    return (used[-1] - used[0]) / (processes[-1][0] - processes[0][0])


def _thread(process: Process, tid: int) -> ThreadCpu | None:
    return next((thread for thread in process.threads if thread.tid == tid), None)


def _native(owner: Stack) -> tuple[Frame, ...]:
    """The native frames called by the thread's innermost Python frame, innermost first."""
    count = next((i for i, frame in enumerate(owner.frames) if not frame.native), len(owner.frames))
    return owner.frames[:count]


def _foreign(frames: Sequence[Frame]) -> bool:
    """Code called through ctypes, or code of a library outside Python's packages."""
    return any(frame.function in FOREIGN_CALL or not _of_python(frame.file) for frame in frames)


def _of_python(file: str) -> bool:
    """True for the interpreter, its extension modules, installed packages, and the C and C++ runtime libraries."""
    name = file.rsplit("/", 1)[-1]
    system = name.startswith(("libc.", "libc-", "libm.", "libm-", "libpthread", "ld-linux", "libstdc++", "libgcc", "["))
    return system or name.startswith(("python", "libpython")) or "/lib/python3" in file or "-packages/" in file


def _format_frame(frame: Frame) -> str:
    return f"{frame.function} ({frame.file.rsplit('/', 1)[-1]})" if frame.file else frame.function


ANALYSIS = GilDetector()
