from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hangdoc.rules.loader import load
from tests.support.toy_schema import PROBES, SCHEMA, library, playbook, write


def problems(directory: Path, **changes: Any) -> list[tuple[str, str]]:
    """What is wrong with the sound playbook after these changes: sentences and remedies."""
    found = load([write(directory, playbook(**changes))], SCHEMA, PROBES)
    assert bool(found.problems) != bool(found.playbooks)
    return [(problem.sentence, problem.remedy) for problem in found.problems]


def test_a_sound_playbook(tmp_path: Path) -> None:
    found = library(tmp_path, playbook())
    (one,) = found.playbooks
    assert one.id == "late"
    assert [*one.selections.ranks] == ["late", "waiting"]
    assert [*one.conditions] == [("when",)]
    assert [*one.listings] == []
    assert [*one.templates] == [("summary",)]


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
        ({"ranks": {"late": "stack.waits"}}, "unknown field `ranks`", ""),
        ({"over": ["late"]}, "unknown field `over`", ""),
        ({"not_this": []}, "unknown field `not_this`", ""),
        ({"layer": "reason"}, "`layer`: Input should be 'cause', 'contract', 'symptom' or 'guess'", ""),
        ({"explains": "late"}, "`explains`: Input should be a valid tuple", ""),
        ({"look_alikes": ["late"]}, "`look_alikes`: Input should be a valid dictionary", ""),
        ({"look_alikes": {"late": ""}}, "`look_alikes.late`: String should have at least 1 character", ""),
        ({"select": {"late": "stack.wait"}}, "`select.late`: unknown field `wait`", "did you mean `waits`?"),
        ({"select": {"late": "stak.waits"}}, "`select.late`: unknown name `stak`", "did you mean `stack`?"),
        ({"select": {"late": "stack.depth >"}}, "`select.late`: syntax error", ""),
        ({"select": {"late": 'stack.depth > "x"'}}, "`select.late`: data type mismatch", ""),
        ({"select": {"late": "1 / 0 > 1"}}, "`select.late`: ", ""),
        ({"select": {"late": 'host =~ "("'}}, "`select.late`: invalid regular expression", ""),
        ({"select": {"late": "true", "observed": "true"}}, "the selection `observed` has a reserved", ""),
        ({"select": {"late": "true", "unobserved": "true"}}, "the selection `unobserved` has a reserved", ""),
        ({"select": {"late": "true", "any": "true"}}, "the selection `any` has a reserved or duplicate name", ""),
        ({"select": {"late": "true", "none": "true"}}, "the selection `none` has a reserved or duplicate name", ""),
        ({"select": {"late": "true", "all": "true"}}, "the selection `all` has a reserved or duplicate name", ""),
        ({"select": {"late": "true", "count": "true"}}, "the selection `count` has a reserved or duplicate name", ""),
        ({"select": {"late": "true", "job": "true"}}, "the selection `job` has a reserved or duplicate name", ""),
        ({"select": {"late": "true", "stack": "true"}}, "the selection `stack` has a reserved or duplicate name", ""),
        ({"links": {"dead": "true"}}, "the selection `dead` has a reserved or duplicate name", ""),
        (
            {"select": {"late": "true"}, "links": {"late": "true"}},
            "the selection `late` has a reserved or duplicate name",
            "",
        ),
        ({"select": {"late": "true", "Late": "true"}}, "`select.Late`: String should match pattern", ""),
        ({"when": "any(lat)"}, "`when`: unknown name `lat`", "did you mean `late`?"),
        ({"when": "job.stall.stalld"}, "`when`: unknown field `stalld`", "did you mean `stalled`?"),
        ({"when": "any(stack.opp == null)"}, "`when`: unknown field `opp`", "did you mean `op`?"),
        ({"blame": "late[0].stack.opp"}, "`blame`: unknown field `opp`", "did you mean `op`?"),
        ({"blame": "lat"}, "`blame`: unknown name `lat`", "did you mean `late`?"),
        (
            {"evidence": [{"each": "job.network.line", "text": "{{ item }}"}]},
            "`evidence.0.each`: unknown field `line`",
            "lines",
        ),
        ({"evidence": [{"each": "job.network.lines"}]}, "`evidence.0`: `each` needs a `text` that shows `item`", ""),
        (
            {"evidence": [{"each": "job.network.lines", "text": "x"}]},
            "`evidence.0`: `each` needs a `text` that shows `item`",
            "",
        ),
        (
            {"evidence": [{"each": "job.network.lines", "text": "some items"}]},
            "`evidence.0`: `each` needs a `text` that shows `item`",
            "",
        ),
        (
            {"evidence": [{"each": "job.network.lines", "text": "{{ late|ranks }}: item"}]},
            "`evidence.0`: `each` needs a `text` that shows `item`",
            "",
        ),
        (
            {"evidence": [{"each": "job.network.lines", "text": "{{ job.stall.items }}"}]},
            "`evidence.0`: `each` needs a `text` that shows `item`",
            "",
        ),
        ({"culprits": "lat"}, "`culprits`: there is no selection of ranks named `lat`", "did you mean `late`?"),
        ({"blame_links": "late"}, "`blame_links`: there is no selection of links named `late`", "known are none"),
        (
            {"evidence": [{"probe": "stacks", "ranks": "lat", "text": "x"}]},
            "`evidence.0.ranks`: there is no selection of ranks named `lat`",
            "did you mean `late`?",
        ),
        ({"evidence": [{"probe": "stacks", "txt": "x"}]}, "unknown field `evidence.0.txt`", "did you mean `text`?"),
        ({"evidence": [{"ranks": "lat"}]}, "`evidence.0.ranks`: there is no selection of ranks named `lat`", "`late`?"),
        ({"evidence": [{"probe": "cpu", "text": "x", "if": "nosuch"}]}, "`evidence.0.if`: unknown name `nosuch`", ""),
        ({"summary": "{{ lat|ranks }}"}, "`summary`: unknown name `lat`", "did you mean `late`?"),
        ({"summary": "{{ job.stall.secs }}"}, "`summary`: unknown field `secs`", "did you mean `seconds`?"),
        ({"summary": "{{ stall.seconds }}"}, "`summary`: unknown name `stall`", ""),
        ({"summary": "{{ late|attr('stack.opp') }}"}, "`summary`: unknown field `opp` in 'stack.opp'", "mean `op`?"),
        ({"summary": "{{ (late|first).stack.opp }}"}, "`summary`: unknown field `opp`", "did you mean `op`?"),
        ({"summary": "{{ late[0].hosst }}"}, "`summary`: unknown field `hosst`", "did you mean `host`?"),
        ({"summary": "{{ late.host }}"}, "`summary`: `.host` of several: use the filter attr('host')", ""),
        ({"summary": "{{ late|rank }}"}, "`summary`: unknown filter `rank`", ""),
        ({"summary": "{{ late|ranks }"}, "`summary`: unexpected '}'", ""),
        ({"actions": ["do", "{{ x }}"]}, "`actions.1`: unknown name `x`", ""),
        ({"actions": [{"if": "any(late)"}]}, "`actions.0.text` is missing", ""),
        ({"actions": [{"txt": "x"}]}, "unknown field `actions.0.txt`", "did you mean `text`?"),
        ({"actions": [{"if": "nosuch", "text": "x"}]}, "`actions.0.if`: unknown name `nosuch`", ""),
        ({"evidence": [{"probe": "cpu", "text": "{{ item }}"}]}, "`evidence.0.text`: unknown name `item`", ""),
        ({"confidence": {"raise": [{"if": "y", "because": "z"}]}}, "`confidence.raise.0.if`: unknown name `y`", ""),
        ({"confidence": {"base": "sure"}}, "`confidence.base`: Input should be 'low', 'medium' or 'high'", ""),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(tmp_path: Path, changes: dict[str, Any], sentence: str, remedy: str) -> None:
    found = problems(tmp_path, **changes)
    assert any(said.startswith(sentence) and remedy in do and do for said, do in found), found


NONSENSE = "known are depth, names, op, phase, site, step, waits"


def test_lines_are_named(tmp_path: Path) -> None:
    (tmp_path / "late").mkdir()
    file = tmp_path / "late" / "playbook.yaml"
    file.write_text(
        "id: late\n"  # 1
        "# why\n"
        "class: collective_wait\n"  # 3
        "title: t\n"
        "select:\n"
        "  late: >-\n"  # 6
        "    stack.waits and\n"
        "    stack.nonsense\n"
        "  waiting: stack.waits\n"
        "when: any(waiting)\n"
        "confidence:\n"
        "  raise:\n"
        "    - {if: any(waiting), because: x}\n"
        "    - {if: any(latte), because: x}\n"  # 14
        "summary: x\n"
        "actions:\n"
        "  - fine\n"
        "  - '{{ nobody }}'\n"  # 18
    )
    found = load([tmp_path], SCHEMA, PROBES)
    assert [problem.line for problem in found.problems] == [6, 14, 18]
    assert str(found.problems[0]) == f"{file}:6: `select.late`: unknown field `nonsense`; " + NONSENSE
    assert str(found.problems[1]).startswith(f"{file}:14: `confidence.raise.1.if`: unknown name `latte`; ")


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


def test_needs_are_checked_unless_a_test_has_done_so(tmp_path: Path) -> None:
    shipped = write(tmp_path / "shipped", playbook(needs=["checked elsewhere"]))
    assert load([shipped], SCHEMA, checked=[shipped]).problems == ()
    own = write(tmp_path / "own", playbook(id="other", needs=["stack"]))
    (problem,) = load([shipped, own], SCHEMA, checked=[shipped]).problems
    assert problem.sentence == "needs an unknown probe 'stack'"


def test_a_directory_without_playbooks_is_named(tmp_path: Path) -> None:
    (problem,) = load([tmp_path / "nowhere"], SCHEMA, PROBES).problems
    assert str(problem) == f"{tmp_path / 'nowhere'}: cannot be read (No such file or directory); give another directory"
    (problem,) = load([tmp_path], SCHEMA, PROBES).problems
    assert str(problem) == f"{tmp_path}: contains no playbook (ID/playbook.yaml); give another directory"
