"""Which thread a probe looks at first."""

from __future__ import annotations

import pytest

from hangdoc.evidence import Frame, Stack
from hangdoc.introspect.frames import main_stack

LIBRARY, WAIT = "/v/lib/python3.11/site-packages/ray/_private/worker.py", "/usr/lib/python3.11/threading.py"


def thread(name: str, *files: str) -> Stack:
    return Stack(1, name, tuple(Frame("f", file, 1) for file in files))


TRAINS, COLLECTS = thread("Training", LIBRARY, "/job/train.py", WAIT), thread("GC", WAIT)


@pytest.mark.parametrize(
    ("threads", "name"),
    [
        ([TRAINS, COLLECTS, thread("MainThread", LIBRARY)], "Training"),
        ([TRAINS, COLLECTS, thread("MainThread", WAIT, "/job/main.py")], "MainThread"),
        ([COLLECTS, thread("MainThread", LIBRARY)], "MainThread"),
        ([COLLECTS], "GC"),
    ],
)
def test_a_main_thread_without_user_code_is_passed_over(threads: list[Stack], name: str) -> None:
    assert main_stack(threads).name == name
