"""Stacks of a rank, with variables and source (probes `stacks`, `variables`, `tensors` and `source`)."""

from __future__ import annotations

from collections.abc import Mapping

from hangdoc.evidence.record import Record


class Tensor(Record, frozen=True):
    """Shape, dtype and device of a tensor, read from the rank's memory."""

    shape: tuple[int, ...]
    dtype: str  # torch name without prefix: float32, bfloat16, int64, ...
    device: str  # cpu, cuda, ...
    nonfinite: str = ""  # nan or inf: the value of a single element on the CPU


class Variable(Record, frozen=True):
    """A local variable of a frame or a global of the training script."""

    name: str
    text: str  # shortened and redacted representation
    argument: bool = False
    number: float | None = None  # value of an int, bool or float
    length: int | None = None  # of a list, tuple, dict, string or array, if readable
    kind: str | None = None  # int float bool str none list tuple dict tensor object
    address: int | None = None  # of the object, for other probes of this process
    tensor: Tensor | None = None


class Loop(Record, frozen=True):
    """A `for` or `while` statement that encloses a line of source."""

    first: int  # line of the statement itself
    last: int  # last line of the body, without an `else` part
    header: str  # its source text, shortened
    counters: tuple[str, ...]  # loop targets, and names that the body increments
    exits: tuple[str, ...] = ()  # conditions under which the body leaves the loop early, by `break` or `return`
    unconditional_exit: bool = False  # it also leaves it without a condition: `except StopIteration: break`


class Branch(Record, frozen=True):
    """An arm of an `if` or `try` statement that encloses a line."""

    line: int  # line of the statement
    arm: str  # body | else | except | finally
    test: str  # source text of the condition, shortened; "" if none
    leaves: bool = False  # the arm ends in return, continue, break or raise: code after the `if` is the other arm


class CollectiveArgument(Record, frozen=True):
    """A call that passes a local variable to a collective over the whole job."""

    op: str  # all_reduce | broadcast | reduce
    name: str  # a variable that the function assigns in one place only
    line: int


class Place(Record, frozen=True):
    """The source around the current line of a frame."""

    text: str  # the statement's first line, stripped, shortened and redacted
    loops: tuple[Loop, ...]  # outermost first, within the function
    branches: tuple[Branch, ...]  # outermost first, within the function
    calls: tuple[str, ...]  # dotted names called in this statement, e.g. ("dist.barrier",)
    function_first: int  # line of the enclosing def; 0 for a module
    function_last: int
    passed: tuple[Loop, ...] = ()  # loops of the same function that ended before this line
    around: tuple[str, ...] = ()  # dotted names called anywhere in the enclosing function
    hands: tuple[CollectiveArgument, ...] = ()  # variables that the enclosing function passes to collectives
    guards: tuple[Branch, ...] = ()  # each `if` before this line that would have left its function or iteration
    alone: bool = False  # only this line was seen: nothing is known of the loops and branches around it


class Frame(Record, frozen=True):
    """One Python (or native) frame."""

    function: str
    file: str  # full path known to the interpreter; for a native frame the shared object
    line: int | None
    short: str = ""  # py-spy's shortened file name, for display
    native: bool = False
    variables: tuple[Variable, ...] | None = None  # None: not requested or not readable


class Stack(Record, frozen=True):
    """The stack of one thread, innermost frame first."""

    tid: int
    name: str | None  # Python's thread name
    frames: tuple[Frame, ...]
    holds_gil: bool = False
    active: bool = False  # on a CPU when sampled, by py-spy
    left_out: int = 0  # frames dropped from the middle of a deep stack; `frames` has both ends


class Source(Record, frozen=True):
    """The source around the lines on a rank's stacks (record of probe `source`)."""

    places: Mapping[str, Place]  # by "file:line", as in the frames


class Stacks(Record, frozen=True):
    """All Python threads of a rank (record of probe `stacks`)."""

    threads: tuple[Stack, ...]
    native: bool = False  # native frames are interleaved
    python: str | None = None  # interpreter version, if known
    globals: tuple[Variable, ...] | None = None  # of the training script's module (probe `variables`)
    children: tuple[tuple[int, tuple[Stack, ...]], ...] = ()  # PID and threads of each helper process


class HandledException(Record, frozen=True):
    """An exception that a thread handles: it runs an `except` or `finally` part, or an `__exit__`."""

    tid: int | None  # of the thread; None: not the main thread, and its TID is unknown
    type: str  # "ValueError"; a builtin or extension type has its module: "torch.OutOfMemoryError"
    text: str  # its arguments, shortened and redacted
    frames: tuple[Frame, ...] = ()  # of its traceback: from the frame that caught it to the one that raised it


class Exceptions(Record, frozen=True):
    """The exceptions that a rank's threads handle (record of probe `exceptions`)."""

    handled: tuple[HandledException, ...] = ()


MAKES_GROUP = "_new_process_group_helper"


def making_group(stacks: object) -> Frame | None:
    """The frame in which a rank creates a process group; None: in no such call."""
    if not isinstance(stacks, Stacks):
        return None
    frames = (frame for thread in stacks.threads for frame in thread.frames)
    return next((one for one in frames if one.function == MAKES_GROUP and "torch/distributed/" in one.file), None)
