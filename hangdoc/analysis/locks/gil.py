"""Analysis `gil`: does native code keep the interpreter's lock (the GIL) and never give it back?

A thread that sleeps in the kernel has no use for the GIL: one that was seen to hold it, asleep at the same line, look
after look, holds up every other thread of its process for nothing. One that burns its core with it may be in a long
computation of an ordinary library, so it must stand for longer, and native frames must not say that it is one. The
engine of regular expressions is none: what takes it so long is a pattern that it tries in ever more ways.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hangdoc.analysis import Case, Key
from hangdoc.analysis.ranks.call_path import call_path, user_step
from hangdoc.analysis.ranks.phases import WAITING, chain_of, phase_of
from hangdoc.analysis.ranks.process import process_looks
from hangdoc.analysis.ranks.stack import process_context
from hangdoc.evidence import Frame, Process, Stack, Stacks, ThreadCpu

ASLEEP_S = 1.9  # as long as `stall` watches before it says so
SPINS_S = 8.0
MIN_LOOKS = 4
ASLEEP_SHARE = 0.1  # of a core, the whole process: nothing works for the thread
SPIN_SHARE = 0.8
GROWTH = 1 << 20  # bytes: a computation that takes memory or gives it back is one that gets on
ALLOWED = (*WAITING, "startup", "teardown")  # of the thread that holds it: others are to blame, or it is short
LONG = ("compile", "checkpoint")  # phases in which libraries hold it for long, and compute
REGEX = re.compile(r"^_?(sre_|SRE\()")  # CPython's Modules/_sre
FOREIGN_CALL = ("ffi_call", "_call_function_pointer", "_ctypes_callproc")


@dataclass(frozen=True, slots=True)
class GilFacts:
    """One rank; None: not seen."""

    stuck: bool | None = None  # a thread keeps the GIL for good
    owner: str | None = None  # its name
    site: str | None = None  # where in the user's code it is
    text: str | None = None  # the source line there
    asleep: bool | None = None  # in the kernel; else it burns its core
    seconds: float | None = None  # for at least so long
    kernel: str | None = None  # the kernel function it sleeps in
    native: str | None = None  # its native frames, innermost first
    confirmed: bool | None = None  # native frames show foreign code, or `regex`; None: they were not seen
    regex: bool | None = None  # it matches a regular expression


UNSEEN = GilFacts()
FREE = GilFacts(stuck=False)


@dataclass(slots=True)
class GilAnalysis:
    name: str = "gil"
    order: int = 41
    rank_facts: type | None = GilFacts
    job_facts: type | None = None

    def derive(self, case: Case) -> tuple[dict[Key, GilFacts], None]:
        return {key: _facts(case, key) for key in case.ranks}, None


def _facts(case: Case, key: Key) -> GilFacts:
    stacks = case.record(key, "stacks")
    if not isinstance(stacks, Stacks) or not stacks.threads or case.ranks[key].alive is False:
        return UNSEEN
    owner = next((stack for stack in stacks.threads if stack.holds_gil), None)
    if owner is None:
        return FREE
    looks = [(at, one) for at, one in case.series(key, "stacks") if isinstance(one, Stacks) and one.threads]
    since = looks[-1][0]
    for count, (at, before) in enumerate(reversed(looks)):
        if not any(s.holds_gil and s.tid == owner.tid and _lines(s) == _lines(owner) for s in before.threads):
            break
        since, kept = at, count + 1
    seconds = looks[-1][0] - since
    processes = [(at, one) for at, one in process_looks(case, key) if at >= since]
    asleep = _asleep(processes, owner.tid)
    spins = _spins(processes, owner.tid)
    native = _native(owner)
    phase = _phase(case, key, stacks, owner)
    regex = any(REGEX.match(frame.function) for frame in native)
    confirmed = regex or _foreign(native) if native else None
    stuck = (
        kept >= MIN_LOOKS
        and phase not in ALLOWED
        and (
            (asleep and seconds >= ASLEEP_S)
            or (spins and seconds >= SPINS_S and phase not in LONG and confirmed is not False)
        )
    )
    if not stuck:
        return FREE
    user = user_step(call_path(owner, case.record(key, "source"), stacks.globals))
    thread = _thread(processes[-1][1], owner.tid)
    return GilFacts(
        stuck=True,
        owner=owner.name or f"thread {owner.tid}",
        site=user.site if user else None,
        text=user.place.text if user and user.place else None,
        asleep=asleep,
        seconds=seconds,
        kernel=thread.wchan if thread and asleep else None,
        native=" <- ".join(_shown(frame) for frame in native[:5]) or None,
        confirmed=confirmed,
        regex=regex if native else None,
    )


def _lines(stack: Stack) -> tuple[tuple[str, int | None], ...]:
    return tuple((frame.function, frame.line) for frame in stack.frames if not frame.native)


def _asleep(processes: Sequence[tuple[float, Process]], tid: int) -> bool:
    """It sleeps whenever it is looked at, and no other thread of the process works for it."""
    threads = [_thread(one, tid) for _, one in processes]
    share = _share(processes, [one.cpu_s for _, one in processes])
    return all(t is not None and t.state == "S" for t in threads) and share is not None and share < ASLEEP_SHARE


def _spins(processes: Sequence[tuple[float, Process]], tid: int) -> bool:
    """It burns its core, alone, and takes no memory and gives none back."""
    threads = [thread for _, one in processes if (thread := _thread(one, tid))]
    if not threads or len(threads) != len(processes):
        return False
    share = _share(processes, [thread.cpu_s + (thread.run_delay_s or 0.0) for thread in threads])
    sizes = [one.rss_bytes for _, one in processes]
    slept = (threads[-1].voluntary or 0) - (threads[0].voluntary or 0)
    return share is not None and share >= SPIN_SHARE and max(sizes) - min(sizes) < GROWTH and slept <= len(threads)


def _share(processes: Sequence[tuple[float, Process]], used: Sequence[float]) -> float | None:
    if len(processes) < 2 or processes[-1][0] <= processes[0][0]:
        return None
    return (used[-1] - used[0]) / (processes[-1][0] - processes[0][0])


def _thread(process: Process, tid: int) -> ThreadCpu | None:
    return next((thread for thread in process.threads if thread.tid == tid), None)


def _phase(case: Case, key: Key, stacks: Stacks, owner: Stack) -> str:
    story = call_path(owner, case.record(key, "source"), stacks.globals)
    return phase_of(chain_of(owner), story, process_context(case, key, None, stacks))[0]


def _native(owner: Stack) -> tuple[Frame, ...]:
    """The native frames above its innermost Python frame, innermost first."""
    count = next((i for i, frame in enumerate(owner.frames) if not frame.native), len(owner.frames))
    return owner.frames[:count]


def _foreign(frames: Sequence[Frame]) -> bool:
    """Code called through ctypes, or of a library that stands in no package of Python's."""
    return any(frame.function in FOREIGN_CALL or not _of_python(frame.file) for frame in frames)


def _of_python(file: str) -> bool:
    """The interpreter, its extension modules, installed packages, and the C library that all of them use."""
    name = file.rsplit("/", 1)[-1]
    system = name.startswith(("libc.", "libc-", "libm.", "libm-", "libpthread", "ld-linux", "libstdc++", "libgcc", "["))
    return system or name.startswith(("python", "libpython")) or "/lib/python3" in file or "-packages/" in file


def _shown(frame: Frame) -> str:
    return f"{frame.function} ({frame.file.rsplit('/', 1)[-1]})" if frame.file else frame.function


ANALYSIS = GilAnalysis()
