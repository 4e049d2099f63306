"""Playbooks of users that are hostile or clumsy: each costs itself only, and neither hangs nor leaves the sandbox."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from jinja2.exceptions import TemplateError

import playbooks
from hangdoc.analysis.facts import Facts, schema
from hangdoc.diagnose import Judge
from hangdoc.errors import HangdocError
from hangdoc.rules import runbook, time_limit
from hangdoc.rules.conditions import OBSERVED, UNOBSERVED
from hangdoc.rules.evaluate import FAILED, evaluate
from hangdoc.rules.files import MAX_PLAYBOOKS
from hangdoc.rules.filters import MAX_TEXT
from hangdoc.rules.loader import MAX_PROBLEMS, load
from hangdoc.rules.scope import PlaybookScope
from hangdoc.rules.time_limit import CPU_S, CPU_S_PER_RANK
from tests.support.toy_schema import PROBES, SCHEMA, NetworkJob, StackFacts, facts, library, playbook, write

GRACE_S = 2.0  # CPU time in which a playbook is refused or cut off, on a busy machine

LINES = "job.network.lines"
FOUR = facts(StackFacts(waits=False), *(StackFacts(waits=True, op="a" * 40, names=("x" * 50,)) for _ in range(3)))


@contextmanager
def in_time(limit_s: float = GRACE_S) -> Iterator[None]:
    began = time.thread_time()
    yield
    assert time.thread_time() - began < limit_s


def many(count: int) -> Facts:
    stacks = (StackFacts(waits=n % 2 == 0, op=f"op{n}", depth=n) for n in range(count))
    return facts(*stacks, network=NetworkJob((), tuple(f"line {n}" for n in range(count))))


def refused(tmp_path: Path, **changes: Any) -> str:
    """The problems of the sound playbook after these changes; beside it a sound one is loaded and judged by."""
    with in_time():
        found = load([write(tmp_path, playbook(**changes), playbook(id="sound"))], SCHEMA, PROBES)
    assert [p.id for p in found.playbooks] == ["sound"]
    assert [finding.playbook for finding in evaluate(found, FOUR)[0]] == ["sound"]
    return "\n".join(map(str, found.problems))


# --- rules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("host =~~ '(a+)+$'", "could take forever"),
        ("'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!' =~ '(a+)+$'", "could take forever"),
        ("host !~ '(a|a)*$'", "could take forever"),
        ("host !~~ r'(\\w+\\s?)*$'", "could take forever"),
        ("host =~ ('(a+)' + '+$')", "`=~` needs one quoted pattern on its right"),
        ("host =~ '(a+)' + '+$'", "`=~` needs one quoted pattern on its right"),
        ("host =~ host", "`=~` needs one quoted pattern on its right"),
        ("9**9**9**9 > 1", "syntax error at '**9**9"),
        ("1 << 9999999999 > 1", "syntax error at '<< 9"),
        ("1e999999999 > 1", "syntax error at '1e9"),
        ("9999999999999999999 > 1", "syntax error at '9"),
        ("'1e999999999'.to_flt.floor > 1", "unknown field `to_flt`"),
        ("(rank * 1e99).floor > 1", "unknown field `floor`"),
        ("host.encode('idna').length > 1", "unknown field `encode`"),
        ("[x for x in $range(1000000000)].length > 1", "unknown name `$range`"),
        ("$now > d'2020-01-01'", "syntax error at \"d'2020"),
        ("$now == $today", "unknown name `$now`"),
        ("$random() > 1", "unknown name `$random`"),
        ("$split(host, 'a').length > 1", "unknown name `$split`"),
        ("(" * 300 + "true" + ")" * 300, "tokens"),
        ("(" * 200 + "true" + ")" * 200 + " and " + "not " * 80 + "alive", "is nested too deeply"),
        ("(" * 21 + "alive" + ")" * 21, "is nested too deeply; split it into several selections"),
        ("(" * 1_000 + "alive" + ")" * 1_000, "is longer than 2000 characters"),
        ("(" * 1_000 + "alive", "has more than 500 tokens"),
        ("(" * 400, "a parenthesis is not closed"),
        (")" * 400, "syntax error at '))))"),
        ("[" * 240 + "rank" + "]" * 240 + " == 1", "is nested too deeply"),
        ("rank == 1" + " + rank" * 120, "is nested too deeply"),
        ("not " * 600 + "alive", "is longer than 2000 characters"),
        ("not " * 400 + "(" * 21 + "alive" + ")" * 21, "is nested too deeply"),
        ("alive and " * 10_000 + "alive", "contains a value of more than 4000 characters"),
        ("alive" + " " * 100_000, "contains a value of more than 4000 characters"),
        (" or ".join(["rank>1"] * 130), "has more than 500 tokens"),
        ("host == '" + "x" * 3000 + "'", "is longer than 2000 characters"),
        ("any(" * 50 + "alive" + ")" * 50, "`any(...)` is a condition over the job"),
        ("true # " + "x" * 100, "syntax error at '#"),
        ("__class__ == 1", "unknown name `__class__`"),
        ("host.__class__ == 1", "unknown name `__class__`"),
        ("(rank > 0 ? host : rank).__class__.__mro__.length > 1", "unknown name `__class__`"),
        ("(rank >= 0 ? job : 1).__init__.__globals__['x'] == 1", "unknown name `__init__`"),
    ],
)
def test_rules_that_are_refused(tmp_path: Path, rule: str, said: str) -> None:
    assert said in refused(tmp_path, select={"late": rule, "waiting": "true"})


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("(" * 1_000 + "any(late)" + ")" * 1_000, "is longer than 2000 characters"),
        ("(" * 240 + "any(late)" + ")" * 240, "is nested too deeply"),
        ("any(" + "(" * 21 + "late" + ")" * 21 + ")", "is nested too deeply"),
        (" or ".join(["any(late)"] * 10_000), "contains a value of more than 4000 characters"),
        (" or ".join(["any(late)"] * 150), "has more than 500 tokens"),
        ("any(late)" + " " * 100_000, "contains a value of more than 4000 characters"),
        ("count(" * 80 + "late" + ")" * 80 + " > 0", "`count(...)` is a number of the job"),
        ("any(" * 80 + "late" + ")" * 80, "`any(...)` is a condition over the job"),
        ("any(host =~ '(a+)+$')", "could take forever"),
        ("count(host =~~ '(a|a)*$') > 1", "could take forever"),
        ("any(host =~ host)", "`=~` needs one quoted pattern on its right"),
        ("count(late) > 9**9**9", "syntax error at '**9**9"),
        ("count(late) > 1e999", "syntax error at '1e999"),
        ("count(late).__class__ == 1", "unknown name `__class__`"),
        ("any(late.__class__ == 1)", "unknown name `__class__`"),
        ("job.__class__ == 1", "unknown name `__class__`"),
    ],
)
def test_conditions_over_the_job_that_are_refused(tmp_path: Path, when: str, said: str) -> None:
    assert said in refused(tmp_path, when=when)


@pytest.mark.parametrize(
    "when",
    [
        "not " * 450 + "any(late)",
        "(" * 240 + "count(late)" + ")" * 240 + " > 0",
        " or ".join(["any(not late)", *["any(late)"] * 90]),
        "count(late) " + "+ count(late) " * 50 + "> 0",
        "(" * 20 + "any(late)" + ")" * 20,
    ],
)
def test_clumsy_conditions_are_judged_in_time(tmp_path: Path, when: str) -> None:
    with in_time():
        found = load([write(tmp_path, playbook(when=when))], SCHEMA, PROBES)
        assert found.problems or evaluate(found, FOUR)[0]


def doubling(first: str) -> dict[str, str]:
    """Selections of which each is twice the one before: 2^63 terms."""
    return {"s0": first} | {f"s{n}": f"s{n - 1} and s{n - 1}" for n in range(1, 64)}


@pytest.mark.parametrize(
    "changes",
    [
        {"select": doubling("stack.waits")},
        {"select": doubling("storage.share > 0"), "needs": []},
        {"links": doubling("dead"), "select": {}},
        {"select": {**doubling("stack.waits"), "s63": "not (s62 or s62)"}, "when": "count(s63) > 1"},
    ],
)
def test_selections_that_double_each_other_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    said = refused(tmp_path, **{"when": "any(s63)", "culprits": None, "summary": "x", **changes})
    assert "has more than 2000 terms, with those of its selections; make it simpler" in said


@pytest.mark.parametrize("first", ["stack.waits", "storage.share > 0"])
@pytest.mark.parametrize("level", ["(rank < 9 and (rank < 8 or (rank < 7 and {})))", "rank < 9 and {}"])
def test_selections_within_one_another_end_with_a_sentence(tmp_path: Path, level: str, first: str) -> None:
    select = {"s0": first}
    for n in range(1, 64):
        written = f"s{n - 1}"
        for _ in range(6 if "or" in level else 1):
            written = level.format(written)
        select[f"s{n}"] = written
    made = playbook(select=select, when="any(s63)", culprits=None, summary="x", needs=[])
    with in_time(CPU_S + GRACE_S):
        found = load([write(tmp_path, made)], SCHEMA, PROBES)
        findings, considered = evaluate(found, FOUR)
    assert len(found.problems) or len(findings) + len(considered) == 1
    assert "Traceback" not in "".join([*map(str, found.problems), *(c.why for c in considered)])


def test_what_would_decide_a_condition_is_searched_for_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*given: Any) -> str:
        began = time.thread_time()
        while time.thread_time() < began + 1.0:
            time_limit.check()
        return "never"

    monkeypatch.setattr("hangdoc.rules.time_limit.CPU_S", 0.1)
    monkeypatch.setattr(PlaybookScope, "missing", endless)
    found = library(tmp_path, playbook(select={}, needs=[], when="any(storage.share > 0)", culprits=None, summary="x"))
    _, (unknown,) = evaluate(found, FOUR)
    assert unknown.why.startswith(f"{FAILED}: it took more than 0.1 s of CPU time")


def test_where_the_search_for_what_would_decide_fails_nothing_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: Any) -> str:
        raise LookupError("unforeseen")

    monkeypatch.setattr(PlaybookScope, "missing", fails)
    unknown = playbook(id="late", select={}, needs=[], when="any(storage.share > 0)", culprits=None, summary="x")
    findings, considered = evaluate(library(tmp_path, unknown, playbook(id="sound")), FOUR)
    assert [finding.playbook for finding in findings] == ["sound"]
    assert [c.why for c in considered] == [f"{FAILED}: unforeseen"]


def test_a_rule_reads_declared_fields_and_nothing_else_of_an_object(tmp_path: Path) -> None:
    """Where the type of a value is not known the library would read any attribute: here a method of a dataclass."""
    field, method = "[(r.rank >= 0 ? job : 1).stall.stalled for r in late]", "[(r.rank >= 0 ? r : 1).mro for r in late]"
    line = {"probe": "cpu", "text": "{{ item }}"}
    ((finding,), _) = evaluate(library(tmp_path, playbook(evidence=[{**line, "each": field}])), FOUR)
    assert [proof.text for proof in finding.evidence] == ["True"]
    found = library(tmp_path / "other", playbook(evidence=[{**line, "each": method}]))
    ((_, outcome, why),) = [(c.playbook, c.outcome, c.why) for c in evaluate(found, FOUR)[1]]
    assert outcome == "unknown"
    assert "mro" in why


def test_a_rule_that_took_over_the_program_does_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = f"open('{mark}', 'w')"
    rule = f'(rank >= 0 ? job : 1).__class__.__init__.__globals__["__builtins__"]["exec"]("{code}") == 1'
    assert "unknown name `__class__`" in refused(tmp_path, select={"late": rule, "waiting": "true"})
    assert not mark.exists()


def test_a_pattern_is_held_against_the_start_of_a_long_text(tmp_path: Path) -> None:
    rules = {"late": 'stack.op =~ ".*x"', "waiting": 'stack.op =~~ "a.*x"'}
    found = library(tmp_path, playbook(select=rules, when="any(waiting)"))
    long = facts(StackFacts(op="a" * 300_000 + "x"), StackFacts(op="a" * 1_000 + "x"))
    with in_time():
        (finding,), _ = evaluate(found, long)
    assert [culprit.rank for culprit in finding.culprits] == [1]


@pytest.mark.parametrize(
    "changes",
    [
        {"select": {"late": f"[a for a in {LINES} if [b for b in {LINES} if a < b]].length > 1"}, "when": "any(late)"},
        {"when": f"[a for a in {LINES} if [b for b in {LINES} if [c for c in {LINES} if c > a]]].length > 1"},
        {"when": f"any([a for a in {LINES} if [b for b in {LINES} if [c for c in seen if a < b]]].length > rank)"},
        {"when": f"count([a for a in {LINES} if [b for b in {LINES} if a < b].length > rank].length > 1) > 1"},
        {"evidence": [{"each": "[[b for b in observed if a in observed] for a in observed]", "text": "{{ item }}"}]},
        {"blame": "[a for a in observed if [b for b in observed if [c for c in observed if c.rank > 9].length > 9]]"},
        {"confidence": {"lower": [{"if": f"[a for a in {LINES} if [b for b in {LINES} if a < b]]", "because": "x"}]}},
        {"summary": "{% for a in observed %}" + "{% if observed|ranks == 'x' %}y{% endif %}" * 90 + "{% endfor %}"},
    ],
)  # fmt: skip
def test_what_takes_too_long_is_cut_off_named_and_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    slow = playbook(id="slow", select={"late": "true"}, when="true", summary="x") | changes
    found = load([write(tmp_path, slow, playbook(when="any(late)", summary="x"))], SCHEMA, PROBES)
    assert found.problems == ()
    monkeypatch.setattr("hangdoc.rules.time_limit.CPU_S", 0.1)
    thousand = many(1_000)
    known: dict[str, str] = {}
    with in_time(0.1 + CPU_S_PER_RANK * 1_000 + GRACE_S):
        findings, considered = evaluate(found, thousand, known)
    assert [finding.playbook for finding in findings] == ["late"]
    ((id, outcome, why),) = [(c.playbook, c.outcome, c.why) for c in considered]
    assert (id, outcome) == ("slow", "unknown")
    assert why.startswith(f"{FAILED}: it took more than 0.3 s of CPU time on 1000 ranks")
    with in_time(0.1):
        assert evaluate(found, thousand, known) == (findings, considered)


def test_a_playbook_that_fails_is_among_what_was_not_seen(tmp_path: Path) -> None:
    from hangdoc.diagnose import _failed

    found = library(tmp_path, playbook(when='any(stack.names[9] == "x")'))
    (unseen,) = _failed(evaluate(found, FOUR)[1])
    assert (unseen.probe, unseen.rank) == ("playbook", None)
    assert unseen.why.startswith(f"late: {FAILED}: ")
    assert Judge(found, SCHEMA).slow == {}


# --- templates ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{% for i in range(10**9) %}x{% endfor %}", "`call` is not allowed in playbooks"),
        ("{% for a in observed %}{% for b in observed %}x{% endfor %}{% endfor %}", "nested `for`"),
        (
            "{% for a in observed %}{% if a.rank %}{% for b in observed %}{% endfor %}{% endif %}{% endfor %}",
            "nested `for`",
        ),
        ("{% for a in observed recursive %}x{% endfor %}", "`for` is not allowed in playbooks"),
        ("{{ 'a' * 10**9 }}", "`mul` is not allowed in playbooks"),
        ("{{ 10**10**10 }}", "`pow` is not allowed in playbooks"),
        ("{{ '%1000000000d' % 1 }}", "`mod` is not allowed in playbooks"),
        ("{% set x = 'aaaa' %}{% set x = x+x %}{{ x }}", "`assign` is not allowed in playbooks"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "`macro` is not allowed in playbooks"),
        ("{% include '/etc/passwd' %}", "`include` is not allowed in playbooks"),
        ("{% extends 'x' %}", "`extends` is not allowed in playbooks"),
        ("{% filter upper %}x{% endfilter %}", "`filterblock` is not allowed in playbooks"),
        ("{{ late.__class__ }}", "`.__class__` of several"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "`call` is not allowed in playbooks"),
        ("{{ '{0.__class__}'.format(late) }}", "`call` is not allowed in playbooks"),
        ("{{ lipsum(n=100000000) }}", "`call` is not allowed in playbooks"),
        ("{{ 'x'|center(1000000000) }}", "unknown filter `center`"),
        ("{{ 'x'|indent(1000000000) }}", "unknown filter `indent`"),
        ("{{ '%1000000000d'|format(1) }}", "unknown filter `format`"),
        ("{{ late|xmlattr }}", "unknown filter `xmlattr`"),
        ("{{ late|tojson }}", "unknown filter `tojson`"),
        ("{{ late|map('attr', '__class__')|list is callable }}", "unknown test `callable`"),
        ("{{ " + "(" * 1500 + "1" + ")" * 1500 + " }}", "cannot be parsed"),
        ("{{ " + "not " * 900 + "1 }}", ""),
        ("{{ job" + ".a" * 1500 + " }}", "is nested too deeply"),
        ("{{ 1" + "+1" * 1500 + " }}", "is nested too deeply"),
        ("{{ late" + "|list" * 600 + " }}", "is nested too deeply"),
        ("{% if x %}" * 190 + "{% endif %}" * 190, "is nested too deeply"),
        ("{{ " + "9" * 3900 + " }}{{", "unexpected"),
        ("{{ 'a' ~ 'b' }}", "`concat` is not allowed in playbooks"),
    ],
)
def test_templates_that_are_refused(tmp_path: Path, text: str, said: str) -> None:
    problems = refused(tmp_path, summary=text)
    assert "`summary`: " in problems
    assert said in problems


@pytest.mark.parametrize(
    "text",
    [
        "{{ late|attr('__cl' + 'ass__') }}",
        "{{ late|by('stack.__cla' + 'ss__') }}",
        "{{ waiting|attr('stack.op.upper') }}",
        "{{ late|map('at'+'tr', '__class__')|join }}",
        "{{ late|map(attribute='__class__')|join }}",
        "{{ late|map(attribute='stack.__init__.__globals__')|join }}",
        "{{ (late|first)['__class__'] }}",
        "{{ late['__class__'] }}",
        "{{ (late|first)['__cl'+'ass__'] }}",
        "{{ waiting|sort(attribute='__class__')|map(attribute='host')|join }}",
        "{{ late|join }}",
        "{{ late }}{{ observed|first }}",
        "{{ waiting|attr('stack') }}",
        "{{ late|map('upper')|join }}",
        "{{ late|map('for'+'mat', 1)|join }}",
        "{{ late|select('call'+'able')|join }}",
        "{% for a in late %}{{ loop['_'+'_class__'] }}{{ loop.__class__ }}{% endfor %}",
    ],
)
def test_a_template_shows_declared_fields_and_nothing_else_of_an_object(tmp_path: Path, text: str) -> None:
    found = load([write(tmp_path, playbook(summary=text))], SCHEMA, PROBES)
    for finding in evaluate(found, FOUR)[0]:
        assert finding.summary == finding.title
        assert finding.reasons[0].startswith("summary left out: ")
    assert found.problems or evaluate(found, FOUR)[0]


@pytest.mark.parametrize(
    "text",
    [
        "{{ ('a'" + "|replace('a', '" + "a" * 90 + "')" * 30 + ") }}",
        "{{ 'ab'" + "|join('" + "a" * 90 + "')" * 30 + " }}",
        "{{ ('ab'|replace('', '" + "a" * 3000 + "')) + '" + "a" * 900 + "' }}",
        "{{ 1.5|round(1000000000) }}{{ late|attr('rank', 1000000000) }}",
        "{{ 1.5|round(-1000000000) }}",
        "{{ 1e308|bytes }}{{ 1e308|seconds }}{{ 1e308|percent }}",
        "{% for a in observed %}" + "x" * 3900 + "{% endfor %}",
        "{{ observed|map(attribute='rank')|sum(start='x') }}",
    ],
)
def test_no_text_is_longer_than_anyone_reads(tmp_path: Path, text: str) -> None:
    found = load([write(tmp_path, playbook(summary=text, when="true"))], SCHEMA, PROBES)
    thousand = many(1_000)
    with in_time(CPU_S + GRACE_S):
        for finding in evaluate(found, thousand)[0]:
            assert len(finding.summary) <= MAX_TEXT + len(" ...")
    assert found.problems or evaluate(found, thousand)[0]


def test_what_shipped_texts_are_made_of_still_works(tmp_path: Path) -> None:
    text = (
        "{% for r in waiting %}{{ r.rank }}{{ ', ' if not loop.last }}{% endfor %}; "
        "{{ waiting|map(attribute='stack.op')|select|map('length')|max }} {{ (late|first).host or 'x' }} "
        "{{ waiting[0].pid - 1 }} {{ late|attr('rank', 2) }} "
        "{{ [1, 2]|join(', ') }} {{ 2.54|round(1) }} {{ 'unknown'|replace('unknown', 'y') }}"
    )
    ((finding,), _) = evaluate(library(tmp_path, playbook(summary=text)), FOUR)
    assert finding.summary == "1, 2, 3; 40 node0 100 0 1, 2 2.5 y"


# --- files ----------------------------------------------------------------------------------------


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{here}: &{here} [{','.join([f'*{before}'] * 9)}]\n" for before, here in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOMB, "playbook.yaml:2: uses a YAML alias"),
        ("a: 1\nb: " + "".join(f"{{k{n}: " for n in range(60)) + "x" + "}" * 60, "is nested too deeply"),
        ("a: 1\nb: '" + "x" * 100_000 + "'", "playbook.yaml:2: contains a value of more than 4000 characters"),
        ("? " + "k" * 4_001 + "\n: x", "contains a value of more"),
        ("? " + "k" * 3_000 + "\n: x", "unknown field `kkk"),
        ("id: " + ":".join(["59"] * 1_000), "`id`: "),  # a number to the base of 60
        ("id: " + "9" * 3_900, ""),
        ("id: 2001-99-99", "cannot be read"),
        ("id: !!timestamp x", "cannot be read"),
        ("id: !!int x", "cannot be read"),
        ("id: !!binary x", ""),
        ("? [a, b]\n: 1\n", "is not YAML"),
        ("? {a: {b: {c: d}}}\n: 1\n", "is not YAML"),
        ("".join(f"k{n}: 1\n" for n in range(20_000)), "playbook.yaml: has more problems; fix these first"),
        ("".join("k: 1\n" for n in range(20_000)), "`k` is a duplicate key"),
        (
            "select:\n" + "".join(f"  r{n}: 'true'\n" for n in range(5_000)),
            "`select`: Dictionary should have at most 64",
        ),
        ("needs:\n" + "  - x\n" * 5_000, "`needs`: Tuple should have at most 64"),
        ("explains:\n" + "  - x\n" * 5_000, "`explains`: Tuple should have at most 64"),
        ("look_alikes:\n" + "".join(f"  r{n}: x\n" for n in range(5_000)), "`look_alikes`: Dictionary should have"),
        ("a: 1\n\x00", "cannot be read"),
        ("\x1b]0;title\x07: 1", ""),
    ],
)
def test_files_that_are_refused(tmp_path: Path, text: str, said: str) -> None:
    write(tmp_path, playbook(id="sound"))
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "playbook.yaml").write_text(text)
    with in_time(2 * GRACE_S):
        found = load([tmp_path], SCHEMA, PROBES)
        listed = runbook.entries([tmp_path])
    assert [p.id for p in found.playbooks] == ["sound"]
    assert 0 < len(found.problems) <= MAX_PROBLEMS + 1
    assert said in "\n".join(map(str, found.problems))
    assert all(len(str(problem)) < 1_000 for problem in found.problems)
    assert all(len(entry.title) <= 200_000 for entry in listed)


@pytest.mark.parametrize("kind", ["fifo", "device", "loop", "directory", "dangling", "not readable as text"])
def test_what_is_no_file_is_not_opened(tmp_path: Path, kind: str) -> None:
    write(tmp_path, playbook(id="sound"))
    (tmp_path / "late").mkdir()
    for name in ("playbook.yaml", "runbook.md"):
        file = tmp_path / "late" / name
        if kind == "fifo":
            os.mkfifo(file)
        elif kind == "device":
            file.symlink_to("/dev/zero")
        elif kind == "loop":
            file.symlink_to(file)
        elif kind == "directory":
            file.mkdir()
        elif kind == "dangling":
            file.symlink_to("/nowhere/at/all")
        else:
            file.write_bytes(b"id: \xff\xfe\x80\x81")
    with in_time():
        found = load([tmp_path], SCHEMA, PROBES)
        assert [p.id for p in found.playbooks] == ["sound"]
        (problem,) = found.problems
        assert problem.file == tmp_path / "late/playbook.yaml"
        assert problem.sentence.startswith("cannot be read: ")
        entry = next(entry for entry in runbook.entries([tmp_path]) if entry.id == "late")
        assert entry.title == "(cannot be read)"
        if kind == "dangling":
            assert "has no runbook" in runbook.text("late", [tmp_path])
        elif kind != "not readable as text":
            with pytest.raises(HangdocError, match=r"runbook\.md: "):
                runbook.text("late", [tmp_path])


def test_of_thousands_of_folders_the_first_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_PLAYBOOKS == 500
    monkeypatch.setattr("hangdoc.rules.loader.MAX_PLAYBOOKS", 2)
    write(tmp_path, *(playbook(id=f"p{n}") for n in range(4)))
    for n in range(3_000):
        (tmp_path / f"empty{n}").mkdir()
    found = load([tmp_path], SCHEMA, PROBES)
    assert [p.id for p in found.playbooks] == ["p0", "p1"]
    (problem,) = found.problems
    assert (
        str(problem) == f"{tmp_path}: contains 4 playbooks: those after p1 are skipped; keep at most 2 in one directory"
    )


# --- anything -------------------------------------------------------------------------------------


SEEDS = [(folder / "playbook.yaml").read_text() for folder in playbooks.folders()]
EVIL = [
    "(a+)+$", "{{", "}}", "{%", "%}", "__class__", "[x for x in ", "**", "9" * 40, "~", "|join", "|attr('", ".", "'",
    '"', "(", ")", "[", "]", "{", "}", ":", "- ", "&a ", "*a", "!!python/name:os.system ", "\n", "  ", "#", "\x00", "%",
    " ?? ", " in ", " and ", " not ", "any(", "none(", "count(", " or ",
    "=~ '", "$range(", "{% for a in observed %}", "|map(attribute='", "<<: ", "? ", "|\n",
]  # fmt: skip
TYPES = schema()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=some.sampled_from(SEEDS),
    edits=some.lists(
        some.tuples(some.floats(0, 1), some.integers(0, 30), some.sampled_from(EVIL), some.integers(1, 40)),
        min_size=1,
        max_size=4,
    ),
)
@pytest.mark.slow("loads hundreds of mutated playbooks")
def test_a_mutated_playbook_is_read_or_refused_and_judged_in_time(
    tmp_path: Path, seed: str, edits: list[tuple[float, int, str, int]]
) -> None:
    for place, cut, put, times in edits:
        at = int(place * len(seed))
        seed = seed[:at] + put * times + seed[at + cut :]
    id = next((line[4:] for line in seed.split("\n") if line.startswith("id: ") and line[4:].isidentifier()), "late")
    folder = tmp_path / id[:60]  # no longer than an id may be
    folder.mkdir(exist_ok=True)
    (folder / "playbook.yaml").write_text(seed, errors="replace")
    with in_time():
        found = load([tmp_path], TYPES)
        runbook.entries([tmp_path])
    assert bool(found.playbooks) != bool(found.problems)
    for one in found.playbooks:
        with in_time(), time_limit.allowance(1.0):
            for template in one.templates.values():
                with suppress(TemplateError, TypeError, ValueError, AttributeError, ArithmeticError):
                    template.render(
                        dict.fromkeys((*one.envelope.select, *one.envelope.links, OBSERVED, UNOBSERVED), ())
                    )
    (folder / "playbook.yaml").unlink()


def test_the_bomb_is_one() -> None:
    assert len(str(yaml.safe_load(BOMB.split("d:")[0]))) > 1_000
