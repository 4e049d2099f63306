"""Which finding explains which: layers, `explains`, and the names that must not matter."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hangdoc.rules.evaluate import evaluate
from hangdoc.rules.loader import load
from hangdoc.rules.schema import LAYERS
from tests.support.toy_schema import PROBES, SCHEMA, StackFacts, facts, library, playbook

GIVEN = facts(StackFacts("barrier", "finish (train.py:31)", False, 20.0))
Layered = tuple[str, str, Sequence[str]]  # id, layer, explains


def made(*layered: Layered, **changes: Any) -> list[dict[str, Any]]:
    return [playbook(id=id, layer=layer, explains=list(explains), **changes) for id, layer, explains in layered]


def outcome(directory: Path, *layered: Layered, silent: str = "") -> tuple[str, dict[str, str]]:
    """The findings, and the others by what explains them; those in `silent` do not apply."""
    books = [one | ({"when": "false"} if one["id"] in silent else {}) for one in made(*layered)]
    findings, considered = evaluate(library(directory, *books), GIVEN)
    why = {c.playbook: c.why for c in considered if c.playbook not in silent}
    assert all(text.startswith("explained by ") for text in why.values())
    return "".join(f.playbook for f in findings), {id: text.rpartition(" ")[2] for id, text in why.items()}


CAUSE, CONTRACT, SYMPTOM, GUESS = LAYERS


@pytest.mark.parametrize(
    ("layered", "kept", "why"),
    [
        ([("a", CAUSE, ""), ("b", CONTRACT, ""), ("c", SYMPTOM, "")], "a", {"b": "a", "c": "a"}),
        ([("c", CAUSE, ""), ("b", CONTRACT, ""), ("a", SYMPTOM, "")], "c", {"a": "c", "b": "c"}),
        ([("a", CONTRACT, ""), ("b", SYMPTOM, "")], "a", {"b": "a"}),
        ([("a", CAUSE, ""), ("b", SYMPTOM, "")], "a", {"b": "a"}),
        ([("a", GUESS, ""), ("b", SYMPTOM, "")], "b", {"a": "b"}),
        ([("a", CAUSE, ""), ("b", CAUSE, "")], "ab", {}),
        ([("a", CONTRACT, ""), ("b", CONTRACT, "")], "ab", {}),
        ([("a", SYMPTOM, ""), ("b", SYMPTOM, "")], "ab", {}),
        # `explains` adds to that
        ([("a", CAUSE, "b"), ("b", CAUSE, "")], "a", {"b": "a"}),
        ([("a", SYMPTOM, "b"), ("b", SYMPTOM, ""), ("c", SYMPTOM, "")], "ac", {"b": "a"}),
        ([("a", SYMPTOM, "b"), ("b", SYMPTOM, "c"), ("c", SYMPTOM, "")], "a", {"b": "a", "c": "a"}),
        ([("c", SYMPTOM, "ab"), ("b", SYMPTOM, ""), ("a", SYMPTOM, "")], "c", {"a": "c", "b": "c"}),
        ([("a", CAUSE, "c"), ("b", CAUSE, ""), ("c", CAUSE, "d"), ("d", CAUSE, "")], "ab", {"c": "a", "d": "a"}),
        ([("a", CAUSE, "b"), ("b", SYMPTOM, "")], "a", {"b": "a"}),
        # and turns the layers round
        ([("a", SYMPTOM, "b"), ("b", CAUSE, "")], "a", {"b": "a"}),
        ([("a", CONTRACT, "b"), ("b", CAUSE, "")], "a", {"b": "a"}),
        ([("a", SYMPTOM, "b"), ("b", CONTRACT, "")], "a", {"b": "a"}),
        ([("a", CONTRACT, "b"), ("b", CAUSE, ""), ("c", SYMPTOM, "")], "a", {"b": "a", "c": "a"}),
        ([("a", SYMPTOM, "bc"), ("b", CAUSE, ""), ("c", CONTRACT, "")], "a", {"b": "a", "c": "a"}),
        ([("a", CONTRACT, "b"), ("b", CAUSE, ""), ("c", CONTRACT, "")], "a", {"b": "a", "c": "a"}),
    ],
)
def test_what_a_finding_explains_is_dropped(
    tmp_path: Path, layered: Sequence[Layered], kept: str, why: dict[str, str]
) -> None:
    assert outcome(tmp_path, *layered) == (kept, why)
    assert outcome(tmp_path / "in another order", *reversed(layered)) == (kept, why)
    assert len({layer for id, layer, _ in layered if id in kept}) == 1, "findings are sorted without their layer"


def test_without_a_layer_a_playbook_is_a_symptom(tmp_path: Path) -> None:
    found = library(tmp_path, playbook(id="a"), playbook(id="b", layer=CONTRACT))
    assert [finding.playbook for finding in evaluate(found, GIVEN)[0]] == ["b"]


def test_only_a_finding_explains(tmp_path: Path) -> None:
    layered = [("a", CAUSE, "b"), ("b", CAUSE, ""), ("c", CONTRACT, ""), ("d", SYMPTOM, "")]
    assert outcome(tmp_path / "1", *layered, silent="a") == ("b", {"c": "b", "d": "b"})
    assert outcome(tmp_path / "2", *layered, silent="ab") == ("c", {"d": "c"})
    assert outcome(tmp_path / "3", *layered, silent="abc") == ("d", {})


# --- what is refused ------------------------------------------------------------------------------


def problems(directory: Path, *layered: Layered, more: str = "") -> list[str]:
    """What is wrong with these, of which `explains` is in line 7."""
    for id, layer, explains in layered:
        save(directory, id, f"layer: {layer}\nexplains: [{', '.join(explains)}]\n{more}")
    return [str(problem).removeprefix(f"{directory}/") for problem in load([directory], SCHEMA, PROBES).problems]


def save(directory: Path, id: str, more: str) -> None:
    """A playbook of five lines, and `more` after them."""
    folder = directory / id
    folder.mkdir(parents=True)
    (folder / "playbook.yaml").write_text(f"id: {id}\nclass: network\ntitle: T\nsummary: x\nwhen: 'true'\n{more}")


CIRCLE = "playbooks explain each other"
TAKE = "take one out of `explains`"


@pytest.mark.parametrize(
    ("layered", "said"),
    [
        ([("a", SYMPTOM, "b"), ("b", SYMPTOM, "a")], f"b/playbook.yaml:7: {CIRCLE}: b -> a -> b; {TAKE}"),
        ([("a", CAUSE, "b"), ("b", SYMPTOM, "a")], f"b/playbook.yaml:7: {CIRCLE}: b -> a -> b; {TAKE}"),
        ([("a", SYMPTOM, "b"), ("b", CAUSE, "a")], f"a/playbook.yaml:7: {CIRCLE}: a -> b -> a; {TAKE}"),
        ([("a", SYMPTOM, "a")], f"a/playbook.yaml:7: {CIRCLE}: a -> a; {TAKE}"),
        (
            [("a", CAUSE, "b"), ("b", CAUSE, "c"), ("c", CAUSE, "a"), ("d", CAUSE, "")],
            f"c/playbook.yaml:7: {CIRCLE}: c -> a -> b -> c; {TAKE}",
        ),
        (
            [("a", CAUSE, ""), ("b", CONTRACT, ""), ("c", SYMPTOM, "a")],
            f"c/playbook.yaml:7: {CIRCLE}: c -> a -> b -> c; {TAKE}",
        ),
        (
            [("a", SYMPTOM, "c"), ("b", CONTRACT, ""), ("c", CAUSE, "")],
            f"a/playbook.yaml:7: {CIRCLE}: a -> c -> b -> a; {TAKE}",
        ),
        (
            [("a", CAUSE, ["uneven"]), ("unevn", CAUSE, "")],
            "a/playbook.yaml:7: `explains`: there is no playbook 'uneven'; did you mean `unevn`?",
        ),
        (
            [("a", CAUSE, ["zzz"]), ("b", CAUSE, "")],
            "a/playbook.yaml:7: `explains`: there is no playbook 'zzz'; known are a, b",
        ),
    ],
)
def test_circles_and_unknown_playbooks_are_named(tmp_path: Path, layered: Sequence[Layered], said: str) -> None:
    assert problems(tmp_path, *layered) == [said]


def test_two_circles_are_both_named(tmp_path: Path) -> None:
    said = problems(tmp_path, ("a", CAUSE, "b"), ("b", CAUSE, "a"), ("c", CAUSE, "d"), ("d", CAUSE, "c"))
    assert [one.partition(": ")[2] for one in said] == [
        f"{CIRCLE}: b -> a -> b; {TAKE}",
        f"{CIRCLE}: d -> c -> d; {TAKE}",
    ]


def test_an_unknown_look_alike_is_named_in_its_own_line(tmp_path: Path) -> None:
    found = problems(tmp_path, ("late", SYMPTOM, ""), more="look_alikes:\n  late: x\n  lat: y\n")
    assert found == ["late/playbook.yaml:10: `look_alikes`: there is no playbook 'lat'; did you mean `late`?"]


def test_an_unknown_playbook_in_explains_is_named_in_its_own_line(tmp_path: Path) -> None:
    save(tmp_path, "c", "")
    save(tmp_path, "a", "explains:\n  - c\n  - b\n")
    found = load([tmp_path], SCHEMA, PROBES).problems
    assert [problem.line for problem in found if "'b'" in problem.sentence] == [8]


def test_a_playbook_on_a_circle_is_skipped(tmp_path: Path) -> None:
    for id, explains in {"a": "b", "b": "a", "c": ""}.items():
        save(tmp_path, id, f"explains: [{explains}]\n")
    found = load([tmp_path], SCHEMA, PROBES)
    assert len(found.problems) == 1
    assert {playbook.id for playbook in found.playbooks} == {"a", "c"}


@pytest.mark.parametrize("name", ["a", "x"])
def test_a_circle_costs_the_users_own_playbook_and_none_of_the_built_in_ones(tmp_path: Path, name: str) -> None:
    library(tmp_path / "shipped", *made(("s", SYMPTOM, "t"), ("t", CAUSE, "")))
    save(tmp_path / "own", name, f"layer: {CONTRACT}\n")
    found = load([tmp_path / "shipped", tmp_path / "own"], SCHEMA, PROBES)
    assert [playbook.id for playbook in found.playbooks] == ["s", "t"]
    (problem,) = found.problems
    own = tmp_path / "own" / name / "playbook.yaml"
    assert str(problem) == f"{own}:6: {CIRCLE}: {name} -> s -> t -> {name}; change its `layer`"


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("top", "middle", "bottom"), list(itertools.permutations("abc")))
def test_the_names_of_playbooks_do_not_decide_what_is_dropped(
    tmp_path: Path, top: str, middle: str, bottom: str
) -> None:
    layered = [(top, SYMPTOM, middle), (middle, SYMPTOM, bottom), (bottom, SYMPTOM, "")]
    assert outcome(tmp_path, *layered) == (top, {middle: top, bottom: top})


def first_of_two(directory: Path, slow: str, stalled: str) -> str:
    """The status of the best of two findings that are equally certain."""
    books = [playbook(id=slow, status="slow"), playbook(id=stalled, status="stalled")]
    return evaluate(library(directory, *books), GIVEN)[0][0].status


def test_the_names_of_playbooks_do_not_decide_which_is_first(tmp_path: Path) -> None:
    assert first_of_two(tmp_path / "1", "a", "b") == "stalled"
    assert first_of_two(tmp_path / "2", "b", "a") == "stalled"


def test_the_names_of_playbooks_do_not_decide_what_explains_a_third(tmp_path: Path) -> None:
    for low, high in (("a", "b"), ("b", "a")):
        books = [
            playbook(id=low, layer=CAUSE, confidence={"base": "low"}),
            playbook(id=high, layer=CAUSE, confidence={"base": "high"}),
            playbook(id="z"),
        ]
        _, (explained,) = evaluate(library(tmp_path / low, *books), GIVEN)
        assert explained.why == f"explained by {high}"
