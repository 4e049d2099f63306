"""The `hangdoc` command: what surrounds every command: exit codes, interruption, closed pipes, clear errors."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

USAGE = 64  # contract; click's own 2 means "stalled" here
CANNOT_TELL = 3
AGAIN_S = 0.2
INTERRUPTED = 130


def main() -> NoReturn:
    """Entry point of the console script `hangdoc`."""
    _main(lambda: run(sys.argv[1:]))


def agent() -> NoReturn:
    """Entry point of the console script `hangdoc-agent`: `hangdoc agent`, and nothing else. It takes no argument."""
    _main(_agent)


def _agent() -> int:
    if len(sys.argv) > 1:
        print("hangdoc-agent takes no argument: `hangdoc watch --nodes` starts it and talks to it", file=sys.stderr)
        return USAGE
    from hangdoc.commands.agent import command

    try:
        return command()
    except Exception as error:
        return _complain(error)


def _main(work: Callable[[], int]) -> NoReturn:
    try:
        _streams()
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:  # a nohup'ed one goes on ignoring it
                signal.signal(number, _stop)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            for number in (signal.SIGINT, signal.SIGALRM):
                signal.signal(number, _interrupt)
        code = work()
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED:
        _leave()
    sys.exit(code)


def _leave() -> NoReturn:
    """Exit after Ctrl-C, when everything is cleaned up.

    The interpreter would wait for threads first, and CPython (seen with 3.11) ends itself by SIGINT, without the
    exit code, where the Ctrl-C that we caught struck within an `exec`, as `dataclass` uses it.
    """
    for number in (signal.SIGINT, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(INTERRUPTED)


def run(arguments: list[str]) -> int:
    """Run one command line; returns the exit code."""
    try:
        return _invoke(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if os.environ.get("HANGDOC_DEBUG"):
            raise
        return _complain(error)


def _invoke(arguments: list[str]) -> int:
    import typer

    from hangdoc.commands import app

    result: Any = typer.main.get_command(app)(arguments, prog_name="hangdoc", standalone_mode=False)
    sys.stdout.flush()
    return result if isinstance(result, int) else 0


def _complain(error: Exception) -> int:
    """Say on stderr what went wrong and what to do; returns the exit code."""
    import typer

    from hangdoc.errors import HangdocError
    from hangdoc.render.text import clean
    from probes._redact import redact_text

    usage_error = typer.BadParameter.__base__  # typer carries its own click from 0.29 on, and used the real one before
    if usage_error is not None and isinstance(error, usage_error):
        return _usage(error)
    code = error.code if isinstance(error, HangdocError) else CANNOT_TELL
    if isinstance(error, HangdocError):
        text = str(error)
    elif isinstance(error, typer.Abort):
        return INTERRUPTED
    elif isinstance(error, OSError):
        text = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
    else:
        text = f"internal error, please report it: {type(error).__name__}: {error}. HANGDOC_DEBUG=1 shows where"
    text = redact_text(f"hangdoc: {text}")  # a job's log may be in it
    print("\n".join(map(clean, text.splitlines())), file=sys.stderr)
    return code


def _usage(error: Any) -> int:
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message(), file=sys.stderr)
        return USAGE
    from hangdoc.render.text import clean

    command = context.command_path if context else "hangdoc"
    print(f"{command}: {clean(error.format_message())}", file=sys.stderr)
    print(f"See: {command} --help", file=sys.stderr)
    return USAGE


class _Pipe(io.FileIO):
    """A standard stream whose reader may go away (`| head`, a terminal that hangs up): what follows is dropped.

    Any other failure, such as a full disk, is raised once: the interpreter flushes again at its end.
    """

    lost = False

    def write(self, data: Any) -> int:
        if not self.lost:
            try:
                return super().write(data) or 0
            except OSError as error:
                self.lost = True
                if error.errno not in (errno.EPIPE, errno.EIO):
                    raise OSError(error.errno, error.strerror, "standard output") from None
        return memoryview(data).nbytes


def _streams() -> None:
    """Make stdout and stderr survive a closed pipe and text their encoding cannot show."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller (`>&-`)
            setattr(sys, name, io.StringIO())
            continue
        buffer = io.BufferedWriter(_Pipe(stream.fileno(), "w", closefd=False))
        lines = name == "stderr" or stream.isatty()
        setattr(sys, name, io.TextIOWrapper(buffer, stream.encoding, "replace", line_buffering=lines))


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Ctrl-C. Within an import CPython may drop the exception (a lock's weakref callback): then it comes once more."""
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    signal.setitimer(signal.ITIMER_REAL, 0.0 if frame is None else AGAIN_S)
    raise KeyboardInterrupt


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)  # unwinds: what a command started is cleaned up


if __name__ == "__main__":
    main()
