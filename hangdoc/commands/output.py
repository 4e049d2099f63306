"""stdout carries the result, stderr the progress."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_WIDTH = 100  # columns if stdout is no terminal and COLUMNS is not set


def stdout_console() -> Console:
    """A console on stdout that prints text literally, and without any escape if NO_COLOR is set."""
    return _console(sys.stdout)


def stderr_console() -> Console:
    """As `stdout_console`, on stderr."""
    return _console(sys.stderr)


def _console(file: TextIO) -> Console:
    from rich.console import Console

    width = None if file.isatty() or os.environ.get("COLUMNS") else PLAIN_WIDTH
    return Console(
        file=file,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        width=width,
        markup=False,
        highlight=False,
        emoji=False,
    )


def write(text: str) -> None:
    """Write a line of the result to stdout."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def reader_gone() -> bool:
    """True once stdout has no reader: a closed pipe, or a terminal that hung up."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(what & (select.POLLERR | select.POLLHUP) for _, what in poll.poll(0))
    except (OSError, ValueError):  # stdout is no file
        return False


def say(text: str) -> None:
    """Write a line of progress to stderr, with secrets masked; the line stays, as it may be a warning."""
    from hangdoc.redaction.text import redact_text
    from hangdoc.render.sanitize import clean

    line = f"hangdoc: {clean(redact_text(text))}"
    dim = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    sys.stderr.write(f"\x1b[2m{line}\x1b[0m\n" if dim else f"{line}\n")
    sys.stderr.flush()


@contextmanager
def progress(every_s: float = 1.0) -> Iterator[Callable[[int], None]]:
    """Count bytes read and, on a terminal, show the count in one line that disappears at the end."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    read, shown_s, shown = 0, time.monotonic(), False

    def note(count: int) -> None:
        nonlocal read, shown_s, shown
        read += count
        if time.monotonic() - shown_s >= every_s:
            shown_s, shown = time.monotonic(), True
            sys.stderr.write(f"\rhangdoc: {read / 2**20:,.0f} MiB read")
            sys.stderr.flush()

    try:
        yield note
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
