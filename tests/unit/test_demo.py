"""Which diagnosis satisfies a demo, and what a reproducer's playbook must say."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from hangdoc import demo
from hangdoc.envelope import Expect, Reproducer, Variant
from hangdoc.errors import UsageError
from hangdoc.trial import running
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
    jobs = demo.variants(id)
    assert jobs[0] == demo.broken(id)
    assert len({job.name for job in jobs}) == len(jobs)
    for job in jobs:
        if job.cls != "startup":  # there launchers stand for ranks that are still to come, of other hosts as well
            assert all(rank < job.told.ranks for rank in job.told.expect.culprits)
            assert job.told.expect.culprits or job.cls == "network"
        assert job.told.expect.evidence, f"{job.name}: nothing of the evidence is asked for"
        assert job.script.exists()
    assert (jobs[0].script.parent / "runbook.md").exists()


def test_variant_is_as_the_reproducer_where_it_says_nothing() -> None:
    first = Reproducer.model_validate(
        {
            "ranks": 3,
            "within_s": 40,
            "launcher": "self",
            "env": {"A": "1"},
            "args": ["x"],
            "expect": {"culprits": [2], "evidence": ["a"]},
            "variants": [{"name": "other", "ranks": 7, "script": "other.py"}, {"name": "plain", "args": []}],
        }
    )
    other, plain = first.variant("other"), first.variant("plain")
    assert (other.ranks, other.script, other.launcher, other.env) == (7, "other.py", "self", {"A": "1"})
    assert (other.within_s, other.args, other.expect) == (40, ("x",), first.expect)
    assert (plain.ranks, plain.script, plain.args) == (3, "reproducer.py", ())


@pytest.mark.parametrize("bad", [{"script": "../x.py"}, {"expect": {"evidence": ["("]}}, {"ranks": 0}, {"rank": 1}])
def test_bad_variant_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Variant.model_validate({"name": "x", **bad})


@pytest.mark.parametrize(
    ("lines", "talk_s", "quiet"), [(["one"], None, True), ([], None, False), (["one"], 0.1, False)]
)
def test_log_is_followed_until_it_falls_silent(
    tmp_path: Path, lines: list[str], talk_s: float | None, quiet: bool
) -> None:
    shown: list[str] = []
    with running("-c", 1, ["import time; time.sleep(60)"], launcher="self") as trial:
        trial.log.write_text("\n".join(lines))
        log = demo.Log(trial, shown.append)
        assert log.follow(time.monotonic() + demo.QUIET_S + 1, talk_s) is quiet
    assert shown == lines


def test_unknown_failure_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="uneven-batches"):
        demo.broken("uneven-batch")
