from __future__ import annotations

import json
import unicodedata

import pytest

from hangdoc.render.explanation import tree
from hangdoc.render.json import explanation_line
from hangdoc.rules.explanation import Explanation, Node
from tests.support.verdicts import MakeConsole, written

LATE = Node(
    "late: pace.late",
    None,
    "rank 2",
    "ranks 0-1 (io not seen)",
    ("pace.late = null on ranks 0-1", "pace.late = true on rank 2"),
)
SLOW = Explanation(
    "slow-input",
    "The input is slow",
    "unknown",
    "io of ranks 0-1 not seen",
    (
        Node("when: job.stall.stalled or any(late)", "unknown", parts=(
            Node("job.stall.stalled", "no", values=("job.stall.stalled = false",)),
            Node("any(late)", "yes", parts=(LATE,)),
        )),
    ),
)  # fmt: skip
SHOWN = """\
slow-input  unknown  io of ranks 0-1 not seen
└── when: job.stall.stalled or any(late)  unknown
    ├── job.stall.stalled  no
    │   └── job.stall.stalled = false
    └── any(late)  yes
        └── late: pace.late  rank 2; unknown: ranks 0-1 (io not seen)
            ├── pace.late = null on ranks 0-1
            └── pace.late = true on rank 2
"""

HOSTILE = "a\x1b]0;owned\x07b\x1b[31mc\u202ed\x9b2Je\nf\x00 [bold]g[/bold] :smile:"


def shown(explanation: Explanation, make: MakeConsole, width: int = 100, colour: bool = False) -> str:
    console = make(width, colour)
    console.print(tree(explanation))
    return written(console)


def test_the_tree_has_the_outcome_the_ranks_and_the_values(console: MakeConsole) -> None:
    assert shown(SLOW, console) == SHOWN


@pytest.mark.parametrize("width", [40, 80, 120])
def test_it_fits_any_width(console: MakeConsole, width: int) -> None:
    assert max(map(len, shown(SLOW, console, width).splitlines())) <= width


def test_outcomes_have_colours(console: MakeConsole) -> None:
    text = shown(SLOW, console, colour=True)
    assert "\x1b[1;32m  yes" in text
    assert "\x1b[31m  no" in text
    assert "\x1b[33m  unknown" in text


def test_hostile_text_does_not_reach_the_terminal(console: MakeConsole) -> None:
    node = Node(HOSTILE, "yes", HOSTILE, HOSTILE, (HOSTILE,))
    over_ranks = Node(HOSTILE, None, HOSTILE, HOSTILE, (HOSTILE,), (node,))
    text = shown(Explanation("evil", HOSTILE, "no", HOSTILE, (node, over_ranks)), console, 1000)
    assert not [c for c in text.replace("\n", "") if unicodedata.category(c)[0] == "C"]
    assert "owned" not in text
    assert text.count("abcde f [bold]g[/bold] :smile:") == 1 + 3 + 4 + 3
    assert len(text.splitlines()) == 1 + 2 + 2 + 2


def test_json_has_the_tree_on_one_line_of_ascii() -> None:
    explanation = Explanation("evil", "t", "no", HOSTILE, (Node(HOSTILE, None, values=(HOSTILE,)), LATE))
    line = explanation_line(explanation, "1\u202e2")
    assert line.isascii()
    assert line.isprintable()
    found = json.loads(line)
    assert list(found) == ["job", "playbook", "title", "outcome", "because", "tree"]
    assert found["because"] == HOSTILE
    assert found["tree"][1] == {
        "condition": "late: pace.late",
        "outcome": None,
        "certain": "rank 2",
        "unknown": "ranks 0-1 (io not seen)",
        "values": ["pace.late = null on ranks 0-1", "pace.late = true on rank 2"],
        "parts": [],
    }
