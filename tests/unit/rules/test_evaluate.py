from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from hangdoc.analysis.facts import Facts, schema
from hangdoc.rules.evaluate import evaluate
from hangdoc.rules.expressions import Expression
from hangdoc.rules.loader import load
from hangdoc.verdict import Considered, Culprit, Finding, Link, Proof
from tests.support.toy_schema import (
    NETWORK,
    PROBES,
    SCHEMA,
    STALL,
    Group,
    LinkFacts,
    NetworkJob,
    StackFacts,
    StallJob,
    facts,
    library,
    playbook,
    write,
)

WAITS = StackFacts("all_reduce", "train (train.py:24)", True, 15.0)
LATE = StackFacts("barrier", "finish (train.py:31)", False, 20.0)


def one(directory: Path, given: Facts, **changes: Any) -> Finding | Considered:
    """What becomes of the sound playbook, changed, over these facts."""
    findings, considered = evaluate(library(directory, playbook(**changes)), given)
    assert len(findings) + len(considered) == 1
    return findings[0] if findings else considered[0]


def finding(directory: Path, given: Facts, **changes: Any) -> Finding:
    outcome = one(directory, given, **changes)
    assert isinstance(outcome, Finding), outcome
    return outcome


def test_a_finding(tmp_path: Path) -> None:
    found = finding(
        tmp_path,
        facts(WAITS, WAITS, LATE),
        status="slow",
        confidence={"base": "high"},
        evidence=[
            {"probe": "stacks", "ranks": "late", "text": "{{ late|attr('stack.op') }}"},
            {"probe": "sockets", "ranks": "all", "if": "stall.seconds == null", "text": "not said"},
            {"probe": "sockets", "text": "for {{ stall.seconds|seconds }}\n  {{ all|by('stack.step') }}"},
            {"probe": "cpu", "ranks": "unknown", "text": "of nobody"},
        ],
        actions=["Kill {{ late|pids }}.", "{% if false %}Nothing.{% endif %}"],
    )
    assert found == Finding(
        playbook="late",
        cls="collective_wait",
        confidence="high",
        title="A rank is late",
        summary="rank 2: ranks 0-1 at train (train.py:24).",
        culprits=(Culprit(2, 102, "node0", "finish (train.py:31)"),),
        links=(),
        evidence=(
            Proof("stacks", (2,), "barrier"),
            Proof("sockets", (0, 1, 2), "for 41 s 15 on ranks 0-1, 20 on rank 2"),
        ),
        actions=("Kill 102.",),
        status="slow",
        reasons=(),
    )


def test_no_and_unknown(tmp_path: Path) -> None:
    no = Considered("late", "no", "its condition does not hold")
    assert one(tmp_path / "a", facts(WAITS, WAITS)) == no
    unknown = Considered("late", "unknown", "stacks of rank 1 not seen")
    assert one(tmp_path / "b", facts(WAITS, None)) == unknown
    assert one(tmp_path / "c", facts(None, None)) == replace(unknown, why="stacks of ranks 0-1 not seen")
    assert one(tmp_path / "d", facts()) == no


def test_a_playbook_whose_probe_saw_nobody_never_fires(tmp_path: Path) -> None:
    outcome = one(tmp_path, facts(None, None), when="stall.stalled")
    assert isinstance(outcome, Considered)
    assert outcome.outcome == "unknown"


def test_what_a_dead_process_does_not_show_is_not_unseen(tmp_path: Path) -> None:
    given = facts(WAITS, None, dead=frozenset({1}))
    assert one(tmp_path / "a", given) == Considered("late", "no", "its condition does not hold")
    gone = {"late": "not (alive ?? true)"}
    assert finding(tmp_path / "b", given, ranks=gone, summary="x").culprits[0].rank == 1


def test_probes_of_the_host_count_for_its_ranks(tmp_path: Path) -> None:
    assert finding(tmp_path / "a", facts(LATE), needs=["stacks", "host"]).culprits
    blind = facts(LATE)
    blind.case.history = []
    outcome = one(tmp_path / "b", blind, needs=["stacks", "host"])
    assert outcome == Considered("late", "unknown", "host of rank 0 not seen")


@pytest.mark.parametrize(
    ("base", "raised", "lowered", "unseen", "expected"),
    [
        ("low", 0, 0, False, "low"),
        ("medium", 0, 0, False, "medium"),
        ("medium", 1, 0, False, "high"),
        ("medium", 3, 0, False, "high"),
        ("medium", 1, 1, False, "medium"),
        ("medium", 0, 3, False, "low"),
        ("high", 0, 0, True, "medium"),
        ("medium", 3, 0, True, "medium"),
        ("low", 0, 0, True, "low"),
    ],
)
def test_confidence(tmp_path: Path, base: str, raised: int, lowered: int, unseen: bool, expected: str) -> None:
    step = {"if": "late.length == 1", "because": "yes"}
    confidence = {
        "base": base,
        "raise": [*[step] * raised, {"if": "false", "because": "no"}],
        "lower": [{**step, "because": "but"}] * lowered,
    }
    found = finding(tmp_path, facts(WAITS, LATE, *([None] if unseen else [])), confidence=confidence)
    assert found.confidence == expected
    blind = ("stacks of rank 2 not seen",) if unseen else ()
    assert found.reasons == ("yes",) * raised + ("but",) * lowered + blind


def test_ranking_and_ties(tmp_path: Path) -> None:
    def variant(id: str, base: str, raised: int) -> dict[str, Any]:
        step = {"if": "true", "because": "x"}
        return playbook(id=id, confidence={"base": base, "raise": [step] * raised})

    found = library(
        tmp_path,
        variant("a", "low", 0),
        variant("d", "medium", 0),
        variant("b", "low", 1),
        variant("c", "medium", 0),
        variant("e", "high", 0),
    )
    findings, considered = evaluate(found, facts(LATE))
    assert [(f.playbook, f.confidence) for f in findings] == [
        *(("e", "high"), ("b", "medium"), ("c", "medium"), ("d", "medium"), ("a", "low")),
    ]
    assert considered == ()


@pytest.mark.parametrize(
    ("over", "kept", "why"),
    [
        ({"a": ["b"]}, "ac", {"b": "a"}),
        ({"a": ["b"], "b": ["c"]}, "a", {"b": "a", "c": "b"}),
        ({"c": ["a", "b", "nobody"]}, "c", {"a": "c", "b": "c"}),
        ({"a": ["b"], "b": ["a"]}, "ac", {"b": "a"}),
        ({"a": ["b"], "b": ["c"], "c": ["a"]}, "a", {"b": "a", "c": "b"}),
        ({"a": ["a"]}, "abc", {}),
        ({"silent": ["a", "b", "c"]}, "abc", {}),
    ],
)
def test_consequences_are_dropped(tmp_path: Path, over: dict[str, list[str]], kept: str, why: dict[str, str]) -> None:
    books = [playbook(id=id, over=over.get(id, [])) for id in "abc"]
    silent = playbook(id="silent", when="false", over=over.get("silent", []))
    findings, considered = evaluate(library(tmp_path, *books, silent), facts(LATE))
    assert "".join(f.playbook for f in findings) == kept
    dropped = {c.playbook: c.why.rpartition(" ")[2] for c in considered if c.playbook != "silent"}
    assert dropped == why


def test_a_rule_that_fails_takes_no_other_down(tmp_path: Path) -> None:
    broken = playbook(id="broken", when="late[5].stack.depth > 1")
    findings, considered = evaluate(library(tmp_path, playbook(), broken), facts(LATE))
    assert [f.playbook for f in findings] == ["late"]
    (failed,) = considered
    assert failed.outcome == "unknown"
    assert failed.why.startswith("its rule failed: ")


def test_a_text_that_fails_costs_that_text_only(tmp_path: Path) -> None:
    nobody = "{{ waiting[0].stack.op }}"
    found = finding(
        tmp_path,
        facts(LATE),
        summary=nobody,
        evidence=[{"probe": "stacks", "text": nobody}, {"probe": "stacks", "text": "here"}],
        actions=[nobody, "act"],
    )
    assert found.summary == "A rank is late"
    assert [p.text for p in found.evidence] == ["here"]
    assert found.actions == ("act",)
    assert [reason.split(" ")[0] for reason in found.reasons] == ["summary", "evidence.0.text", "actions.0"]


def of_links(tmp_path: Path, links: tuple[LinkFacts, ...], **texts: Any) -> Finding:
    """What is found where dead links are blamed."""
    return finding(
        tmp_path,
        facts(WAITS, network=NetworkJob(links)),
        links={"broken": "dead ?? false"},
        when="broken.length > 0",
        blame_links="broken",
        culprits=None,
        **texts,
    )


def test_links(tmp_path: Path) -> None:
    links = (
        LinkFacts(0, 1, "10.0.0.1:1", "10.0.0.2:2", "eth0", True),
        LinkFacts(1, 0, "10.0.0.2:2", "10.0.0.1:1", "eth1", True),
        LinkFacts(0, -1, "10.0.0.1:3", "10.0.0.9:9", None, True),
        LinkFacts(0, 2, "10.0.0.1:4", "10.0.0.3:4", "eth0", False),
    )
    found = of_links(
        tmp_path,
        links,
        summary="{{ broken|links }} over {{ broken|attr('interface') }}",
        actions=["{{ broken|ways }}"],
    )
    assert found.culprits == ()
    assert found.links == (
        Link(0, 1, "10.0.0.1:1", "10.0.0.2:2", "eth0"),
        Link(0, None, "10.0.0.1:3", "10.0.0.9:9", None),
    )
    assert found.summary == "ranks 0 and 1, rank 0 and 10.0.0.9 over eth0, eth1"
    assert found.actions == ("from rank 0 to rank 1, from rank 1 to rank 0, from rank 0 to 10.0.0.9",)


@pytest.mark.parametrize(
    ("count", "end"), [(9, "ranks 0 and 8, ranks 0 and 9"), (600, "ranks 0 and 8, and 592 more pairs")]
)
def test_of_many_links_some_are_named(tmp_path: Path, count: int, end: str) -> None:
    links = tuple(LinkFacts(0, rank, "10.0.0.1:1", f"10.0.1.{rank}:2", "eth0", True) for rank in range(1, count + 1))
    found = of_links(tmp_path, links, summary="{{ broken|links }}")
    assert found.summary.endswith(end)


def test_a_line_for_each(tmp_path: Path) -> None:
    lines = tuple(f"n{i} = {i}" for i in range(20))
    found = finding(
        tmp_path,
        facts(LATE, network=NetworkJob((), lines)),
        evidence=[{"probe": "stacks", "ranks": "late", "each": "network.lines", "text": "{{ item }}!"}],
    )
    assert [p.text for p in found.evidence] == [f"n{i} = {i}!" for i in range(8)]


def test_ranks_without_numbers_are_named_by_pid(tmp_path: Path) -> None:
    given = facts(LATE, LATE, None, numbered=False)
    found = finding(tmp_path, given, evidence=[{"probe": "stacks", "text": "x"}])
    assert found.summary.startswith("pid 100, 101: no rank at ")
    assert found.culprits[0].rank is None
    assert found.evidence[0].ranks == ()
    assert found.reasons == ("stacks of pid 102 not seen",)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ all|rank_list }}", "0-2"),
        ("{{ late|ranks }}", "ranks 0-1"),
        ("{{ all|hosts }}", "node[0-1]"),
        ("{{ all|pids }}", "100 101 102"),
        ("{{ all|sites }}", "finish (train.py:31), train (train.py:24)"),
        ("{{ all|attr('stack.step') }}", "20, 15"),
        ("{{ all|attr('stack.step', 1) }}", "20.0, 15.0"),
        ("{{ unknown|attr('stack.step') }}", "unknown"),
        ("{{ all|by('stack.op') }}", "barrier on ranks 0-1, all_reduce on rank 2"),
        ("{{ stall.seconds }} {{ all[0].stack.step }}", "unknown 20"),
        ("{{ stall.seconds|seconds }} {{ 2048|bytes }} {{ 0.5|percent }}", "an unknown time 2 KiB 50 %"),
        ("{% for r in late %}{{ r.pid }};{% endfor %}", "100;101;"),
        ("a\n  b", "a b"),
    ],
)
def test_filters(tmp_path: Path, template: str, text: str) -> None:
    assert finding(tmp_path, facts(LATE, LATE, WAITS, stall=StallJob(True, None)), summary=template).summary == text


def test_text_of_the_target_is_never_a_template(tmp_path: Path) -> None:
    hostile = replace(LATE, site="{{ 7 * 7 }}{% for %}")
    assert finding(tmp_path, facts(hostile), summary="{{ late|sites }}").summary == "{{ 7 * 7 }}{% for %}"


@pytest.mark.parametrize(
    "template",
    ["{{ late.__class__ }}", "{{ late[0].__class__.__mro__ }}", "{{ ''.__class__ }}", "{{ stall.__init__ }}"],
)
def test_templates_are_sandboxed(tmp_path: Path, template: str) -> None:
    found = load([write(tmp_path, playbook(summary=template))], SCHEMA, PROBES)
    if not found.problems:
        ((finding,), _) = evaluate(found, facts(LATE))
        assert finding.summary == "A rank is late"


def test_ranks_that_agree_are_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    before = Expression.holds

    def counted(self: Expression, thing: Any) -> bool:
        nonlocal asked
        asked += 1
        return before(self, thing)

    monkeypatch.setattr(Expression, "holds", counted)
    many = facts(*[WAITS] * 500, *[LATE] * 500, *[replace(LATE, step=float(i)) for i in range(1000)])
    found = finding(tmp_path, many)
    assert len(found.culprits) == 1500
    assert asked == 5  # `waits` true and false in two selections, and `when`


def test_ten_thousand_ranks(tmp_path: Path) -> None:
    many = facts(*[WAITS] * 9_999, LATE)
    found = library(tmp_path, *(playbook(id=f"p{i}") for i in range(5)))
    start = time.perf_counter()
    findings, _ = evaluate(found, many)
    took = time.perf_counter() - start
    print(f"\n10,000 ranks through a playbook: {took / 5 * 1e3:.0f} ms")
    assert len(findings) == 5
    assert took < 5


def test_an_analysis_with_a_type_no_rule_knows_breaks_nothing(tmp_path: Path) -> None:
    @dataclass(frozen=True, slots=True)
    class Odd:
        table: dict[str, frozenset[int]]
        n: int = 0

    types = schema((Group("odd", None, Odd), Group("stack", StackFacts), STALL, NETWORK))
    directory = write(tmp_path, playbook(when="odd.n == 0", ranks={"late": "true"}, summary="x"))
    assert load([directory], types, PROBES).problems == ()


def test_a_finding_is_plain_text(tmp_path: Path) -> None:
    found = finding(tmp_path, facts(LATE), actions=["x"])
    json.dumps([found.summary, found.actions, found.evidence, found.reasons])
