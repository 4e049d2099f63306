from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hangdoc.analysis.facts import schema
from hangdoc.rules.loader import lint, load
from tests.support.toy_schema import PROBES, SCHEMA, STACK, STALL, library, playbook, write


def problems(directory: Path, **changes: Any) -> list[tuple[str, str]]:
    """What is wrong with the sound playbook after these changes: sentences and remedies."""
    found = load([write(directory, playbook(**changes))], SCHEMA, PROBES)
    assert bool(found.problems) != bool(found.playbooks)
    return [(problem.sentence, problem.remedy) for problem in found.problems]


def test_a_sound_playbook(tmp_path: Path) -> None:
    found = library(tmp_path, playbook())
    assert [p.id for p in found.playbooks] == ["late"]
    assert lint(found.playbooks[0]) == ()


@pytest.mark.parametrize(
    ("changes", "sentence", "remedy"),
    [
        ({"cofidence": {}}, "unknown field `cofidence`", "did you mean `confidence`?"),
        ({"confidence": {"lift": []}}, "unknown field `confidence.lift`", "known are base, lower, raise"),
        ({"title": None}, "`title` is missing", "add it"),
        ({"title": 3}, "`title`: Input should be a valid string", ""),
        ({"class": "collective"}, "`class`: unknown class 'collective'", "known are collective_wait, slow_compute"),
        ({"class": None}, "the file: `class` is missing: only `status: healthy` has none", ""),
        ({"status": "broken"}, "`status`: unknown status 'broken'", "known are stalled"),
        ({"needs": ["stack"]}, "needs an unknown probe 'stack'", "did you mean `stacks`?"),
        ({"ranks": {"late": "stack.wait ?? false"}}, "`ranks.late`: unknown field `wait`", "did you mean `waits`?"),
        ({"ranks": {"late": "stak.waits ?? false"}}, "`ranks.late`: unknown name `stak`", "did you mean `stack`?"),
        ({"ranks": {"late": "stack.depth >"}}, "`ranks.late`: syntax error", ""),
        (
            {"ranks": {"late": "stack.step > 3"}},
            "`ranks.late`: data type mismatch: an operand may be unseen",
            "with `??`",
        ),
        ({"ranks": {"late": 'stack.depth > "x"'}}, "`ranks.late`: data type mismatch", ""),
        ({"ranks": {"late": "1 / 0 > 1"}}, "`ranks.late`: ", ""),
        ({"ranks": {"late": 'host =~ "("'}}, "`ranks.late`: invalid regular expression", ""),
        ({"ranks": {"late": "true", "all": "true"}}, "the selection `all` has a reserved or duplicate name", ""),
        ({"ranks": {"late": "true", "stall": "true"}}, "the selection `stall` has a reserved or duplicate name", ""),
        (
            {"ranks": {"late": "true"}, "links": {"late": "true"}},
            "the selection `late` has a reserved or duplicate name",
            "",
        ),
        ({"ranks": {"late": "true", "Late": "true"}}, "`ranks.Late`: String should match pattern", ""),
        ({"when": "lat.length > 0"}, "`when`: unknown name `lat`", "did you mean `late`?"),
        ({"when": "stall.stalld"}, "`when`: unknown field `stalld`", "did you mean `stalled`?"),
        ({"when": "late[0].stack.opp == null"}, "`when`: unknown field `opp`", "did you mean `op`?"),
        ({"culprits": "lat"}, "`culprits`: there is no selection of ranks named `lat`", "did you mean `late`?"),
        ({"blame_links": "late"}, "`blame_links`: there is no selection of links named `late`", "known are none"),
        (
            {"evidence": [{"probe": "stacks", "ranks": "lat", "text": "x"}]},
            "`evidence.0.ranks`: there is no selection of ranks named `lat`",
            "did you mean `late`?",
        ),
        ({"evidence": [{"probe": "stacks", "txt": "x"}]}, "`evidence.0.text` is missing", ""),
        ({"evidence": [{"probe": "cpu", "text": "x", "if": "nosuch"}]}, "`evidence.0.if`: unknown name `nosuch`", ""),
        ({"summary": "{{ lat|ranks }}"}, "`summary`: unknown name `lat`", "did you mean `late`?"),
        ({"summary": "{{ stall.secs }}"}, "`summary`: unknown field `secs`", "did you mean `seconds`?"),
        ({"summary": "{{ late|attr('stack.opp') }}"}, "`summary`: unknown field `opp` in 'stack.opp'", "mean `op`?"),
        ({"summary": "{{ (late|first).stack.opp }}"}, "`summary`: unknown field `opp`", "did you mean `op`?"),
        ({"summary": "{{ late[0].hosst }}"}, "`summary`: unknown field `hosst`", "did you mean `host`?"),
        ({"summary": "{{ late.host }}"}, "`summary`: `.host` of several: use the filter attr('host')", ""),
        ({"summary": "{{ late|rank }}"}, "`summary`: unknown filter `rank`", ""),
        ({"summary": "{{ late|ranks }"}, "`summary`: unexpected '}'", ""),
        ({"actions": ["do", "{{ x }}"]}, "`actions.1`: unknown name `x`", ""),
        ({"evidence": [{"probe": "cpu", "text": "{{ item }}"}]}, "`evidence.0.text`: unknown name `item`", ""),
        ({"confidence": {"raise": [{"if": "y", "because": "z"}]}}, "`confidence.raise.0.if`: unknown name `y`", ""),
        ({"confidence": {"base": "sure"}}, "`confidence.base`: Input should be 'low', 'medium' or 'high'", ""),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(tmp_path: Path, changes: dict[str, Any], sentence: str, remedy: str) -> None:
    found = problems(tmp_path, **changes)
    assert any(said.startswith(sentence) and remedy in do and do for said, do in found), found


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ("stack.waits", "`stack.waits` may be unseen, and would then count as no"),
        ("not stack.waits", "`stack.waits` may be unseen, and would then count as no"),
        ("stack.depth > 1 and stack.waits", "`stack.waits` may be unseen, and would then count as no"),
        ("(stack.waits ? 1 : 2) == 1", "`stack.waits` may be unseen, and would then count as no"),
        ('stack.op == "barrier"', "`stack.op` next to `==` may be unseen"),
        ('"barrier" != stack.op', "`stack.op` next to `!=` may be unseen"),
        ("alive == true", "`alive` next to `==` may be unseen"),
        ('stack.op in ["barrier"]', "`stack.op` before `in` may be unseen"),
        ('stack.op in "barrier"', "`stack.op` before `in` may be unseen"),
        ("(stack.op ?? stack.site) == host", "a value next to `==` may be unseen"),
        ('(stack.op ?? "") == 3', "`==` compares text with a number, which are never equal"),
        ('stack.depth != "3"', "`!=` compares a number with text, which are never equal"),
    ],
)
def test_the_lint_of_rules_over_ranks(tmp_path: Path, rule: str, sentence: str) -> None:
    found = problems(tmp_path, ranks={"late": rule, "waiting": "true"})
    assert any(said.startswith(f"`ranks.late`: {sentence}") for said, _ in found), found


@pytest.mark.parametrize(
    ("when", "sentence"),
    [
        ("stall.seconds", "`stall.seconds` may be unseen, and would then count as no"),
        ("[r for r in late if r.stack.waits].length > 0", "`r.stack.waits` may be unseen"),
        ("$any([r.stack.waits for r in late])", "members of a value may be unseen"),
        ("late[0].stack.op == late[1].stack.op", "a value next to `==` may be unseen"),
    ],
)
def test_the_lint_of_rules_over_the_job(tmp_path: Path, when: str, sentence: str) -> None:
    found = problems(tmp_path, when=when)
    assert any(said.startswith(f"`when`: {sentence}") for said, _ in found), found


@pytest.mark.parametrize(
    "rule",
    [
        'stack.op == null or (stack.op ?? "") == "barrier"',  # asked openly whether it was seen
        'stack.waits ?? (stack.depth > 1)',
        '(stack.op ?? "x") in stack.names and "a" in seen',
        "job.stall.stalled and (job.stall.seconds ?? 0) > 3",
        '(stack.site ?? "") =~~ "x"',
    ],
)  # fmt: skip
def test_the_lint_lets_pass_what_is_right(tmp_path: Path, rule: str) -> None:
    assert problems(tmp_path, ranks={"late": rule, "waiting": "true"}) == []


def test_lines_are_named(tmp_path: Path) -> None:
    (tmp_path / "late").mkdir()
    file = tmp_path / "late" / "playbook.yaml"
    file.write_text(
        "id: late\n"  # 1
        "# why\n"
        "class: collective_wait\n"  # 3
        "title: t\n"
        "ranks:\n"
        "  late: >-\n"  # 6
        "    stack.waits ??\n"
        "    nonsense\n"
        "when: late.length > 0\n"
        "confidence:\n"
        "  raise:\n"
        "    - {if: late, because: x}\n"
        "    - {if: latte.length > 0, because: x}\n"  # 13
        "summary: x\n"
        "actions:\n"
        "  - fine\n"
        "  - '{{ nobody }}'\n"  # 17
    )
    found = load([tmp_path], SCHEMA, PROBES)
    assert [problem.line for problem in found.problems] == [13, 6, 17]
    assert str(found.problems[0]).startswith(f"{file}:13: `confidence.raise.1.if`: unknown name `latte`; did you mean")


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        ("", 1, "is empty"),
        ("- a list\n", 1, "the file: "),
        ("id: late\nsummary: {{ late }}\n", 2, "is not YAML"),
        ("id: late\n\tx: 1\n", 2, "is not YAML"),
        ("id: late\nid: other\n", 2, "`id` is a duplicate key"),
        ("id: &a late\ntitle: *a\n", 2, "uses a YAML alias"),
        ("id: !!python/object/apply:os.system [ls]\n", 1, "is not YAML: could not determine a constructor"),
        ("a: 1\nb: " + "[" * 50_000 + "]" * 50_000, 2, "is nested too deeply"),
        ("# " + "x" * 300_000, 1, "is larger than"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, text: str, line: int, sentence: str) -> None:
    write(tmp_path, playbook(id="fine"))
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "playbook.yaml").write_text(text)
    found = load([tmp_path], SCHEMA, PROBES)
    assert [p.id for p in found.playbooks] == ["fine"]
    assert found.problems[0].line == line
    assert found.problems[0].sentence.startswith(sentence)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "binary").mkdir()
    (tmp_path / "binary" / "playbook.yaml").write_bytes(b"\xff\xfe\x00\x00\x80")
    (tmp_path / "directory" / "playbook.yaml").mkdir(parents=True)
    found = load([tmp_path], SCHEMA, PROBES)
    assert len(found.problems) == 2
    assert all(p.sentence.startswith("cannot be read") for p in found.problems)


def test_the_id_is_the_folders_name(tmp_path: Path) -> None:
    write(tmp_path, playbook())
    (tmp_path / "late").rename(tmp_path / "later")
    (problem,) = load([tmp_path], SCHEMA, PROBES).problems
    assert problem.line == 1
    assert problem.sentence == "the id 'late' differs from the folder name 'later'"


def test_of_two_with_one_id_the_first_is_kept_and_both_are_named(tmp_path: Path) -> None:
    write(tmp_path / "shipped", playbook(title="shipped"))
    write(tmp_path / "own", playbook(title="own"), playbook(id="other"))
    found = load([tmp_path / "shipped", tmp_path / "own"], SCHEMA, PROBES)
    assert [(p.id, p.envelope.title) for p in found.playbooks] == [("late", "shipped"), ("other", "A rank is late")]
    (problem,) = found.problems
    assert problem.file == tmp_path / "own/late/playbook.yaml"
    assert str(tmp_path / "shipped/late/playbook.yaml") in problem.sentence


def test_a_directory_without_playbooks_is_named(tmp_path: Path) -> None:
    (problem,) = load([tmp_path / "nowhere"], SCHEMA, PROBES).problems
    assert str(problem) == f"{tmp_path / 'nowhere'}: cannot be read (No such file or directory); give another directory"
    (problem,) = load([tmp_path], SCHEMA, PROBES).problems
    assert str(problem) == f"{tmp_path}: contains no playbook (ID/playbook.yaml); give another directory"


def test_link_rules_need_links(tmp_path: Path) -> None:
    write(tmp_path, playbook(links={"broken": "dead ?? false"}, blame_links="broken"))
    assert load([tmp_path], SCHEMA, PROBES).problems == ()
    found = load([tmp_path], schema((STACK, STALL)), PROBES)
    assert found.problems[0].sentence.startswith("`links.broken`: rules over links need the analysis `network`")
