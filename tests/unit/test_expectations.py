"""What the tests expect of the reproducers."""

from __future__ import annotations

import pytest
import yaml

from hangdoc.demo import reproducer
from hangdoc.rules.runbook import require
from hangdoc.rules.schema import Envelope, Reproducer
from tests.support import reproducers
from tests.support.reproducers import Expectations, Variant


@pytest.mark.parametrize("id", reproducer.ids())
def test_reproducer_says_who_is_to_blame(id: str) -> None:
    jobs = reproducers.variants(id)
    playbook = Envelope.model_validate(yaml.safe_load((require(id) / "playbook.yaml").read_text(encoding="utf-8")))
    names_someone = playbook.culprits is not None or playbook.blame is not None
    assert jobs[0].spec.expect.culprits == reproducer.broken(id).spec.expect.culprits
    assert len({job.name for job in jobs}) == len(jobs)
    for job in jobs:
        if job.cls != "startup":  # there launchers stand for ranks that are still to come, of other hosts as well
            assert all(rank < job.spec.ranks for rank in job.spec.expect.culprits)
            assert bool(job.spec.expect.culprits) == names_someone, job.name
        assert job.spec.expect.evidence, f"{job.name}: nothing of the evidence is asked for"
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
            "expect": {"culprits": [2]},
        }
    )
    expected = Expectations.model_validate(
        {
            "evidence": ["a"],
            "variants": [
                {"name": "other", "ranks": 7, "script": "other.py"},
                {"name": "plain", "args": []},
                {"name": "slow"},
            ],
        }
    )
    itself, other, plain, slow = reproducers.of(first, expected).values()
    assert (itself.expect.culprits, itself.expect.evidence) == ((2,), ("a",))
    assert (other.ranks, other.script, other.launcher, other.env) == (7, "other.py", "self", {"A": "1"})
    assert (other.within_s, other.args, other.expect) == (40, ("x",), itself.expect)
    assert (slow.ranks, slow.args) == (3, ("--variant", "slow"))
    assert (plain.ranks, plain.script, plain.args) == (3, "reproducer.py", ())


@pytest.mark.parametrize("bad", [{"script": "../x.py"}, {"expect": {"evidence": ["("]}}, {"ranks": 0}, {"rank": 1}])
def test_bad_variant_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Variant.model_validate({"name": "x", **bad})


def test_nothing_is_expected_of_a_playbook_that_is_not_there() -> None:
    assert {file.stem for file in reproducers.EXPECTED.glob("*.yaml")} == set(reproducer.ids())
