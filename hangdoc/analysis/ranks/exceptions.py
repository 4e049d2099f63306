"""Analysis `exception`: ranks that stand still while they handle an exception, in `except`, `finally` or `__exit__`.

Such a rank has left the code in which its peers are. Two kinds of handlers are left out, because they show no failure:
a lookup that Python code tries and catches itself, and a handler that runs a loop, such as a training that starts anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hangdoc.analysis import Analysis, Case, Key
from hangdoc.analysis.ranks.call_path import Step, Steps, is_library
from hangdoc.analysis.ranks.judged_thread import judged_thread
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.evidence import Frame, Loop
from hangdoc.evidence.stacks import Exceptions, HandledException

EXHAUSTED = frozenset({"StopIteration", "StopAsyncIteration"})
POLLS = frozenset({"GeneratorExit", "_queue.Empty", "Empty", "Full"})
# An `except` part that catches them right where they were raised is an alternative, such as a default.
TRIED = frozenset(
    {"KeyError", "IndexError", "AttributeError", "ImportError", "ModuleNotFoundError", "NotImplementedError"}
)


@dataclass(frozen=True, slots=True)
class ExceptionFacts:
    """One rank; None: it handles no exception, or not in its present line."""

    type: str | None = None  # of the exception: "ValueError"
    text: str | None = None  # its arguments
    site: str | None = None  # the innermost frame in user code that raised it: "read (data.py:22)"
    part: str | None = None  # where it stands now: "except" | "finally" | "with", for an `__exit__`
    handler: str | None = None  # the frame with that part: "main (train.py:53)"
    apart: bool | None = None  # no rank that handles no exception is at its line
    exhausted: bool = False  # it handles the end of an iterator instead: it asked for one more item than there were


class ExceptionAnalysis(Analysis[ExceptionFacts, None]):
    rank_facts = ExceptionFacts
    seen_by = ("exceptions",)

    def derive(self, case: Case) -> tuple[dict[Key, ExceptionFacts], None]:
        found = {key: _facts(case, key) for key in case.ranks}
        if not any(own.part for own in found.values()):
            return found, None
        stack = case.facts(StackFacts)
        plain = {(stack[key].file, stack[key].line, stack[key].op) for key, own in found.items() if not own.part}
        return {
            key: replace(own, apart=(stack[key].file, stack[key].line, stack[key].op) not in plain) if own.part else own
            for key, own in found.items()
        }, None


def _facts(case: Case, key: Key) -> ExceptionFacts:
    record, thread = case.record(key, "exceptions"), judged_thread(case, key)
    if not isinstance(record, Exceptions) or thread is None:
        return ExceptionFacts()
    handled = next((one for one in record.handled if one.tid == thread.stack.tid), None)
    return _of(handled, thread.path.steps) if handled is not None and handled.frames else ExceptionFacts()


def _of(handled: HandledException, steps: Steps) -> ExceptionFacts:
    caught = handled.frames[0]
    same = [depth for depth, step in enumerate(steps) if (step.function, step.file) == (caught.function, caught.file)]
    part = _part(steps, same[-1]) if same else None
    tried = handled.type in TRIED and part == "except" and len(handled.frames) == 1
    if part and handled.type in EXHAUSTED:
        return ExceptionFacts(exhausted=True)
    if part is None or tried or handled.type in POLLS:
        return ExceptionFacts()
    own = [frame for frame in handled.frames if not is_library(frame.file)] or handled.frames
    return ExceptionFacts(handled.type, handled.text or None, _site(own[-1]), part, steps[same[-1]].site)


def _part(steps: Sequence[Step], depth: int) -> str | None:
    """The part of a `try` or `with` that a frame is in; None: unknown, or it trains there."""
    place, inner = steps[depth].place, steps[depth + 1 :]
    if any(_may_train(step, loop) for step in inner if step.place for loop in step.place.loops):
        return None
    if any(step.function in ("__exit__", "__aexit__") for step in inner[:1]):
        return "with"
    branch = next((b for b in reversed(place.branches) if b.arm in ("except", "finally")), None) if place else None
    if place is None or branch is None or any(loop.first > branch.line for loop in place.loops):
        return None
    return branch.arm


def _may_train(step: Step, loop: Loop) -> bool:
    """True for a loop that may be a training loop; a library's `for` without a counter runs hooks or callbacks."""
    if is_library(step.file):
        return "/torch/" not in step.file and (bool(loop.counters) or loop.header.startswith("while "))
    return True


def _site(frame: Frame) -> str:
    return f"{frame.function} ({frame.file.rpartition('/')[2]}:{frame.line})"


ANALYSIS = ExceptionAnalysis()
