"""Which diagnosis satisfies a demo, and what a reproducer's playbook must say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hangdoc import demo
from hangdoc.envelope import Expect, Reproducer
from hangdoc.errors import UsageError
from hangdoc.verdict import Culprit, Finding, Job, Verdict

FINDING = Finding("late", "collective_wait", "high", "t", "s", (Culprit(2, 12, "h"), Culprit(0, 10, "h")))
BROKEN = demo.Broken(
    "late", "collective_wait", Path("x"), Reproducer(ranks=3, within_s=1, expect=Expect(culprits=(0, 2)))
)


@pytest.mark.parametrize(
    ("findings", "met"),
    [
        ((FINDING,), True),
        ((), False),
        ((replace(FINDING, playbook="other"),), False),
        ((replace(FINDING, cls="network"),), False),
        ((replace(FINDING, culprits=(Culprit(2, 12, "h"),)),), False),
        ((replace(FINDING, culprits=()),), False),
        ((replace(FINDING, playbook="other"), FINDING), False),  # only the best one counts
    ],
)
def test_meets(findings: tuple[Finding, ...], met: bool) -> None:
    verdict = Verdict("stalled", 5.0, Job("none", 3, "torchrun", ("h",), ()), findings)
    assert BROKEN.meets([verdict]) is met


@pytest.mark.parametrize("id", demo.ids())
def test_reproducer_says_who_is_to_blame(id: str) -> None:
    broken = demo.broken(id)
    assert all(rank < broken.told.ranks for rank in broken.told.expect.culprits)
    assert broken.told.expect.culprits or broken.cls == "network"
    assert (broken.script.parent / "runbook.md").exists()


def test_unknown_failure_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="uneven-batches"):
        demo.broken("uneven-batch")
