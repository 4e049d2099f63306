"""The `hangdoc` command line: exit codes, interrupts, closed pipes and error messages of every command."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from hangdoc.commands.termination import INTERRUPTED, Termination

USAGE = 64  # contract; click's own 2 means "stalled" here
CANNOT_TELL = 3


def main() -> NoReturn:
    """Entry point of the console script `hangdoc`."""
    arguments = sys.argv[1:]
    _main(lambda: run(arguments), own_signals=arguments[:1] == ["daemon"] or launched(arguments)[1] is not None)


def agent() -> NoReturn:
    """Entry point of the console script `hangdoc-agent`: `hangdoc agent` alone, without arguments."""
    _main(_agent)


def _agent() -> int:
    if len(sys.argv) > 1:
        print("hangdoc-agent takes no arguments; `hangdoc watch --nodes` starts it and talks to it", file=sys.stderr)
        return USAGE
    from hangdoc.commands.agent import command

    try:
        return command()
    except Exception as error:
        return _complain(error)


def launched(arguments: list[str]) -> tuple[list[str], tuple[str, ...] | None]:
    """Splits `watch [OPTION]... -- COMMAND...`: our arguments, and the command to start; None: there is none."""
    if arguments[:1] != ["watch"] or "--" not in arguments:
        return arguments, None
    at = arguments.index("--")
    return arguments[:at], tuple(arguments[at + 1 :])


def _main(work: Callable[[], int], own_signals: bool = False) -> NoReturn:
    """`own_signals`: `work` handles them. The daemon ends within seconds; a command that is started gets them."""
    termination = Termination()
    try:
        _streams()
        if not own_signals:
            termination.install()
        code = work()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else CANNOT_TELL if stopped.code else 0
    except Exception:
        if not termination.begun:
            raise
        code = INTERRUPTED  # the cleanup after a signal failed
    termination.leave_if_begun()
    sys.exit(code)


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

    from hangdoc.commands.app import app

    ours, command = launched(arguments)
    result: Any = typer.main.get_command(app)(ours, prog_name="hangdoc", standalone_mode=False, obj=command)
    sys.stdout.flush()
    return result if isinstance(result, int) else 0


def _complain(error: Exception) -> int:
    """Print the error and its remedy to stderr; returns the exit code."""
    if isinstance(error.__context__, (KeyboardInterrupt, SystemExit)):
        # The cleanup after a signal failed, or it came inside __set_name__: CPython before 3.12 raises a RuntimeError.
        return INTERRUPTED
    import typer

    from hangdoc.errors import HangdocError
    from hangdoc.redaction.text import redact_text
    from hangdoc.render.sanitize import clean

    usage_error = typer.BadParameter.__base__  # typer bundles its own click since 0.29
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
        text = f"internal error, please report it: {type(error).__name__}: {error}; HANGDOC_DEBUG=1 shows the traceback"
    text = redact_text(f"hangdoc: {text}")  # the message may quote a job's log
    print("\n".join(map(clean, text.splitlines())), file=sys.stderr)
    return code


def _usage(error: Any) -> int:
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message(), file=sys.stderr)
        return USAGE
    from hangdoc.render.sanitize import clean

    command = context.command_path if context else "hangdoc"
    print(f"{command}: {clean(error.format_message())}", file=sys.stderr)
    if type(error).__name__ == "MissingParameter" and command.endswith(" report"):
        print("To judge a pipe or the clipboard, write `-`: pbpaste | hangdoc report -", file=sys.stderr)
    print(f"See: {command} --help", file=sys.stderr)
    return USAGE


class _Pipe(io.FileIO):
    """A standard stream that drops its output once the reader is gone (`| head`, a terminal that hung up).

    Any other failure of stdout, such as a full disk, is raised once, although the interpreter flushes again at exit.
    stderr carries only progress, so its failures are ignored and never cost the result on stdout.
    """

    def __init__(self, descriptor: int, result: bool) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.lost = False
        self._result = result

    def write(self, data: Any) -> int:
        if not self.lost:
            try:
                return super().write(data) or 0
            except OSError as error:
                self.lost = True
                if self._result and error.errno not in (errno.EPIPE, errno.EIO):
                    raise OSError(error.errno, error.strerror, "standard output") from None
        return memoryview(data).nbytes


def _streams() -> None:
    """Make stdout and stderr survive a closed pipe, and text that their encoding cannot show."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller (`>&-`)
            setattr(sys, name, io.StringIO())
            continue
        buffer = io.BufferedWriter(_Pipe(stream.fileno(), result=name == "stdout"))
        lines = name == "stderr" or stream.isatty()
        setattr(sys, name, io.TextIOWrapper(buffer, stream.encoding, "replace", line_buffering=lines))


if __name__ == "__main__":
    main()
