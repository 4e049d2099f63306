"""The child's side of `confined`: imports next to nothing, since every start pays for it."""

from __future__ import annotations

import json
import resource
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

CPU_S = 1.0  # for one question; 150 kB of ordinary source take a tenth of a second
MEMORY_BYTES = 768 << 20  # of address space; a megabyte of ordinary source takes 150 MB
MOST_ANSWER_BYTES = 8 << 20  # of one answer


def serve(function: str) -> None:
    """Answer every question on standard input."""
    module, _, name = function.partition(":")
    call: Callable[[bytes, Any], Any] = getattr(__import__(module, fromlist=[name]), name)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # whatever was inherited
    _confine()
    questions, answers = sys.stdin.buffer, sys.stdout.buffer
    while header := questions.readline():
        size, arguments = json.loads(header)
        signal.setitimer(signal.ITIMER_PROF, CPU_S)  # SIGPROF ends the process, in C code as well
        answers.write(_told(call, questions.read(size), arguments) + b"\n")
        answers.flush()


def _told(call: Callable[[bytes, Any], Any], text: bytes, arguments: Any) -> bytes:
    try:
        told = json.dumps({"told": call(text, arguments)}).encode()
    except RecursionError:
        return b'{"failed": "it is nested too deeply"}'
    except MemoryError:
        return b'{"failed": "it takes too much memory"}'
    except Exception as error:
        return json.dumps({"failed": f"{type(error).__name__}: {error}"[:200]}).encode()
    return told if len(told) <= MOST_ANSWER_BYTES else b'{"failed": "there is too much in it"}'


def _confine() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
