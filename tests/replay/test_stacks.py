"""Stacks of a job that nobody watched, without dumps and logs: which rank do its peers wait for, and what is it in?"""

from __future__ import annotations

import pytest

from tests.support.judge import judge
from tests.support.stack_cases import StackCase, cases

ALL = [case for file in ("elsewhere.yaml", "gpu.yaml", "frameworks.yaml", "startup.yaml") for case in cases(file)]


@pytest.mark.parametrize("case", ALL, ids=[case.name for case in ALL])
def test_verdict(case: StackCase) -> None:
    verdict = judge().verdict(judge().facts(case.history))
    first = verdict.findings[0] if verdict.findings else None
    assert (first.playbook if first else None) == case.expect["playbook"]
    named = [f"pid {one.pid}" if one.rank is None else one.rank for one in (first.culprits if first else ())]
    assert named == case.expect["culprits"]
    if "site" in case.expect:
        assert first is not None
        assert first.culprits[0].site == case.expect["site"]
    if "phase" in case.expect:
        assert {(line.phase, line.op) for line in verdict.job.ranks} == {tuple(one) for one in case.expect["phase"]}
    surest = case.expect.get("at_most", "low")
    assert all(one.confidence in ("low", surest) for one in verdict.findings), "nobody watched it"


def test_every_case_has_a_name_of_its_own() -> None:
    assert len({case.name for case in ALL}) == len(ALL)
