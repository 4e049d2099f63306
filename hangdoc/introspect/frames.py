"""Names of source files as py-spy shortens them, and how much of a deep stack is kept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

INNERMOST, OUTERMOST = 200, 50  # frames of a deep stack that are kept
_LIBRARY = re.compile(r".*/(?:site-packages|dist-packages|lib/python3(?:\.\d+)?)/")

T = TypeVar("T")


def ends(frames: Sequence[T]) -> tuple[Sequence[T], int]:
    """Frames (innermost first) without the middle of a deep stack, and how many those were."""
    left_out = len(frames) - INNERMOST - OUTERMOST
    return (frames, 0) if left_out <= 0 else ([*frames[:INNERMOST], *frames[-OUTERMOST:]], left_out)


def short_name(file: str) -> str:
    """A full file name as py-spy would shorten it: from the package on where it is a library's, else its last part.

    py-spy looks for `__init__.py` beside the file. The name alone tells the same for all but a user's own packages.
    """
    library = _LIBRARY.match(file)
    return file[library.end() :] if library else file if file.startswith("<") else file.rsplit("/", 1)[-1]
