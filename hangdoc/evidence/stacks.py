"""What a rank executes (probes `stacks`, `variables`, `tensors` and `source`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tensor:
    """Shape, type and device of a tensor, read from outside."""

    shape: tuple[int, ...]
    dtype: str  # torch name without prefix: float32, bfloat16, int64, ...
    device: str  # cpu, cuda, ...


@dataclass(frozen=True, slots=True)
class Variable:
    """A local variable of a frame or a global of the training script."""

    name: str
    text: str  # shortened and redacted representation
    argument: bool = False
    number: float | None = None  # value of an int, bool or float
    length: int | None = None  # of a list, tuple, dict, string or array, where readable
    kind: str | None = None  # int float bool str none list tuple dict tensor object
    address: int | None = None  # of the object, for other probes of the same process
    tensor: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Loop:
    """A `for` or `while` statement that encloses a line of source."""

    first: int  # line of the statement itself
    last: int  # last line of its body (an `else` part is not in it)
    header: str  # its source text, shortened
    counters: tuple[str, ...]  # its targets, and names its body increments


@dataclass(frozen=True, slots=True)
class Branch:
    """An arm of an `if` or `try` statement that encloses a line."""

    line: int  # line of the statement
    arm: str  # body | else | except | finally
    test: str  # source text of the condition, shortened; "" where there is none
    leaves: bool = False  # the arm ends in return, continue, break or raise: what follows is the other arm


@dataclass(frozen=True, slots=True)
class CollectiveArgument:
    """A call in a function that hands a variable of it to a collective of the whole job."""

    op: str  # all_reduce | broadcast | reduce
    name: str  # a variable that the function gives a value to in one place only
    line: int


@dataclass(frozen=True, slots=True)
class Place:
    """What the source says about the line a frame stands on."""

    text: str  # the statement's first line, stripped, shortened and redacted
    loops: tuple[Loop, ...]  # outermost first, within the function
    branches: tuple[Branch, ...]  # outermost first, within the function
    calls: tuple[str, ...]  # dotted names called in this statement, e.g. ("dist.barrier",)
    function_first: int  # line of the enclosing def; 0 for a module
    function_last: int
    passed: tuple[Loop, ...] = ()  # loops of the same function that ended before this line
    around: tuple[str, ...] = ()  # dotted names called anywhere in the enclosing function
    hands: tuple[CollectiveArgument, ...] = ()  # what the enclosing function hands to collectives


@dataclass(frozen=True, slots=True)
class Frame:
    """One Python (or native) frame."""

    function: str
    file: str  # full path as the interpreter knows it; the shared object for a native frame
    line: int | None
    short: str = ""  # py-spy's shortened file name, for people
    native: bool = False
    variables: tuple[Variable, ...] | None = None  # None: not asked or not readable


@dataclass(frozen=True, slots=True)
class Stack:
    """The stack of one thread, innermost frame first."""

    tid: int
    name: str | None  # Python's thread name
    frames: tuple[Frame, ...]
    holds_gil: bool = False
    active: bool = False  # py-spy: on a CPU when looked at
    left_out: int = 0  # frames in the middle of a deep stack that were not kept: `frames` are its two ends


@dataclass(frozen=True, slots=True)
class Source:
    """What the source says about the lines on a rank's stacks (record of probe `source`)."""

    places: Mapping[str, Place]  # by "file:line" as the frames name them


@dataclass(frozen=True, slots=True)
class Stacks:
    """All Python threads of a rank (record of probe `stacks`)."""

    threads: tuple[Stack, ...]
    native: bool = False  # native frames are interleaved
    python: str | None = None  # interpreter version, where known
    globals: tuple[Variable, ...] | None = None  # of the training script's module (probe `variables`)
    children: tuple[tuple[int, tuple[Stack, ...]], ...] = ()  # helper PID -> its threads


MAKES_GROUP = "_new_process_group_helper"


def making_group(stacks: object) -> Frame | None:
    """The frame in which a rank is being made a member of a process group."""
    if not isinstance(stacks, Stacks):
        return None
    frames = (frame for thread in stacks.threads for frame in thread.frames)
    return next((one for one in frames if one.function == MAKES_GROUP and "torch/distributed/" in one.file), None)
