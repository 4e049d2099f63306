"""Places of stack lines by excerpts of source that a text has beside its stacks.

An excerpt is of the file that the text names above it, or of the only file with frames that it fits. It fits if each of
its lines on a stack lies in the function that the stack names, and makes the calls that the stack shows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from hangdoc.analysis.ranks.call_path import is_library
from hangdoc.evidence import Place, Snapshot, Stack, Stacks
from hangdoc.introspect.source_records import Guards, guards, places_of
from hangdoc.postmortem.readers.pasted_source import SourceExcerpt
from hangdoc.system import sandbox

MAX_QUESTIONS = 128
MAX_FRAMES = 200  # of one file
_PARSING_S = 20.0
_PARSER = "hangdoc.introspect.parsers.excerpt_lines:places_of_excerpt"
# Frames between a line and what it calls, as decorators leave them.
_BETWEEN = frozenset(
    {"wrapper", "inner", "wrapped", "wrapped_fn", "wrapped_func", "log_wrapper", "decorate_context", "_wrapper"}
)
_IMPLICIT = frozenset({"_wrapped_call_impl", "_call_impl"})  # the name that the line calls is another one

FileFrame = tuple[int, str, str | None, bool]  # line, function, what it calls, whether the line must name that


@dataclass(frozen=True, slots=True)
class Shown:
    """What excerpts show of the lines on the stacks."""

    places: Mapping[str, Place]  # by `file:line`
    guards: Mapping[str, Guards]  # the locks at a line, by `file:line`


def shown_by(excerpts: Sequence[SourceExcerpt], shots: Iterable[Snapshot]) -> Shown:
    """For the lines of user code on the stacks that an excerpt shows."""
    frames = _frames(shots)
    asked = [(one, file) for one in excerpts for file in frames if _may_be(one, file)][:MAX_QUESTIONS]
    if not asked:
        return Shown({}, {})
    questions: list[sandbox.Question] = [
        ("\n".join(one.rows).encode("utf-8", "replace"), {"numbers": one.numbers, "frames": frames[file]})
        for one, file in asked
    ]
    fitting: dict[int, list[tuple[str, dict[int, Place], Any]]] = defaultdict(list)
    for (one, file), answer in zip(asked, sandbox.run_each(_PARSER, questions, _PARSING_S), strict=True):
        if not isinstance(answer, sandbox.Failed) and (places := _fitting(answer, frames[file], one.file is not None)):
            fitting[id(one)].append((file, places, answer["locks"]))
    found: dict[str, Place] = {}
    locks: dict[str, Guards] = {}
    # The line of a frame says less than an excerpt that has it, too.
    for one in sorted(excerpts, key=lambda one: not one.of_frame):
        files = fitting.get(id(one), [])
        if len(files) == 1:  # else it may be of any of them
            file, places, table = files[0]
            if one.of_frame:
                places = {line: replace(place, alone=True) for line, place in places.items()}
            found |= {f"{file}:{line}": place for line, place in places.items()}
            locks |= {f"{file}:{line}": guards(table, line) for line in places}
    return Shown(found, locks)


def _may_be(excerpt: SourceExcerpt, file: str) -> bool:
    if excerpt.of_frame:
        return excerpt.file == file
    return excerpt.file is None or Path(excerpt.file).name == Path(file).name


def _frames(shots: Iterable[Snapshot]) -> Mapping[str, Sequence[FileFrame]]:
    """The frames of user code, by file."""
    found: dict[str, dict[FileFrame, None]] = defaultdict(dict)
    for rank in (rank for shot in shots for rank in shot.ranks):
        stacks = rank.records.get("stacks")
        for stack in stacks.threads if isinstance(stacks, Stacks) and "source" not in rank.records else ():
            for file, frame in _of_stack(stack):
                if len(found[file]) < MAX_FRAMES:
                    found[file][frame] = None
    return {file: list(frames) for file, frames in found.items()}


def _of_stack(stack: Stack) -> Iterable[tuple[str, FileFrame]]:
    callee, sure = None, True
    for frame in stack.frames:
        if frame.native or not frame.line:
            continue
        if frame.file.endswith(".py") and not is_library(frame.file):
            yield frame.file, (frame.line, frame.function, callee, sure)
        if frame.function in _IMPLICIT or frame.function.startswith(("__", "<")):
            callee, sure = None, True
        elif frame.function in _BETWEEN:
            sure = False
        else:
            callee, sure = frame.function, True


def _fitting(answer: Any, frames: Sequence[FileFrame], named: bool) -> dict[int, Place]:
    """The places, if the excerpt is of the file with these frames."""
    places = dict(places_of(answer))
    around = {int(line): span for line, span in answer["around"].items()}
    right = 0
    for line, function, callee, sure in frames:
        if line not in places:
            continue
        span = around.get(line)
        if span is not None and function != span[2] and not function.startswith("<"):
            return {}
        names = {name.rpartition(".")[2] for name in places[line].calls}
        if sure and callee is not None and callee not in names and names:
            return {}
        right += callee in names
    return places if named or right else {}
