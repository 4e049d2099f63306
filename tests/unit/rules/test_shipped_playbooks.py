"""Every built-in playbook: sound, documented, blind to its own reproducer, and silent without evidence."""

from __future__ import annotations

import ast
import re
import types
import typing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import playbooks
from hangdoc.analysis import Case, Suspect
from hangdoc.analysis.facts import Facts, Schema, derive, schema
from hangdoc.demo import reproducer as demo
from hangdoc.evidence import RankEvidence, Snapshot, Target
from hangdoc.evidence.record import field_names
from hangdoc.rules import loader
from hangdoc.rules.conditions import OBSERVED, UNOBSERVED
from hangdoc.rules.evaluate import evaluate
from hangdoc.rules.library import Library, Playbook

SECTIONS = ("What it looks like", "How to confirm", "How to fix", "How to prevent", "Look-alikes")
IDS = [folder.name for folder in playbooks.folders()]

# Words of every training script: a rule may speak of them for reasons of its own.
COMMON = {"all_reduce", "barrier", "broadcast", "forward", "backward", "checkpoint", "evaluate", "batches", "loader"}


@cache
def types_of_facts() -> Schema:
    return schema()


@cache
def library() -> Library:
    return loader.load([playbooks.ROOT], types_of_facts())


def shipped(id: str) -> Playbook:
    return next(p for p in library().playbooks if p.id == id)


def test_there_are_playbooks() -> None:
    assert set(IDS) >= {"uneven-batches", "bf16-on-cpu", "dead-link", "stopped-process"}


def test_every_playbook_loads() -> None:
    assert [str(problem) for problem in library().problems] == []
    assert [p.id for p in library().playbooks] == IDS


@pytest.mark.parametrize("id", IDS)
def test_every_yaml_parser_reads_it(id: str) -> None:
    """libyaml lets pass what PyYAML's own parser refuses, and not every installation has libyaml."""
    assert yaml.load((playbooks.ROOT / id / "playbook.yaml").read_text(), Loader=yaml.SafeLoader)["id"] == id


@pytest.mark.parametrize("id", IDS)
def test_runbook(id: str) -> None:
    text = (playbooks.ROOT / id / "runbook.md").read_text()
    headings = [line.lstrip("# ").strip() for line in text.splitlines() if re.match(r"##?#? ", line)]
    assert [heading for heading in headings if heading in SECTIONS] == list(SECTIONS)
    bodies = re.split(r"(?m)^## .*$", text)[1:]
    assert len(bodies) >= len(SECTIONS), "sections are headed by ##"
    assert all(len(body.split()) >= 8 for body in bodies), "a section says nothing"


@pytest.mark.parametrize("id", demo.ids())  # the others are proved by tests/data/postmortem
def test_reproducer(id: str) -> None:
    ast.parse((playbooks.ROOT / id / "reproducer.py").read_text())
    reproducer = shipped(id).envelope.reproducer
    assert reproducer is not None
    assert all(0 <= culprit < reproducer.ranks for culprit in reproducer.expect.culprits)


@pytest.mark.parametrize("id", IDS)
def test_no_rule_knows_its_reproducer(id: str) -> None:
    """Rules must hold for scripts nobody here has seen: no name, file or large number of the reproducer."""
    told = shipped(id)
    envelope = told.envelope
    written = [text for _, text in (*envelope.conditions(), *envelope.lists())]
    text = "\n".join((*envelope.select.values(), *envelope.links.values(), *written))
    known = [name for file in (playbooks.ROOT / id).glob("*.py") for name in _names(file)]
    assert [name for name in known if re.search(rf"\b{re.escape(name)}\b", text)] == []


def _names(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    names = {file.name}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value > 1023:
            names.add(str(node.value))
    return {name for name in names if len(name) > 4} - COMMON - {word for id in IDS for word in id.split("-")}


# --- without evidence -----------------------------------------------------------------------------


def test_without_any_evidence_nothing_fires() -> None:
    targets = [Target(100 + rank, 1, "node-a", rank, world_size=3) for rank in range(3)]
    shots = [
        Snapshot("node-a", float(at), "t", tuple(RankEvidence(t, alive, {}) for t in targets))
        for at in range(3)
        for alive in (True, None)
    ]
    for history in (shots, shots[:1], []):
        findings, considered = evaluate(library(), derive(history, types_of_facts()))
        assert findings == ()
        assert [c for c in considered if "failed" in c.why] == []


@pytest.mark.parametrize("ranks", [0, 1, 3])
@pytest.mark.parametrize("stalled", [False, True])
def test_where_every_probe_looked_and_saw_nothing_nothing_fires(ranks: int, stalled: bool) -> None:
    """Every probe left a record, every fact that may be unknown is unknown."""
    kinds = types_of_facts()
    blank, job = _blank(kinds.rank), _blank(kinds.job)
    job = replace(job, stall=replace(job.stall, stalled=stalled))
    needs = tuple({one for p in library().playbooks for need in p.envelope.needs for one in need.split("|")})
    people = tuple(replace(blank, rank=n, pid=100 + n, seen=needs, job=job) for n in range(ranks))
    findings, considered = evaluate(library(), Facts(people, job, Case([], {})))
    assert findings == ()
    assert {(c.outcome, c.why) for c in considered} == {("no", "its condition does not hold")}


@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize("filled", ["all", "culprits", "hosts"])
def test_every_text_can_be_said_of_ranks_of_which_nothing_is_known(id: str, filled: str) -> None:
    """`hosts`: the suspects are hosts of which nothing shows a rank; no rank is selected where these can be blamed."""
    told = shipped(id)
    kinds, envelope = types_of_facts(), told.envelope
    rank, job = _blank(kinds.rank), _blank(kinds.job)
    if filled == "hosts":
        job = replace(job, **{group: _suspected(getattr(job, group)) for group in field_names(kinds.job)})
    scope: dict[str, Any] = {"job": job}
    scope |= dict.fromkeys((*envelope.select, OBSERVED, UNOBSERVED), (rank,))
    if envelope.links:
        link = typing.get_args(typing.get_type_hints(type(job.network))["links"])[0]
        scope |= dict.fromkeys(envelope.links, (_blank(link),))
    if filled == "hosts" and envelope.blame:
        scope |= dict.fromkeys(envelope.select, ())
    if filled == "culprits":
        empty = {*envelope.select, *envelope.links} - {envelope.culprits, envelope.blame_links}
        scope |= dict.fromkeys(empty, ())
    for at, template in told.templates.items():
        if at[0] == "evidence" and not scope[envelope.evidence[int(at[1])].ranks]:
            continue
        each = told.listings.get((*at[:2], "each"))
        items = each.value(scope) if each is not None else []
        assert "None" not in template.render({**scope, "item": next(iter(items), "item")})


def _suspected(group: Any) -> Any:
    """The facts of a group with a host in each list of suspects."""
    kind: Any = type(group)
    hints = typing.get_type_hints(kind)
    hosts = [name for name in field_names(kind) if hints[name] == tuple[Suspect, ...]]
    return replace(group, **dict.fromkeys(hosts, (Suspect(None, None, "gpu07"), Suspect(None, None, "gpu08"))))


def _blank(kind: Any) -> Any:
    """A record of which nothing is known: None where that may be, else false, zero or empty."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return None
    if names := field_names(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{name: _blank(hints[name]) for name in names})
    return (origin or kind)()
