"""The sandbox: a limit for each question, and for nothing else."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from hangdoc.system import sandbox
from hangdoc.system._sandbox_child import CPU_S


@pytest.mark.slow("uses up CPU time between two questions")
def test_cpu_time_between_two_questions_is_charged_to_none() -> None:
    """A question that was answered just within its limit must not end the one after it."""
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        sandbox._BOOT,
        sandbox._ROOT,
        "tests.support.sandboxed:busy_afterwards",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        questions, answers = child.stdin, child.stdout
        assert questions is not None
        assert answers is not None

        def ask(text: bytes, seconds: float) -> object:
            questions.write(json.dumps([len(text), seconds]).encode() + b"\n" + text)
            questions.flush()
            return json.loads(answers.readline())

        assert ask(b"first", 2 * CPU_S) == {"answer": 5}
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(4 * CPU_S)
        assert ask(b"second", 0.0) == {"answer": 6}
        questions.close()
        assert child.wait(10) == 0
