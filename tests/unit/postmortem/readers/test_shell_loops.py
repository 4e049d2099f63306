"""Loops over processes in a shell: which process each round examines, and whose frames follow."""

from __future__ import annotations

import pytest

from hangdoc.postmortem.readers._shell_loops import loop_items
from hangdoc.postmortem.readers._text_source import cleaned

FRAMES = ["    all_reduce (torch/distributed/distributed_c10d.py:2501)", "    step (run.py:8)"]
LOOP = "$ for p in 811 812 813; do py-spy dump -p $p | sed -n 5,6p; done"


@pytest.mark.parametrize(
    ("text", "items"),
    [
        (f"{LOOP}   # ranks 0 2 7", [(811, 0), (812, 2), (813, 7)]),
        (f"{LOOP}   # rank 4,5 and 6", [(811, 4), (812, 5), (813, 6)]),
        (f"{LOOP}  (ranks 1-3)", [(811, 1), (812, 2), (813, 3)]),
        (f"{LOOP}   # ranks 0 2", [(811, None), (812, None), (813, None)]),  # not as many
        ("for r in 0 3; do gdb -p ${PIDS[$r]} -batch -ex bt | tail -3; done", [(None, 0), (None, 3)]),
        ("$ for i in 0 1 2; do cat /sys/class/net/ib$i/mtu; done", []),
        ("$ for p in 811 812; do date; done", []),
    ],
)
def test_items(text: str, items: list[tuple[int | None, int | None]]) -> None:
    assert [(item.pid, item.rank) for item in loop_items(text)] == items


@pytest.mark.parametrize("between", [[], [""]])
def test_each_process_has_its_frames(between: list[str]) -> None:
    lines = [f"{LOOP}  # ranks 0 2 7", *FRAMES, *between, *FRAMES, *between, *FRAMES, "done"]
    texts = [line.text for line in cleaned("\n".join(lines))]
    headings = [text for text in texts if text.startswith("rank ")]
    assert headings == ["rank 0 (pid 811):", "rank 2 (pid 812):", "rank 7 (pid 813):"]
    assert sum("Thread" in text for text in texts) == 3


def test_a_number_of_frames_that_the_processes_cannot_share_is_left_as_it_is() -> None:
    lines = [f"{LOOP}  # ranks 0 2 7", *FRAMES, *FRAMES]
    assert not [line.text for line in cleaned("\n".join(lines)) if line.text.startswith("rank ")]
