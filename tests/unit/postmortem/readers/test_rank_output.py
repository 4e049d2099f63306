"""Output below the heading of a rank: which lines become its own."""

from __future__ import annotations

import pytest

from hangdoc.postmortem.readers._text_source import cleaned


def texts(text: str) -> list[str]:
    return [line.text for line in cleaned(text)]


@pytest.mark.parametrize(
    "heading",
    ["--- rank 2 ---", "### rank 2", "[node n41, rank 2]", "output of rank 2:", "=== stderr, global rank 2 (n41) ==="],
)
def test_lines_below_a_heading_are_those_of_its_rank(heading: str) -> None:
    assert texts(f"{heading}\nstep 7 loss 2.1\nValueError: bad batch\n") == [
        heading,
        "[rank2]: step 7 loss 2.1",
        "[rank2]: ValueError: bad batch",
        "",
    ]


def test_the_kernel_log_of_the_node_of_a_rank() -> None:
    found = texts(
        "dmesg on the node of rank 0:\n[Tue Oct  7 02:11:40 2025] nfs: server a not responding\n\nthe rest is fine"
    )
    assert found[1].startswith("[rank0]: ")
    assert found[3] == "the rest is fine"


def test_a_section_ends_at_the_next_heading_a_prompt_and_at_prose() -> None:
    found = texts(
        "--- rank 0 ---\nstep 7 loss 2\n--- n2 ---\nstep 9 loss 3\n--- rank 1 ---\nstep 8 loss 2\n\nstep 9 loss 2\n"
        "\nAfter that nothing happens any more.\nstep 10 loss 2\n--- rank 3 ---\nstep 8 loss 2\n"
        "me@n1:~$ tail x\nstep 9 loss 1"
    )
    assert [text for text in found if text.startswith("[rank")] == [
        "[rank0]: step 7 loss 2",
        "[rank1]: step 8 loss 2",
        "[rank1]: step 9 loss 2",
        "[rank3]: step 8 loss 2",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "ranks 0-3:\nstep 7 loss 2.1",  # several
        'rank 2:\nThread 7 (idle): "MainThread"\n    wait (threading.py:320)\nValueError: x',  # stacks keep it
        "rank 2:\n[rank3]: ValueError: x",  # the lines name their rank
        "rank 2:\nhello there",  # no output
        "rank 2 stopped after step 7 and rank 3 went on:\nstep 7 loss 2.1",
        "on rank 2\nstep 7 loss 2.1",  # no heading
    ],
)
def test_no_section(text: str) -> None:
    assert texts(text) == text.split("\n")
