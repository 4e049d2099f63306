"""stdout is the result, stderr the progress: the two, for commands."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_WIDTH = 100  # columns where the output is no terminal and COLUMNS is silent


def stdout_console() -> Console:
    """A console on stdout that takes all text literally; without any escape where NO_COLOR is set."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else PLAIN_WIDTH
    return Console(
        file=sys.stdout,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        width=width,
        markup=False,
        highlight=False,
        emoji=False,
    )


def write(text: str) -> None:
    """A line of result."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def reader_gone() -> bool:
    """True once nobody reads stdout any more: a closed pipe, a terminal that hung up."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(what & (select.POLLERR | select.POLLHUP) for _, what in poll.poll(0))
    except (OSError, ValueError):  # no file behind it
        return False


def say(text: str) -> None:
    """A line of progress on stderr, without secrets; it stays, since it may be a warning."""
    from hangdoc.redaction.text import redact_text
    from hangdoc.render.sanitize import clean

    line = f"hangdoc: {clean(redact_text(text))}"
    dim = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    sys.stderr.write(f"\x1b[2m{line}\x1b[0m\n" if dim else f"{line}\n")
    sys.stderr.flush()


@contextmanager
def progress(every_s: float = 1.0) -> Iterator[Callable[[int], None]]:
    """Counts bytes that are read, and says how many on a terminal while it lasts; one line, gone at the end."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    read, said_s, shown = 0, time.monotonic(), False

    def note(count: int) -> None:
        nonlocal read, said_s, shown
        read += count
        if time.monotonic() - said_s >= every_s:
            said_s, shown = time.monotonic(), True
            sys.stderr.write(f"\rhangdoc: {read / 2**20:,.0f} MiB read")
            sys.stderr.flush()

    try:
        yield note
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
