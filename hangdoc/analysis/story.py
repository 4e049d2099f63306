"""Where a rank stands: its call chain, with the source around each line and the variables of each frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hangdoc.evidence import Frame, Place, Source, Stack, Variable

ROOT_FUNCTIONS = ("<module>",)
LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "/torchinductor_")


@dataclass(frozen=True, slots=True)
class Step:
    """One frame of a story."""

    function: str
    file: str
    line: int
    short: str
    place: Place | None
    variables: Mapping[str, Variable]

    @property
    def site(self) -> str:
        return f"{self.function} ({self.short.rsplit('/', 1)[-1]}:{self.line})"


Story = Sequence[Step]  # outermost first


def tell(stack: Stack, source: Source | None, module: Sequence[Variable] | None) -> list[Step]:
    """The story of a thread: its Python frames, outermost first, without the interpreter's own start-up frames."""
    places = source.places if source else {}
    frames = [frame for frame in reversed(stack.frames) if not frame.native and frame.line is not None]
    first = next((i for i, frame in enumerate(frames) if not _launching(frame)), 0)
    return [
        Step(
            frame.function,
            frame.file,
            frame.line or 0,
            frame.short or frame.file,
            places.get(f"{frame.file}:{frame.line}"),
            {v.name: v for v in _variables(frame, module)},
        )
        for frame in frames[first:]
    ]


def is_library(file: str) -> bool:
    """True for torch, site-packages, the standard library, frozen and compiled code: not the user's own."""
    return any(part in file for part in LIBRARIES) or file.startswith("<")


def user_step(story: Story) -> Step | None:
    """The innermost frame of the user's own code, or the innermost of all where there is none."""
    own = [step for step in story if not is_library(step.file)]
    return own[-1] if own else (story[-1] if story else None)


def _launching(frame: Frame) -> bool:
    """Frames of runpy, multiprocessing.spawn and the like, which stand above the user's code and say nothing."""
    return (
        frame.file.startswith("<frozen runpy") or "/multiprocessing/" in frame.file or frame.file.endswith("runpy.py")
    )


def _variables(frame: Frame, module: Sequence[Variable] | None) -> Sequence[Variable]:
    if frame.function in ROOT_FUNCTIONS and not frame.variables:
        return module or ()
    return frame.variables or ()
