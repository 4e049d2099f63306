from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from hangdoc.analysis.facts import Facts
from hangdoc.rules.conditions import Scope, Term, Truth
from hangdoc.rules.evaluate import evaluate
from hangdoc.rules.loader import load
from hangdoc.verdict import Considered, Culprit, Finding, Link, Proof
from tests.support.pace import slowness
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
    StorageFacts,
    facts,
    library,
    playbook,
    write,
)
from tests.support.toy_types import schema

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
            {"probe": "sockets", "ranks": "observed", "if": "job.stall.seconds == null", "text": "not said"},
            {"probe": "sockets", "text": "for {{ job.stall.seconds|seconds }}\n  {{ observed|by('stack.step') }}"},
            {"probe": "cpu", "ranks": "unobserved", "text": "of nobody"},
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


WRITES = {"writing": "storage.share > 0.5", "late": "not stack.waits"}
DISK, IDLE = StorageFacts(0.9, "disk"), StorageFacts(0.0)


@pytest.mark.parametrize(
    ("when", "storage", "why"),
    [
        ("any(writing)", (None, None), "io of ranks 0-1 not seen"),
        ("any(writing)", (IDLE, None), "io of rank 1 not seen"),
        ("not none(writing)", (IDLE, None), "io of rank 1 not seen"),
        ("count(writing) > 1", (DISK, None), "io of rank 1 not seen"),
        ("all(writing)", (DISK, None), "io of rank 1 not seen"),
        ("any(writing and rank == 1)", (None, None), "io of rank 1 not seen"),
        ("any(late) or any(writing)", (None, IDLE), "io of rank 0 not seen"),
        ("any(writing) and any(storage.target)", (None, IDLE), "io of rank 0 not seen"),
        ("count(writing) + count(late) > 1", (None, DISK), "io of rank 0 not seen"),
    ],
)
def test_a_playbook_whose_condition_is_unknown_says_which_evidence_is_missing(
    tmp_path: Path, when: str, storage: tuple[StorageFacts | None, ...], why: str
) -> None:
    given = facts(*[WAITS] * len(storage), storage=storage)
    assert one(tmp_path, given, select=WRITES, when=when, summary="x") == Considered("late", "unknown", why)


def test_every_group_that_would_decide_is_named(tmp_path: Path) -> None:
    given = facts(WAITS, None, WAITS, storage=(None, IDLE, DISK))
    outcome = one(tmp_path, given, needs=None, select=WRITES, when="any(late) or all(writing or late)", summary="x")
    assert outcome == Considered("late", "unknown", "io of rank 0 not seen; stacks of rank 1 not seen")


@pytest.mark.parametrize(
    ("when", "storage"),
    [
        ("any(writing)", (IDLE, IDLE)),
        ("any(writing) and any(late)", (None, None)),
        ("all(writing)", (IDLE, None)),
        ("count(writing) > 1", (IDLE, None)),
        ("any(writing and late)", (None, None)),
    ],
)
def test_what_missing_evidence_cannot_change_is_no(
    tmp_path: Path, when: str, storage: tuple[StorageFacts | None, ...]
) -> None:
    given = facts(*[WAITS] * len(storage), storage=storage)
    no = Considered("late", "no", "its condition does not hold")
    assert one(tmp_path, given, select=WRITES, when=when, summary="x") == no


def test_a_selection_holds_the_ranks_that_are_certain(tmp_path: Path) -> None:
    given = facts(WAITS, WAITS, WAITS, storage=(DISK, None, IDLE))
    found = finding(
        tmp_path, given, select=WRITES, when="any(writing)", culprits="writing",
        summary="{{ writing|ranks }} of {{ observed|ranks }}",
        confidence={
            "raise": [{"if": "all(writing)", "because": "x"}],
            "lower": [{"if": "count(writing) == 1", "because": "y"}],
        },
        evidence=[{"ranks": "writing"}, {"if": "none(writing and rank == 1)", "text": "not certain"}],
    )  # fmt: skip
    assert [culprit.rank for culprit in found.culprits] == [0]
    assert found.summary == "rank 0 of ranks 0-2"
    assert (found.confidence, found.reasons) == ("medium", ())
    assert [proof.ranks for proof in found.evidence] == [(0,)]


def test_evidence_missing_of_ranks_without_numbers_is_named_by_pid(tmp_path: Path) -> None:
    given = facts(WAITS, WAITS, storage=(None, None), numbered=False)
    outcome = one(tmp_path, given, select=WRITES, when="any(writing)", summary="x")
    assert outcome == Considered("late", "unknown", "io of pids 100, 101 not seen")


def test_links_that_were_not_looked_at_do_no_harm_where_ranks_are_unknown(tmp_path: Path) -> None:
    when = "job.stall.seconds > 1000 and any(broken) or any(writing)"
    outcome = one(tmp_path, facts(WAITS), links={"broken": "dead"}, select=WRITES, when=when, summary="x")
    assert outcome == Considered("late", "unknown", "io of rank 0 not seen")


WITHOUT = ["none(waiting)", "all(late)", "count(waiting) == 0", "not any(waiting)", "count(everyone) == 1"]


@pytest.mark.parametrize("when", WITHOUT[:-1])
def test_what_a_rank_without_evidence_could_change_is_unknown(tmp_path: Path, when: str) -> None:
    outcome = one(tmp_path, facts(LATE, None), needs=None, when=when)
    assert outcome == Considered("late", "unknown", "stacks of rank 1 not seen")


@pytest.mark.parametrize("when", WITHOUT)
def test_a_rank_that_a_needed_probe_has_not_seen_is_in_no_selection_and_costs_confidence(
    tmp_path: Path, when: str
) -> None:
    select = {"late": "not stack.waits", "waiting": "stack.waits", "everyone": "true"}
    found = finding(
        tmp_path, facts(LATE, None), select=select, when=when, confidence={"base": "high"},
        summary="{{ everyone|rank_list }}, {{ observed|rank_list }} without {{ unobserved|rank_list }}",
        evidence=[{"ranks": "everyone"}],
    )  # fmt: skip
    assert (found.confidence, found.reasons) == ("medium", ("stacks of rank 1 not seen",))
    assert found.summary == "0, 0 without 1"
    assert [culprit.rank for culprit in found.culprits] == [0]
    assert [proof.ranks for proof in found.evidence] == [(0,)]


def test_a_playbook_whose_probe_saw_nobody_never_fires(tmp_path: Path) -> None:
    outcome = one(tmp_path, facts(None, None), when="job.stall.stalled")
    assert isinstance(outcome, Considered)
    assert outcome.outcome == "unknown"


def test_what_a_dead_process_does_not_show_is_not_unseen(tmp_path: Path) -> None:
    given = facts(WAITS, None, dead=frozenset({1}))
    waits = {"late": 'stack.op == "barrier"', "waiting": "stack.waits"}
    assert one(tmp_path / "a", given, select=waits) == Considered("late", "no", "its condition does not hold")
    gone = {"late": "not alive"}
    assert finding(tmp_path / "b", given, select=gone, summary="x").culprits[0].rank == 1


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
    step = {"if": "count(late) == 1", "because": "yes"}
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


def test_of_findings_that_are_equally_certain_the_graver_comes_first(tmp_path: Path) -> None:
    graver = ("failed", "stalled", "diverging", "slow")
    books = [playbook(id=id, status=status) for id, status in zip("dcba", graver, strict=True)]
    books.append(playbook(id="e", status="slow", confidence={"base": "high"}))
    step = {"if": "true", "because": "x"}  # reasons count for the confidence only
    books.append(playbook(id="0", status="slow", confidence={"base": "low", "raise": [step]}))
    findings, _ = evaluate(library(tmp_path, *books), facts(LATE))
    assert [f.playbook for f in findings] == ["e", "d", "c", "b", "0", "a"]


def test_a_rule_that_fails_takes_no_other_down(tmp_path: Path) -> None:
    broken = playbook(id="broken", when='any(stack.names[5] == "x")')
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
        links={"broken": "dead"},
        when="any(broken)",
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
        evidence=[{"probe": "stacks", "ranks": "late", "each": "job.network.lines", "text": "{{ item }}!"}],
    )
    assert [p.text for p in found.evidence] == [f"n{i} = {i}!" for i in range(8)]


def test_ranks_without_numbers_are_named_by_pid(tmp_path: Path) -> None:
    given = facts(LATE, LATE, None, numbered=False)
    found = finding(tmp_path, given, evidence=[{"probe": "stacks", "text": "x"}])
    assert found.summary.startswith("pids 100, 101: no rank at ")
    assert found.culprits[0].rank is None
    assert found.evidence[0].ranks == ()
    assert found.reasons == ("stacks of pid 102 not seen",)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ observed|rank_list }}", "0-2"),
        ("{{ late|ranks }}", "ranks 0-1"),
        ("{{ observed|hosts }}", "node[0-1]"),
        ("{{ observed|pids }}", "100 101 102"),
        ("{{ observed|sites }}", "finish (train.py:31), train (train.py:24)"),
        ("{{ observed|attr('stack.step') }}", "20, 15"),
        ("{{ observed|attr('stack.step', 1) }}", "20.0, 15.0"),
        ("{{ unobserved|attr('stack.step') }}", "unknown"),
        ("{{ observed|by('stack.op') }}", "barrier on ranks 0-1, all_reduce on rank 2"),
        ("{{ job.stall.seconds }} {{ observed[0].stack.step }}", "unknown 20"),
        ("{{ job.stall.seconds|seconds }} {{ 2048|bytes }} {{ 0.5|percent }}", "an unknown time 2 KiB 50 %"),
        ("{{ late|verb('is') }} {{ waiting|verb('is') }}", "are is"),
        ("{{ late|verb('was') }} {{ waiting|verb('was') }}", "were was"),
        ("{{ late|verb('has') }} {{ waiting|verb('has') }}", "have has"),
        ("{{ late|verb('does') }} {{ waiting|verb('does') }}", "do does"),
        ("{{ late|verb('wait') }} {{ waiting|verb('wait') }}", "wait waits"),
        ("{{ late|verb('reach') }} {{ waiting|verb('reach') }}", "reach reaches"),
        ("{{ late|verb('pass') }} {{ waiting|verb('pass') }}", "pass passes"),
        ("{{ late|verb('finish') }} {{ waiting|verb('finish') }}", "finish finishes"),
        ("{{ late|verb('go') }} {{ waiting|verb('fix') }}", "go fixes"),
        ("{{ waiting|verb('delay') }}", "delays"),
        ("{{ late|verb('carry') }} {{ waiting|verb('carry') }}", "carry carries"),
        ("{{ unobserved|map(attribute='pid')|max }} {{ unobserved|map(attribute='pid')|min }}", "unknown unknown"),
        ("{{ unobserved|first }} {{ unobserved|last }}", "unknown unknown"),
        ("{{ job.stall.seconds|round }} {{ unobserved|map(attribute='pid')|max|round(1) }}", "unknown unknown"),
        ("{{ observed|map(attribute='stack.step')|max }} {{ late|map(attribute='pid')|min }}", "20 100"),
        ("{{ late|plural('it', 'them') }} {{ waiting|plural('it', 'them') }}", "them it"),
        ("{{ unobserved|plural('it', 'them') }} {{ unobserved|verb('is') }}", "them are"),
        ("{{ waiting|standing }}", "all_reduce at train (train.py:24)"),
        ("{{ late|standing }}", "barrier at finish (train.py:31)"),
        (
            "{{ observed|standing }}",
            "barrier at finish (train.py:31) on ranks 0-1, all_reduce at train (train.py:24) on rank 2",
        ),
        ("[{{ unobserved|standing }}]", "[]"),
        ("{% for r in late %}{{ r.pid }};{% endfor %}", "100;101;"),
        ("a\n  b", "a b"),
    ],
)
def test_filters(tmp_path: Path, template: str, text: str) -> None:
    assert finding(tmp_path, facts(LATE, LATE, WAITS, stall=StallJob(True, None)), summary=template).summary == text


@pytest.mark.parametrize(
    ("stack", "text"),
    [
        (StackFacts(phase="forward", site="f (a.py:1)"), "forward at f (a.py:1)"),
        (StackFacts(phase="forward"), "forward"),
        (StackFacts("barrier", phase="collective"), "barrier"),
        (StackFacts("barrier", "f (a.py:1)", phase="collective"), "barrier at f (a.py:1)"),
    ],
)
def test_a_rank_stands_in_its_operation_or_else_in_its_phase(tmp_path: Path, stack: StackFacts, text: str) -> None:
    assert finding(tmp_path, facts(stack), summary="{{ late|standing }}").summary == text


def test_a_line_without_text_says_where_its_ranks_are(tmp_path: Path) -> None:
    found = finding(
        tmp_path,
        facts(WAITS, WAITS, LATE),
        select={"late": "not stack.waits", "waiting": "stack.waits", "gone": "alive == false"},
        evidence=[
            {"ranks": "late"},
            {"ranks": "waiting", "probe": "cpu"},
            {"ranks": "gone"},
            {"ranks": "late", "if": "none(waiting)"},
            {"ranks": "waiting", "if": "any(late)"},
            {},
        ],
    )
    everyone = "all_reduce at train (train.py:24) on ranks 0-1, barrier at finish (train.py:31) on rank 2"
    assert found.evidence == (
        Proof("stacks", (2,), "barrier at finish (train.py:31)"),
        Proof("cpu", (0, 1), "all_reduce at train (train.py:24)"),
        Proof("stacks", (0, 1), "all_reduce at train (train.py:24)"),
        Proof("stacks", (0, 1, 2), everyone),
    )
    assert found.reasons == ()


def test_an_action_is_given_if_its_condition_is_certain(tmp_path: Path) -> None:
    actions = [
        {"if": "any(late)", "text": "wake {{ late|ranks }}"},
        {"if": "none(late)", "text": "no"},
        {"if": "any(writing)", "text": "nobody knows"},
        {"if": "none(writing)", "text": "nobody knows"},
        {"text": "{% if not late %}empty{% endif %}"},
        {"text": "look"},
        "listen",
    ]
    given = facts(LATE, WAITS, storage=(IDLE, None))
    found = finding(tmp_path, given, select={**WRITES, "waiting": "stack.waits"}, actions=actions)
    assert found.actions == ("wake rank 0", "look", "listen")


def test_text_of_the_target_is_never_a_template(tmp_path: Path) -> None:
    hostile = replace(LATE, site="{{ 7 * 7 }}{% for %}")
    assert finding(tmp_path, facts(hostile), summary="{{ late|sites }}").summary == "{{ 7 * 7 }}{% for %}"


@pytest.mark.parametrize(
    "template",
    ["{{ late.__class__ }}", "{{ late[0].__class__.__mro__ }}", "{{ ''.__class__ }}", "{{ job.__init__ }}"],
)
def test_templates_are_sandboxed(tmp_path: Path, template: str) -> None:
    found = load([write(tmp_path, playbook(summary=template))], SCHEMA, PROBES)
    if not found.problems:
        ((finding,), _) = evaluate(found, facts(LATE))
        assert finding.summary == "A rank is late"


def test_ranks_that_agree_are_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    before = Term.truth

    def counted(self: Term, thing: Any, scope: Scope) -> Truth:
        nonlocal asked
        asked += 1
        return before(self, thing, scope)

    monkeypatch.setattr(Term, "truth", counted)
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
    assert took < 5 * slowness()


def test_an_analysis_with_a_type_no_rule_knows_breaks_nothing(tmp_path: Path) -> None:
    @dataclass(frozen=True, slots=True)
    class Odd:
        table: dict[str, frozenset[int]]
        n: int = 0

    types = schema((Group("odd", Odd, Odd), Group("stack", StackFacts), STALL, NETWORK))
    directory = write(
        tmp_path, playbook(when="job.odd.n == 0 or any(odd.n == 0)", select={"late": "true"}, summary="x")
    )
    assert load([directory], types, PROBES).problems == ()


def test_a_finding_is_plain_text(tmp_path: Path) -> None:
    found = finding(tmp_path, facts(LATE), actions=["x"])
    json.dumps([found.summary, found.actions, found.evidence, found.reasons])
