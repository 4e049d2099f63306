"""Reports on files in the ways in which people combine them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangdoc.postmortem.report import CUT, Unrecognised
from tests.support.judge import reported

RAISED = """[rank1]: Traceback (most recent call last):
[rank1]:   File "/w/a.py", line 1, in f
[rank1]: ValueError: x
"""
NATIVE = """rank 1
Thread 1 (Thread 0x7f3c2b1a (LWP 4211) "python"):
#0  0x00007f3c2b1a in read () from /lib/libc.so.6
#1  0x00007f3c2c11 in call (fd=23) from /opt/libfoo.so
"""


def test_a_native_stack_of_a_rank_that_has_ended(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(RAISED)
    (tmp_path / "stacks.txt").write_text(NATIVE)
    (verdict,) = reported(tmp_path).verdicts
    assert [rank.rank for rank in verdict.job.ranks] == [1]


def test_a_last_line_that_may_be_cut_gives_low_confidence_in_what_rests_on_it(tmp_path: Path) -> None:
    text = "[rank0]:[E1129 06:22:10.512 ProcessGroupGloo.cpp:144] Rank 0 timed out\n" + RAISED
    found = {}
    for name, ending in (("whole", "\n"), ("open", "")):
        (tmp_path / name).write_text(text.rstrip("\n") + ending)
        (verdict,) = reported(tmp_path / name).verdicts
        found[name] = verdict.findings[0]
    whole, open_ended = found["whole"], found["open"]
    assert (whole.playbook, whole.confidence) == ("rank-raised", "medium")
    assert (open_ended.playbook, open_ended.confidence) == ("rank-raised", "low")
    assert CUT in open_ended.reasons
    assert CUT not in whole.reasons


def test_a_last_line_that_may_be_cut_changes_nothing_that_does_not_rest_on_it(tmp_path: Path) -> None:
    text = f"{RAISED}[rank1]: see the log of ra"
    (tmp_path / "open").write_text(text)
    (verdict,) = reported(tmp_path / "open").verdicts
    (tmp_path / "whole").write_text(f"{text}nk 1\n")
    (whole,) = reported(tmp_path / "whole").verdicts
    assert (verdict.findings[0].confidence, verdict.findings[0].reasons) == (
        whole.findings[0].confidence,
        whole.findings[0].reasons,
    )


def test_what_follows_a_wrapped_line_follows_it(tmp_path: Path) -> None:
    """Counters have the numbers of their lines in the file, as messages have."""
    waits = "[INFO] Waiting in store based barrier to initialize process group for rank: {}, k\ney: "
    waits += "store_based_barrier_key:1 (world_size=4, worker_count=3, timeout=1:00:00)\n"
    text = "".join(map(waits.format, (2, 0, 3, 0, 2, 3)))
    path = tmp_path / "wrapped"
    path.write_text(text)
    (verdict,) = reported(path).verdicts
    assert verdict.findings[0].playbook == "missing-worker"
    path.write_text(text + "epoch 0 step 10/400 loss 2.310\nepoch 0 step 20/400 loss 2.188\n")
    (verdict,) = reported(path).verdicts
    assert verdict.findings == ()


SHARDS = """the loader is late again, every rank waits for its next shard, throughput drops each time
epoch 3 fetch of the next tar from the bucket begins when the last one is exhausted
webdataset, num_workers 4, prefetch off; dataloader decode is cheap, the read is slow
dataset cache on the second disk, iowait high, nothing in dmesg, shuffle buffer empty
each worker opens one file, and the step of every node begins late
"""
COOKING = """boil the potatoes for twenty minutes, then slice them and add the onions
season with salt, and serve them warm with a spoon of sour cream
"""


def test_a_text_that_no_rule_reads_is_judged_by_its_words(tmp_path: Path) -> None:
    (tmp_path / "chat").write_text(SHARDS)
    (verdict,) = reported(tmp_path / "chat").verdicts
    (finding,) = verdict.findings
    assert verdict.status == "unknown"
    assert (finding.playbook, finding.confidence, finding.culprits) == ("likely-input-stall", "low", ())
    assert "`dataset`" in finding.evidence[0].text
    assert verdict.families[0].cls == "input_stall"


def test_words_are_no_evidence_in_a_text_that_is_about_something_else(tmp_path: Path) -> None:
    (tmp_path / "chat").write_text(COOKING)
    with pytest.raises(Unrecognised):
        reported(tmp_path)


def test_the_words_of_several_files_are_not_weighed(tmp_path: Path) -> None:
    """The files of a directory are what programs wrote: nobody chose their words."""
    for name in ("a", "b"):
        (tmp_path / name).write_text(SHARDS)
    with pytest.raises(Unrecognised):
        reported(tmp_path)


def test_a_cause_that_a_rule_finds_leaves_no_guess(tmp_path: Path) -> None:
    (tmp_path / "chat").write_text(SHARDS + RAISED)
    (verdict,) = reported(tmp_path / "chat").verdicts
    assert [finding.playbook for finding in verdict.findings] == ["rank-raised"]
