"""`hangdoc runbook ID --why RECORDING` and `hangdoc report --explain ID`: why a playbook applies, or does not."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hangdoc import cli
from hangdoc.diagnose import Judge, load_judge
from tests.support.judge import judge
from tests.support.paths import ROOT

UNEVEN = str(ROOT / "playbooks/uneven-batches/capture.jsonl.zst")
STACKS = str(ROOT / "tests/data/samples/pyspy/text.txt")

Way = tuple[Callable[[str, str], list[str]], int]

# The command line for an id and a source, and the exit code.
WAYS: dict[str, Way] = {
    "--why": (lambda id, source: ["runbook", id, "--why", source], 0),
    "--explain": (lambda id, source: ["report", source, "--explain", id], 2),
}


@pytest.fixture(autouse=True)
def wide_and_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No line of a tree is folded, and the shipped playbooks are compiled once a session."""
    monkeypatch.setenv("COLUMNS", "300")

    def load(extra: Sequence[Path], say: Callable[[str], None]) -> Judge:
        return load_judge(extra, say) if extra else judge()

    monkeypatch.setattr("hangdoc.diagnose.load_judge", load)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    return WAYS[str(request.param)]


def test_a_playbook_that_applies(way: Way, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, code = way
    assert cli.run(arguments("uneven-batches", UNEVEN)) == code
    text = capsys.readouterr().out
    tree = text[text.index("uneven-batches  yes\n") :]
    assert re.search(r"^├── when: job\.stall\.stalled and none\(conditional\)", tree, re.MULTILINE)
    assert re.search(r"─ any\(by_stacks\)  yes\n", tree)
    assert re.search(r'─ left: trusted and divergence\.relation == "left_loop" and stack\.op not in .*  rank 2\n', tree)
    assert re.search(r"─ divergence\.outlier = false on ranks 0-1\n.*─ divergence\.outlier = true on rank 2\n", tree)
    assert re.search(r"─ peers: stack\.waits and divergence\.outlier == false  ranks 0-1\n", tree)
    assert re.search(r"─ confidence\.raise\.0\.if: any\(one_left or exhausted\)  yes\n", tree)
    assert len(re.findall(r"─ left: ", tree)) == 1, "a selection is written out once"


def test_a_playbook_that_does_not_apply(way: Way, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, code = way
    assert cli.run(arguments("straggler", UNEVEN)) == code
    text = capsys.readouterr().out
    assert "straggler  no  its condition does not hold\n" in text
    assert "─ not job.stall.stalled  no\n" in text
    assert "─ job.stall.stalled = true\n" in text


def test_a_playbook_whose_evidence_was_not_seen(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["runbook", "dead-link", "--why", STACKS, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["outcome"] == "unknown"
    assert "not seen" in found["because"]


def test_report_prints_the_verdict_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["report", UNEVEN, "--explain", "uneven-batches"]) == 2
    text = capsys.readouterr().out
    assert text.startswith("STALLED")
    assert text.index("hangdoc runbook uneven-batches") < text.index("uneven-batches  yes")


def test_json_is_one_object_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "incidents"
    folder.mkdir()
    for id in ("uneven-batches", "stopped-process"):
        (folder / f"{id}.jsonl.zst").symlink_to(ROOT / "playbooks" / id / "capture.jsonl.zst")
    assert cli.run(["runbook", "uneven-batches", "--why", str(folder), "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted(one["outcome"] for one in found) == ["no", "yes"]
    assert len({one["job"] for one in found}) == 2
    for one in found:
        assert list(one) == ["job", "playbook", "title", "outcome", "because", "tree"]
        assert one["playbook"] == "uneven-batches"
        assert one["tree"][0]["condition"].startswith("when: ")
        assert one["tree"][0]["outcome"] == one["outcome"]


def test_report_in_json_has_the_verdicts_and_then_the_explanations(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["report", UNEVEN, "--explain", "uneven-batches", "--json"]) == 2
    verdict, explanation = map(json.loads, capsys.readouterr().out.splitlines())
    assert verdict["schema"] == "hangdoc.verdict/1"
    assert explanation["job"] == verdict["job"]["id"]
    assert explanation["outcome"] == "yes"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["runbook", "stragler", "--why", UNEVEN], "no playbook 'stragler': did you mean straggler"),
        (["report", UNEVEN, "--explain", "stragler"], "no playbook 'stragler': did you mean straggler"),
        (["runbook", "--why", UNEVEN], "name the playbook: hangdoc runbook ID --why RECORDING"),
        (["runbook", "straggler", "--why", "/does/not/exist"], "/does/not/exist"),
        (["runbook", "straggler", "--why"], "--why"),
        (["runbook", "straggler", "--json"], "give it together with --why RECORDING"),
        (["report", UNEVEN, "--explain"], "--explain"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_64_and_says_what_to_do(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == cli.USAGE
    captured = capsys.readouterr()
    assert told in captured.err
    assert captured.out == ""


def test_a_file_that_is_no_evidence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "note.txt").write_text("hello\n")
    assert cli.run(["runbook", "straggler", "--why", str(tmp_path / "note.txt")]) == 3
    captured = capsys.readouterr()
    assert "no evidence of a training job" in captured.err
    assert "py-spy dump: `py-spy dump" in captured.err, "what to collect"
    assert captured.err.count("\n") < 12, "no catalogue"
    assert captured.out == ""


@pytest.mark.parametrize("no_color", ["", "1"])
def test_no_color(no_color: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", no_color)
    assert cli.run(["runbook", "uneven-batches", "--why", UNEVEN]) == 0
    assert ("\x1b[" in capsys.readouterr().out) is not bool(no_color)


# --- a playbook of one's own ----------------------------------------------------------------------

LEAVES = """\
id: leaves
class: host_fault
title: A rank is somewhere
layer: cause
select:
  named: stack.leaf
when: any(named)
culprits: named
confidence: {base: high}
summary: somewhere
evidence: []
actions: [look]
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A directory with one playbook."""
    (tmp_path / "mine/leaves").mkdir(parents=True)
    (tmp_path / "mine/leaves/playbook.yaml").write_text(LEAVES)
    return tmp_path / "mine"


@pytest.mark.parametrize("json_too", [(), ("--json",)], ids=["terminal", "json"])
def test_hostile_values_do_not_reach_the_terminal(
    json_too: tuple[str, ...], own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stacks = tmp_path / "stacks.txt"
    stacks.write_text(
        "Process 100: /usr/bin/python3 train.py\nPython v3.11.2 (/usr/bin/python3.11)\n\n"
        'Thread 100 (idle): "MainThread"\n'
        "    ev\x1b]0;owned\x07il\x1b[31m\u202ered[/bold] (/w/train.py:9)\n    main (/w/train.py:7)\n"
    )
    assert cli.run(["runbook", "leaves", "--why", str(stacks), "--playbooks", str(own), *json_too]) == 0
    text = capsys.readouterr().out
    assert "red[/bold] (train.py:9)" in text
    assert not [c for c in text.replace("\n", "") if unicodedata.category(c)[0] == "C"]


def test_a_playbook_with_problems(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own / "leaves/playbook.yaml").write_text(LEAVES.replace("stack.leaf", "stack.leef"))
    assert cli.run(["runbook", "leaves", "--why", STACKS, "--playbooks", str(own)]) == 3
    error = capsys.readouterr().err
    assert "playbook.yaml:6: `select.named`: unknown field `leef`; did you mean `leaf`?" in error
    assert "the playbook 'leaves' has problems and was skipped: see above" in error
