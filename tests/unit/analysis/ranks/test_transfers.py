"""Which pending send or receive a thread waits for."""

from __future__ import annotations

import pytest

from hangdoc.analysis.ranks.call_path import CallPath, Thread, frames_of
from hangdoc.analysis.ranks.transfers import awaited
from hangdoc.evidence import Frame, Place, Source, Stack, Variable
from hangdoc.evidence.transfers import Transfer

SEND = Transfer(True, 1, 0, 7, ("out", "reqs[0]", "handles[out]"))
RECEIVE = Transfer(False, 1, 0, 7, ("into", "reqs[1]", "handles[in]"))
UNHELD = Transfer(False, 2, 0, 7)
SEND_WAIT, WORK_WAIT = "c10d::ProcessGroupGloo::SendWork::wait", "c10d::ProcessGroupGloo::AsyncWork::wait"


def thread(text: str | None, native: str | None = None, *variables: Variable, calls: tuple[str, ...] = ()) -> Thread:
    """A thread in this statement; None: in a library without source."""
    file = "/job/train.py" if text is not None else "/v/lib/python3.11/site-packages/library.py"
    frames = [Frame("step", file, 3, variables=variables)]
    if native:
        frames.insert(0, Frame(native, "libtorch_cpu.so", None, native=True))
    stack = Stack(1, "MainThread", tuple(frames))
    place = Place(text or "", (), (), calls, 1, 9)
    return Thread(CallPath(frames_of(stack), Source({f"{file}:3": place} if text is not None else {})), stack)


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (thread("into.wait()"), [RECEIVE]),
        (thread("reqs[0].wait()"), [SEND]),
        (thread("handles['in'].wait()"), [RECEIVE]),
        (thread("reqs[i].wait()", None, Variable("i", "1", number=1, kind="int")), [RECEIVE]),
        (thread("handles[k].wait()", None, Variable("k", '"out"', kind="str")), [SEND]),
        (thread("reqs[n + 1].wait()"), []),
        (thread("reqs[n].wait()"), [SEND, RECEIVE]),
        (thread("reqs[n].wait()", SEND_WAIT), [SEND]),
        (thread("dist.irecv(x, 2).wait()", calls=("dist.irecv", "dist.irecv.wait")), [SEND, RECEIVE, UNHELD]),
        (thread("finish()", SEND_WAIT), [SEND]),
        (thread("gradients.wait()", WORK_WAIT), []),
        (thread("gradients.wait()"), []),
        (thread(None, None, Variable("out", "<Work>")), [SEND]),
        (thread(None, None, Variable("other", "<Work>")), []),
    ],
)
def test_the_transfer_that_is_waited_for(at: Thread, expected: list[Transfer]) -> None:
    assert awaited(at, [SEND, RECEIVE, UNHELD]) == expected
