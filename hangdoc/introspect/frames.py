"""Frames as evidence keeps them: shortened file names, and deep stacks without their middle."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

from hangdoc.evidence import Frame, Stack

INNERMOST, OUTERMOST = 200, 50  # frames kept of a deep stack
_LIBRARY = re.compile(r".*/(?:site-packages|dist-packages|lib/python3(?:\.\d+)?)/")

T = TypeVar("T")


def trim_frames(frames: Sequence[T]) -> tuple[Sequence[T], int]:
    """Frames (innermost first) without the middle of a deep stack, and the number left out."""
    left_out = len(frames) - INNERMOST - OUTERMOST
    return (frames, 0) if left_out <= 0 else ([*frames[:INNERMOST], *frames[-OUTERMOST:]], left_out)


def main_stack(threads: Sequence[Stack]) -> Stack:
    """The main thread; if it runs only library code, as Ray's does, the first thread with code of the user."""
    main = next((stack for stack in threads if stack.name == "MainThread"), threads[0])
    return next((stack for stack in (main, *threads) if any(map(_is_own, stack.frames))), main)


def _is_own(frame: Frame) -> bool:
    return not frame.native and not frame.file.startswith("<") and not _LIBRARY.match(frame.file)


def short_name(file: str) -> str:
    """A file name shortened as py-spy does it: from the package on for a library, else the last part.

    py-spy looks for `__init__.py` next to the file. The name alone gives the same result, except in user packages.
    """
    library = _LIBRARY.match(file)
    return file[library.end() :] if library else file if file.startswith("<") else file.rsplit("/", 1)[-1]
