"""A verdict as JSON and back: the contract `hangdoc.verdict/1` for external tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hangdoc import __version__
from hangdoc.evidence import Unseen
from hangdoc.recording.codec import BadRecord, decode
from hangdoc.verdict import SCHEMA, Considered, Culprit, Family, Finding, Link, RankLine, Verdict

_SAME = ("status", "stalled_for_s", "job", "considered", "unseen", "differences", "understood")  # the same in both


def to_json(verdict: Verdict) -> dict[str, Any]:
    """The verdict in the form of the contract, with the optional keys `note`, `considered`, `differences`, ...

    `understood` and `families` are there only if no playbook names a culprit.
    """
    return {
        "schema": SCHEMA,
        "hangdoc": __version__,
        "status": verdict.status,
        "stalled_for_s": None if verdict.stalled_for_s is None else round(verdict.stalled_for_s, 1),
        "job": {
            "id": verdict.job.id,
            "world_size": verdict.job.world_size,
            "launcher": verdict.job.launcher,
            "hosts": list(verdict.job.hosts),
            "ranks": [_plain(line) for line in verdict.job.ranks],
        },
        "findings": [_finding(finding) for finding in verdict.findings],
        "unseen": [_unseen(unseen) for unseen in verdict.unseen],
        "note": verdict.note,
        "considered": [_plain(considered) for considered in verdict.considered],
        "differences": list(verdict.differences),
        **({"understood": list(verdict.understood)} if verdict.understood else {}),
        **({"families": [_family(family) for family in verdict.families]} if verdict.families else {}),
    }


def from_json(value: Any) -> Verdict:
    """The verdict that `to_json` wrote. Raises BadRecord."""
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise BadRecord(f"not a verdict: no `schema: {SCHEMA}`")
    given = {
        **{name: value.get(name) for name in _SAME},
        "note": value.get("note", ""),
        "findings": _each(value.get("findings", []), _read_finding),
        "families": _each(value.get("families", []), _read_family),
    }
    return decode(Verdict, {name: item for name, item in given.items() if item is not None})


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "playbook": finding.playbook,
        "class": finding.cls,
        "confidence": finding.confidence,
        "title": finding.title,
        "summary": finding.summary,
        "culprits": [_plain(culprit) for culprit in finding.culprits],
        "links": [_link(link) for link in finding.links],
        "evidence": [{"probe": p.probe, "ranks": list(p.ranks), "text": p.text} for p in finding.evidence],
        "actions": list(finding.actions),
    }


def _unseen(unseen: Unseen) -> dict[str, Any]:
    """With the optional key `host` for entries without a rank, as for a lost host."""
    where = {"host": unseen.host} if unseen.rank is None and unseen.host is not None else {}
    return {"rank": unseen.rank, "probe": unseen.probe, "why": unseen.why, **where}


def _read_finding(value: dict[str, Any]) -> dict[str, Any]:
    links = _each(value.get("links", []), lambda link: _renamed(_renamed(link, "from", "local"), "to", "remote"))
    return {**_renamed(value, "class", "cls"), "links": links}


def _family(family: Family) -> dict[str, Any]:
    return {
        "class": family.cls,
        "title": family.title,
        "for": list(family.speaks_for),
        "against": list(family.against),
        "decides": family.decides,
    }


def _read_family(value: dict[str, Any]) -> dict[str, Any]:
    return _renamed(_renamed(value, "class", "cls"), "for", "speaks_for")


def _link(link: Link) -> dict[str, Any]:
    return {
        "from_rank": link.from_rank,
        "to_rank": link.to_rank,
        "from": link.local,
        "to": link.remote,
        "interface": link.interface,
    }


def _plain(record: RankLine | Culprit | Considered) -> dict[str, Any]:
    """Every field under its own name."""
    return {name: getattr(record, name) for name in type(record).__slots__}


def _renamed(value: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    return {new if name == old else name: item for name, item in value.items()}


def _each(value: Any, read: Callable[[dict[str, Any]], dict[str, Any]]) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise BadRecord("not a list of records")
    return [read(item) for item in value]
