"""The child side of `sandbox`. Imports as little as possible, because every start pays for it."""

from __future__ import annotations

import json
import resource
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

CPU_S = 1.0  # per question; 150 kB of ordinary source take 0.1 s
MEMORY_BYTES = 768 << 20  # address space; 1 MB of ordinary source takes 150 MB
MAX_ANSWER_BYTES = 8 << 20  # per answer


def serve(function: str) -> None:
    """Answer questions from standard input until it ends."""
    module, _, name = function.partition(":")
    call: Callable[[bytes, Any], Any] = getattr(__import__(module, fromlist=[name]), name)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # whatever we inherited
    _confine()
    questions, answers = sys.stdin.buffer, sys.stdout.buffer
    while header := questions.readline():
        size, arguments = json.loads(header)
        signal.setitimer(signal.ITIMER_PROF, CPU_S)  # SIGPROF ends the process, even in C code
        answer = _answer(call, questions.read(size), arguments)
        signal.setitimer(signal.ITIMER_PROF, 0)  # before it is written: a late signal must not end the next question
        answers.write(answer + b"\n")
        answers.flush()


def _answer(call: Callable[[bytes, Any], Any], text: bytes, arguments: Any) -> bytes:
    try:
        answer = json.dumps({"answer": call(text, arguments)}).encode()
    except RecursionError:
        return b'{"failed": "it is nested too deeply"}'
    except MemoryError:
        return b'{"failed": "it takes too much memory"}'
    except Exception as error:
        return json.dumps({"failed": f"{type(error).__name__}: {error}"[:200]}).encode()
    return answer if len(answer) <= MAX_ANSWER_BYTES else b'{"failed": "there is too much in it"}'


def _confine() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
