"""What is left of one real job that hung (uneven batches, three ranks), in every form in which it may be pasted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.judge import reported
from tests.support.samples import SAMPLES, SCRIPT

FORMS = {
    "py-spy": ["pyspy/text.txt"],
    "py-spy, variables": ["pyspy/locals.txt"],
    "py-spy, native": ["pyspy/native.txt"],
    "py-spy, JSON": ["pyspy/rank_0.json", "pyspy/rank_1.json", "pyspy/rank_2.json"],
    "py-spy and ss": ["pyspy/text.txt", "ss/tinpe.txt"],
    "pdsh": ["pyspy/pdsh.txt"],
    "ray stack": ["pyspy/ray_stack.txt"],
    "local ranks": ["pyspy/local_rank.txt"],
    "faulthandler": ["faulthandler/rank_0.txt", "faulthandler/rank_1.txt", "faulthandler/rank_2.txt"],
}


@pytest.mark.parametrize("form", FORMS)
def test_with_the_script_the_cause_is_told(form: str, tmp_path: Path) -> None:
    shutil.copy(SCRIPT, tmp_path / "train.py")
    found = reported(*(SAMPLES / name for name in FORMS[form]), tmp_path / "train.py")
    (verdict,) = found.verdicts
    first = verdict.findings[0]
    assert (verdict.status, first.playbook) == ("stalled", "uneven-batches")
    assert first.confidence in ("low", "medium"), "nobody watched it"
    (culprit,) = first.culprits
    assert "save_checkpoint" in (culprit.site or "")
    if culprit.rank is not None:
        assert culprit.rank == 2
    else:
        assert culprit.pid == 28017


@pytest.mark.parametrize("form", FORMS)
def test_without_it_none_is_made_up(form: str, tmp_path: Path) -> None:
    (verdict,) = reported(*(SAMPLES / name for name in FORMS[form])).verdicts
    assert verdict.status == "stalled"
    assert [finding.playbook for finding in verdict.findings] == ["ranks-parted"]
    assert [culprit.rank in (2, None) for culprit in verdict.findings[0].culprits] == [True]
    assert {line.op for line in verdict.job.ranks} == {"all_reduce", "barrier"}


def test_ss_tells_for_how_long() -> None:
    (verdict,) = reported(SAMPLES / "pyspy/text.txt", SAMPLES / "ss/tinpe.txt").verdicts
    assert verdict.stalled_for_s == pytest.approx(13.0, abs=0.5)
