"""Call path of a thread: its Python frames, with the source around each line and the variables of each frame."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, overload

from hangdoc.evidence import Frame, Place, Source, Stack, Variable

ROOT_FUNCTIONS = ("<module>",)
LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "/torchinductor_")


class FrameVariables(Mapping[str, Variable]):
    """The variables of a frame, by name. Searched linearly: frames are many, their variables few."""

    __slots__ = ("sequence",)

    def __init__(self, sequence: Sequence[Variable]) -> None:
        self.sequence = sequence

    def __getitem__(self, name: str) -> Variable:
        for variable in self.sequence:
            if variable.name == name:
                return variable
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter([variable.name for variable in self.sequence])

    def __len__(self) -> int:
        return len(self.sequence)

    def __contains__(self, name: object) -> bool:
        return any(variable.name == name for variable in self.sequence)

    def values(self) -> Sequence[Variable]:  # type: ignore[override]  # a mapping view would look each one up
        return self.sequence


class Step(NamedTuple):  # cheaper to construct than a frozen dataclass; there are many
    """One frame of a call path."""

    function: str
    file: str
    line: int
    short: str
    place: Place | None
    variables: FrameVariables

    @property
    def site(self) -> str:
        return f"{self.function} ({self.short.rsplit('/', 1)[-1]}:{self.line})"


CallPath = Sequence[Step]  # outermost first
Code = tuple[tuple[str, str], ...]  # file and function of each step: equal on ranks that run the same code
Plan = tuple[tuple[int, Place | None], ...]  # indices of the frames of a path, outermost first, and their source
Known = dict[int, Step]  # by the identity of the frame a step is made of; the frame must stay alive


class LazyCallPath(Sequence[Step]):
    """A call path that builds its steps on first access: for most ranks nobody reads them."""

    __slots__ = ("_known", "_module", "_stack", "_steps", "plan")

    def __init__(self, plan: Plan, stack: Stack, module: Sequence[Variable] | None, known: Known) -> None:
        self.plan, self._stack, self._module, self._known = plan, stack, module, known
        self._steps: list[Step] | None = None

    def variables(self, depth: int) -> Sequence[Variable]:
        """The variables of one step."""
        return variables_of(self._stack.frames[self.plan[depth][0]], self._module)

    def is_same(self, other: LazyCallPath) -> bool:
        """True if both paths consist of the same objects, step by step."""
        own, peer = self._stack.frames, other._stack.frames
        if self.plan is other.plan and self._module is other._module:
            return all(own[i] is peer[i] for i, _ in self.plan)
        return len(self.plan) == len(other.plan) and all(
            own[i] is peer[j] and place is there and self.variables(depth) is other.variables(depth)
            for depth, ((i, place), (j, there)) in enumerate(zip(self.plan, other.plan, strict=True))
        )

    def beside(self, other: LazyCallPath) -> Iterator[tuple[Sequence[Variable], Sequence[Variable]]]:
        """For each step that is not the same object in both paths: its variables, here and there."""
        own, peer = self._stack.frames, other._stack.frames
        same_module = self._module is other._module
        for (i, _), (j, _) in zip(self.plan, other.plan, strict=True):
            here, there = own[i], peer[j]
            if here is not there or not same_module:
                yield variables_of(here, self._module), variables_of(there, other._module)

    def _made(self) -> list[Step]:
        if self._steps is None:
            self._steps = build_path(self.plan, self._stack, self._module, self._known)
        return self._steps

    @overload
    def __getitem__(self, at: int) -> Step: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Step]: ...
    def __getitem__(self, at: int | slice) -> Step | Sequence[Step]:
        return self._made()[at]

    def __iter__(self) -> Iterator[Step]:
        return iter(self._made())

    def __len__(self) -> int:
        return len(self.plan)


def call_path(stack: Stack, source: Source | None, module: Sequence[Variable] | None) -> list[Step]:
    """The call path of a thread: its Python frames, outermost first, without the interpreter's start-up frames."""
    return build_path(plan(stack, source), stack, module, {})


def plan(stack: Stack, source: Source | None) -> Plan:
    """The frames of a call path; equal for ranks at the same lines of the same source."""
    places = source.places if source else {}
    python = [(i, frame) for i, frame in enumerate(stack.frames) if not frame.native and frame.line is not None][::-1]
    first = next((n for n, (_, frame) in enumerate(python) if not _launching(frame.file)), 0)
    return tuple([(i, places.get(f"{frame.file}:{frame.line}")) for i, frame in python[first:]])


def build_path(plan: Plan, stack: Stack, module: Sequence[Variable] | None, known: Known) -> list[Step]:
    """The call path of a plan; reuses steps from `known` if they are made of the same objects."""
    frames, path = stack.frames, []
    for i, place in plan:
        frame = frames[i]
        variables = frame.variables or variables_of(frame, module)
        step = known.get(id(frame))
        if step is None or step.place is not place or step.variables.sequence is not variables:
            named = FrameVariables(variables)
            step = Step(frame.function, frame.file, frame.line or 0, frame.short or frame.file, place, named)
            known[id(frame)] = step
        path.append(step)
    return path


def variables_of(frame: Frame, module: Sequence[Variable] | None) -> Sequence[Variable]:
    """The variables of a frame; for the script's top level without any, those of `module`."""
    return frame.variables or (module if frame.function in ROOT_FUNCTIONS else None) or ()


def code_of(path: CallPath) -> Code:
    """File and function of each step, regardless of lines and variables."""
    return tuple([(step.file, step.function) for step in path])


@lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """True for torch, site-packages, the standard library, and frozen or compiled code; False for user code."""
    return any(part in file for part in LIBRARIES) or file.startswith("<")


def own_of(path: CallPath) -> list[Step]:
    """The steps in user code."""
    return [step for step in path if not is_library(step.file)]


def user_step(path: CallPath) -> Step | None:
    """The innermost step in user code, else the innermost step."""
    own = own_of(path)
    return own[-1] if own else (path[-1] if path else None)


@lru_cache(maxsize=4096)
def _launching(file: str) -> bool:
    """True for runpy, multiprocessing.spawn and the like: launch code above the user's script."""
    return file.startswith("<frozen runpy") or "/multiprocessing/" in file or file.endswith("runpy.py")
