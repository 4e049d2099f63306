"""The culprit's stack next to the stack of its victims, with the differences between the two."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from hangdoc.analysis import Case, Key
from hangdoc.analysis.facts import Facts
from hangdoc.analysis.ranks.call_path import Frames, is_library, variables_of
from hangdoc.analysis.ranks.divergence import MUST_DIFFER
from hangdoc.analysis.ranks.judged_thread import judged_thread
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.evidence import Frame, Source, Variable
from hangdoc.incident.timeline import Member, member
from hangdoc.redaction.text import redact

MAX_FRAMES = 60
MAX_LOCALS = 6  # per frame of the user's code
MAX_TEXT = 120  # characters of a value


@dataclass(frozen=True, slots=True)
class Local:
    """A variable of a frame."""

    name: str
    text: str
    differs: bool


@dataclass(frozen=True, slots=True)
class Line:
    """One frame."""

    function: str
    file: str
    line: int | None
    text: str = ""  # source line
    own: bool = False  # code of the user
    native: bool = False
    differs: bool = False  # the other side lacks this frame
    locals: tuple[Local, ...] = ()


@dataclass(frozen=True, slots=True)
class Side:
    """Ranks with the same call path; outermost frame first."""

    title: str
    members: tuple[Member, ...]
    phase: str
    op: str | None
    thread: str | None
    lines: tuple[Line, ...]
    left_out: int = 0  # frames omitted from the middle


@dataclass(frozen=True, slots=True)
class _Place:
    """Ranks with one call path, and the frames of one of them, outermost first."""

    keys: tuple[Key, ...]
    frames: tuple[Frame, ...]
    variables: tuple[Sequence[Variable], ...]
    left_out: int = 0  # frames omitted from the middle


def sides(facts: Facts, blamed: Collection[Key]) -> tuple[Side, ...]:
    """The largest groups of culprits and of other ranks; without culprits, the two largest groups. Up to two sides."""
    case = facts.case
    guilty = _places(case, [key for key in case.ranks if key in blamed])
    rest = _places(case, [key for key in case.ranks if key not in blamed])
    if guilty:
        titles = ("Culprit", "Waiting" if rest and _waits(case, rest[0]) else "Majority")
        chosen = (*guilty[:1], *rest[:1])
    else:
        chosen = rest[:2]
        titles = (_title(case, chosen), "Others")
    models = [{(f.file, f.function): v for f, v in zip(p.frames, p.variables, strict=True)} for p in chosen]
    marked = _marked([place.frames for place in chosen])
    return tuple(
        _side(case, title, place, differs, models[1 - i] if len(models) > 1 else {})
        for i, (title, place, differs) in enumerate(zip(titles, chosen, marked, strict=False))
    )


def _title(case: Case, chosen: Sequence[_Place]) -> str:
    """Title of the first side if there is no culprit."""
    if chosen and len(chosen[0].keys) == len(case.ranks):
        return "Every rank"
    return "Majority" if len(chosen) < 2 or len(chosen[0].keys) > len(chosen[1].keys) else "Some"


def _waits(case: Case, place: _Place) -> bool:
    return bool(case.facts(StackFacts)[place.keys[0]].waits)


def _places(case: Case, keys: Collection[Key]) -> tuple[_Place, ...]:
    """Places of the ranks, largest first; ranks without a stack have none."""
    groups: dict[Frames, list[Key]] = defaultdict(list)
    for key in keys:
        thread = judged_thread(case, key)
        if thread and thread.path.frames:
            groups[thread.path.python].append(key)
    return tuple(_place(case, found) for found in sorted(groups.values(), key=len, reverse=True))


def _place(case: Case, keys: Sequence[Key]) -> _Place:
    """A place shows one of its ranks, with native frames if possible."""
    threads = [thread for key in keys if (thread := judged_thread(case, key))]
    thread = next((one for one in threads if any(frame.native for frame in one.stack.frames)), threads[0])
    stack = thread.stack
    frames = tuple(frame for frame in stack.frames[::-1] if not (frame.native and frame.function.startswith("0x")))
    variables = tuple(variables_of(frame, thread.module) for frame in frames)
    return _Place(tuple(keys), frames, variables, stack.left_out)


def _marked(found: Sequence[Sequence[Frame]]) -> list[list[bool]]:
    """Frames of each side that the other lacks; native frames count only if both sides have them."""
    if len(found) < 2:
        return [[False] * len(frames) for frames in found]
    names = [[(f.function, f.file, f.line) for f in frames] for frames in found]
    marks = [[True] * len(frames) for frames in found]
    for block in SequenceMatcher(None, names[0], names[1], autojunk=False).get_matching_blocks():
        for side, start in ((0, block.a), (1, block.b)):
            marks[side][start : start + block.size] = [False] * block.size
    if not all(any(f.native for f in frames) for frames in found):  # only one side has native frames
        for side, frames in enumerate(found):
            marks[side] = [mark and not f.native for mark, f in zip(marks[side], frames, strict=True)]
    return marks


def _side(
    case: Case,
    title: str,
    place: _Place,
    differs: Sequence[bool],
    other: Mapping[tuple[str, str], Sequence[Variable]],
) -> Side:
    key = place.keys[0]
    source, facts = case.record(key, "source"), case.facts(StackFacts)[key]
    lines = [
        _line(frame, source if isinstance(source, Source) else None, variables, mark, other)
        for frame, variables, mark in zip(place.frames, place.variables, differs, strict=True)
    ]
    left_out = max(len(lines) - MAX_FRAMES, 0)
    half = MAX_FRAMES // 2
    shown = lines if not left_out else lines[:half] + lines[-half:]
    members = tuple(member(case, key) for key in place.keys)
    return Side(title, members, facts.phase, facts.op, facts.thread, tuple(shown), left_out + place.left_out)


def _line(
    frame: Frame,
    source: Source | None,
    variables: Sequence[Variable],
    differs: bool,
    other: Mapping[tuple[str, str], Sequence[Variable]],
) -> Line:
    place = source.places.get(f"{frame.file}:{frame.line}") if source else None
    own = not frame.native and not is_library(frame.file)
    there = {v.name: v for v in other.get((frame.file, frame.function), ())}
    shown = [_local(v, there.get(v.name)) for v in variables if _is_shown(v)] if own else []
    shown.sort(key=lambda local: not local.differs)
    return Line(
        frame.function,
        frame.file if own else frame.short or frame.file,
        frame.line,
        place.text if place else "",
        own,
        frame.native,
        differs,
        tuple(shown[:MAX_LOCALS]),
    )


def _is_shown(variable: Variable) -> bool:
    """True for numbers, texts and sized objects; not for objects shown only by address."""
    return variable.number is not None or variable.length is not None or variable.kind in ("str", "none")


def _local(variable: Variable, there: Variable | None) -> Local:
    own = any(
        word in variable.name.lower() for word in MUST_DIFFER
    )  # variables that differ by design, such as the rank
    differs = there is not None and not own and _value(variable) != _value(there)
    if variable.number is None and variable.length is not None and variable.kind != "str":
        return Local(f"len({variable.name})", str(variable.length), differs)
    text = redact(variable.name, variable.text)
    return Local(variable.name, text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…", differs)


def _value(variable: Variable) -> tuple[object, ...]:
    text = variable.text if variable.kind in ("str", "none") else None
    return variable.number, variable.length, text
