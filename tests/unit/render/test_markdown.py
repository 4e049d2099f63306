from __future__ import annotations

import re
import unicodedata
from dataclasses import replace

import pytest

from hangdoc.evidence import Unseen
from hangdoc.incident.incident import File
from hangdoc.render.markdown import document, ticket
from hangdoc.verdict import Proof, RankLine, Verdict
from tests.support.incidents import ENEMY
from tests.support.verdicts import ALL, dead_link, hostile, nameless, uneven


@pytest.mark.parametrize("verdict", ALL, ids=lambda v: v.status)
def test_ticket_is_short(verdict: Verdict) -> None:
    assert len(ticket(verdict).splitlines()) < 60


def test_ticket_of_everything_is_short() -> None:
    verdict = dead_link()
    first = verdict.findings[0]
    many = replace(
        verdict,
        note="A note.",
        job=replace(verdict.job, ranks=tuple(RankLine(i, i, "h", "compute", None, f"f{i}") for i in range(40))),
        findings=(
            replace(first, evidence=(Proof("cpu", (), "x"),) * 40, actions=("y",) * 40, links=first.links * 9),
            *(verdict.findings[1:] * 5),
        ),
        unseen=tuple(Unseen("cpu", f"why {i}") for i in range(40)),
    )
    assert len(ticket(many).splitlines()) < 60


def test_ticket_has_all_parts() -> None:
    text = ticket(uneven())
    assert text.startswith("# STALLED 41 s: Ranks ran different numbers of batches\n")
    assert "- culprit: **rank 2** barrier `finish (train.py:31)` pid 4278 on node-a\n" in text
    assert "- waiting: ranks 0-1 all\\_reduce `train (train.py:24) in backward`\n" in text
    assert "1. Give every rank" in text
    assert "`hangdoc runbook uneven-batches`" in text


def test_hostile_text_makes_no_markup() -> None:
    text = ticket(hostile())
    assert "<b>" not in text.replace("\\<b\\>", "").replace("`[bold red]x[/] <b>&'|*_", "")
    assert "\x1b" not in text
    assert "\n#" not in text.replace("\n## ", "")


def test_several_jobs_are_several_tickets() -> None:
    assert document([uneven(), dead_link()]).count("\n---\n") == 1


def test_long_hostile_names_do_not_make_long_tickets() -> None:
    file = File(ENEMY, ENEMY, 1, ENEMY)
    text = ticket(hostile(ENEMY), [file] * 50, [ENEMY] * 50)
    assert len(text.splitlines()) < 60
    assert len(text) < 100_000
    outside = re.sub(r"(?<!\\)`[^`\n]*`", "", text)  # in code nothing is markup
    assert not re.search(r"(?<!\\)[<{\[]", outside)
    assert not [c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs") and c != "\n"]


def test_differences_have_a_section() -> None:
    text = ticket(replace(uneven(), findings=(), differences=("--lr = 1 on rank 0, <b> on rank 1",)))
    assert "## What differs between the ranks\n\n- --lr = 1 on rank 0, \\<b\\> on rank 1\n" in text


def test_what_is_known_and_what_it_may_be_have_sections() -> None:
    text = ticket(nameless())
    assert "## What is known\n\n- rank 2 waited in ALLREDUCE 19 for 10 min\n- nccl 2.21.5\n" in text
    assert "- **network**: the data did not cross; against: no line reports an error of a link; decide: " in text
