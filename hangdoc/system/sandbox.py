"""Runs a pure function over untrusted bytes in a child process, which may crash, hang or run out of memory.

CPython's parser recurses in C: a long chain of `a.b.b.b` kills the interpreter with SIGSEGV (3.10), deep nesting raises
RecursionError, and the tree of a megabyte of `a;a;a` takes hundreds of megabytes. In the child, that costs one answer.

The child is this interpreter without site packages (`-I -S`), which starts in 25 ms; the function should import little.
It reads questions and writes one line of JSON for each.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hangdoc.system._sandbox_child import CPU_S

DEADLINE_S = 5.0  # for all questions of one call; on a busy host CPU time takes longer
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); from hangdoc.system._sandbox_child import serve; serve(sys.argv[2])"
)
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

Question = tuple[bytes, Any]  # untrusted bytes, and arguments as JSON values


@dataclass(frozen=True, slots=True)
class Failed:
    """A question without an answer."""

    why: str  # reason, as the end of a sentence
    tried: bool = True  # False: a retry may succeed
    ended: bool = False  # the child died on this question


def run_each(function: str, questions: Sequence[Question], deadline_s: float = DEADLINE_S) -> list[Any]:
    """The result of `function` ("package.module:name") for each question as a JSON value, or a Failed."""
    answers: list[Any] = []
    limit = time.monotonic() + deadline_s
    while len(answers) < len(questions):
        left = limit - time.monotonic()
        if left <= 0:
            answers.append(Failed("there was no time left for it", tried=False))
            continue
        given, ending = _run(function, questions[len(answers) :], left)
        answers += given
        if len(answers) < len(questions):
            answers.append(ending)
    return answers


def _run(function: str, questions: Sequence[Question], timeout_s: float) -> tuple[list[Any], Failed]:
    """The answers of one child until its end, and the reason that there are no more."""
    sent = b"".join(json.dumps([len(text), arguments]).encode() + b"\n" + text for text, arguments in questions)
    command = [sys.executable, "-I", "-S", "-c", _BOOT, _ROOT, function]
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
    except OSError as error:
        return [], Failed(f"no process could be started for it ({error.strerror})", tried=False)
    ending = None
    with child:
        try:
            out, _ = child.communicate(sent, timeout_s)
        except subprocess.TimeoutExpired:
            child.kill()
            out, _ = child.communicate()
            ending = Failed("it was not done in time", tried=False, ended=True)
        except BaseException:
            child.kill()
            raise
    lines = out.split(b"\n")[:-1]  # the part after the last newline is incomplete
    return [_answer(line) for line in lines[: len(questions)]], ending or Failed(_ending(child.returncode), ended=True)


def _answer(line: bytes) -> Any:
    answer = json.loads(line)
    return Failed(str(answer["failed"])) if "failed" in answer else answer["answer"]


def _ending(code: int) -> str:
    if code == -signal.SIGPROF:
        return f"it takes more than {CPU_S:g} s"
    return f"its process ended with {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"
