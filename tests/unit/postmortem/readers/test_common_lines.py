"""The last line that all ranks but a few have printed."""

from __future__ import annotations

import pytest

from hangdoc.postmortem.readers._common_lines import MAX_TEXT, lacking_line

HANGS = "it hangs\n"


def lines(*rows: str) -> str:
    return HANGS + "".join(f"{row}\n" for row in rows)


@pytest.mark.parametrize(
    ("text", "lacking", "line", "own"),
    [
        (
            lines("[r0] step 4 fwd", "[r1] step 4 fwd", "[r2] step 4 fwd", "[r3] step 3 fwd"),
            "3", "step 4 fwd", "step 3 fwd",
        ),
        (
            lines("[ord 0] step 4 save", "[ord 1] step 4 save", "[ordinal 2] step 4 next", "[ord 3] step 4 save"),
            "2", "step 4 save", "step 4 next",
        ),
        (
            lines("09:00:01 rank 1: enter loop", "09:00:01 rank 2: enter loop", "09:00:02 rank 3: enter loop"),
            "0", "enter loop", None,
        ),
        (
            lines("r0 | log n=3 a b c", "r1 | log n=3 a b c", "r2 | log n=2 a b", "r3 | log n=3 a b c"),
            "2", "log n=3 a b c", "log n=2 a b",
        ),
        (
            "[rank1]:[E ProcessGroupNCCL.cpp:1] [Rank 1] Watchdog caught collective operation timeout: x\n"
            "rank 0 saving\nrank 1 next epoch\nrank 2 next epoch\nrank 3 next epoch\n",
            "0", "next epoch", "saving",
        ),
    ],
)  # fmt: skip
def test_a_rank_without_the_line(text: str, lacking: str, line: str, own: str | None) -> None:
    found = lacking_line(text, "stdin")
    assert found is not None
    assert (found.fields["lacking"], found.text, found.fields.get("own")) == (lacking, line, own)


@pytest.mark.parametrize(
    "text",
    [
        # Nobody says that the job stands still.
        lines("[r0] step 4 fwd", "[r1] step 4 fwd", "[r2] step 4 fwd", "[r3] step 3 fwd").removeprefix(HANGS),
        # All have printed it, and one goes on to print more.
        lines("[r0] step 4 fwd", "[r1] step 4 fwd", "[r2] step 4 fwd", "[r3] step 4 fwd", "[r0] loss 2.1"),
        # Two of four are elsewhere.
        lines("[r0] step 4 fwd", "[r1] step 4 fwd", "[r2] step 3 fwd", "[r3] step 3 fwd"),
        # The others are not at one line either.
        lines("[r0] step 4 fwd", "[r1] step 4 bwd", "[r2] step 4 fwd", "[r3] step 3 fwd"),
        # Too few ranks.
        lines("[r0] step 4 fwd", "[r1] step 4 fwd", "[r2] step 3 fwd"),
        # Lines of the software, and several ranks in one line.
        lines("[Rank 0] Watchdog a", "[Rank 1] Watchdog a", "[Rank 2] Watchdog a", "rank 3 was slower than rank 1"),
        # Ranks of which most are not shown.
        lines("[r0] step 4 fwd", "[r1] step 4 fwd", "[r2] step 4 fwd", "[r63] step 4 bwd"),
        lines(*(f"[r{rank}] step 4 fwd" for rank in range(7))) + "x" * MAX_TEXT,
    ],
)
def test_no_rank_lacks_a_line(text: str) -> None:
    assert lacking_line(text, "stdin") is None
