"""NCCL's log of calls; lines follow src/enqueue.cc of NCCL 2.18."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangdoc.evidence.logs import Logs
from tests.support.samples import text


def call(process: int, number: str, op: str, count: int, size: int = 2) -> str:
    comm = f"comm 0x55{process:04x} [nranks={size}] stream 0x1"
    what = f"sendbuff 0x7f recvbuff 0x7f count {count} datatype 7 op 0 root 0 {comm}"
    return f"gx1:{process}:{process} [0] NCCL INFO {op}: opCount {number} {what}\n"


COMMON = call(11, "9", "AllReduce", 64) + call(12, "9", "AllReduce", 64)


def said(folder: Path, content: str) -> list[str]:
    found = text("nccl_calls", folder, content)
    return [one.text for piece in found if isinstance(piece.record, Logs) for one in piece.record.said]


def test_first_call_that_differs(tmp_path: Path) -> None:
    content = COMMON + call(11, "a", "AllReduce", 64) + call(12, "a", "Broadcast", 8)
    assert said(tmp_path, content) == ["NCCL call a: AllReduce of 64 in gx1:11, Broadcast of 8 in gx1:12"]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(COMMON, id="the same calls"),
        pytest.param(call(11, "a", "AllReduce", 64) + call(12, "a", "AllReduce", 8), id="never the same call"),
        pytest.param(
            COMMON
            + call(11, "a", "AllReduce", 64)
            + call(12, "a", "AllReduce", 8)
            + call(11, "b", "Broadcast", 4)
            + call(12, "b", "Broadcast", 4),
            id="together again",
        ),
        pytest.param(
            COMMON + call(13, "9", "AllReduce", 64) + call(13, "a", "Broadcast", 1) + call(11, "a", "AllReduce", 2),
            id="more processes than ranks",
        ),
        pytest.param(COMMON + call(11, "a", "Send", 64) + call(12, "a", "Recv", 8), id="between two"),
    ],
)
def test_quiet(content: str, tmp_path: Path) -> None:
    assert said(tmp_path, content) == []
