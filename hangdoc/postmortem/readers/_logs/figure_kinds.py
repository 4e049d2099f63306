"""What a figure means, by its name and unit: figure_kinds.yaml."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import yaml

MAX_NAMES = 8_192  # whose meaning is kept
FILE = Path(__file__).parent / "figure_kinds.yaml"
SPENT = frozenset({"step", "work", "backward", "wait"})  # kinds of the time that a step takes, besides `input`
UNIT = (
    r"(?:\u00b5s|\u03bcs|us|usec|msecs?|ms|secs?|seconds?|s|mins?)(?:/(?:it|iters?|iteration|steps?|batch))?"
    r"|[kK]?(?:tok(?:en)?s?|samples?|imgs?|images?|seqs?|its?|iters?|steps?|examples?|frames?)/(?:secs?|second|s)"
    r"(?:/(?:gpu|device|rank))?|[TGPtgp]?(?:FLOP|flop)/?[sS]?|%|x"
)

_TIME_UNIT = {
    "\u00b5s": 1e-6, "\u03bcs": 1e-6, "us": 1e-6, "usec": 1e-6, "ms": 1e-3, "msec": 1e-3, "msecs": 1e-3, "s": 1.0,
    "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0, "min": 60.0, "mins": 60.0,
}  # fmt: skip
_UNIT_IN_NAME = re.compile(r"(?:^|[\s(\[/,])(\u00b5s|\u03bcs|us|usec|ms|msecs?|s|secs?|seconds?)\)?\]?$")
_UNIT_IN_BRACKETS = re.compile(r"[(\[]\s?(us|ms|s|sec|seconds)\b\s?[)\]]?")
_IS_TIME = re.compile(r"\b(?:times?|timer|timing|took|elapsed|duration|latency)\b")
_IS_SHARE = re.compile(r"%|\b(?:pct|percent|share|fraction)\b")
_NO_COMM = re.compile(r"\(?\b(?:no|without|w/o|excl(?:uding|\.)?|minus) [\w /-]{1,30}\)?")
_WHEN = re.compile(  # at which point of the step a value was taken
    r"[,;(]? ?\b(?:right |just |directly )?(?:after|before) (?:the |each |every )?"
    r"(?:opt(?:imi[sz]er)?[. ]?step|step|update)\b(?:\(\))?"
)
# What differs between replicas by design: `sha1 of the batch`, `optimizer shard md5`.
EACH_ITS_OWN = re.compile(
    r"\b(?:batch(?:es)?|inputs?|samples?|data(?:set)?|images?|tokens?|indices|shards?|sharded|grads?|gradients?|rng"
    r"|files?|local)\b"
)
_STATISTIC = re.compile(r"^(?:mean|avg|average|median|p\d\d) (?=\w)|(?<=\w) (?:mean|avg|average|median|p\d\d)$")
_EDGES = " \t:=([{<>\"'~`*_+]}|,;\u2248-"


@dataclass(frozen=True, slots=True)
class FigureKind:
    """An entry of figure_kinds.yaml."""

    kind: str
    expression: re.Pattern[str]
    time: str | None  # unit, fraction, any; None: it is no time
    digits: int  # a value with fewer is of no use
    examples: Sequence[str]


@dataclass(frozen=True, slots=True)
class Meaning:
    """Of the name of a figure."""

    kind: str
    factor: float | None = None  # seconds in its unit; None: it is no time, or a share of one
    digits: int = 0


@cache
def figure_kinds() -> tuple[FigureKind, ...]:
    """All entries, in file order."""
    entries = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return tuple(
        FigureKind(one["kind"], re.compile(one["match"]), one.get("time"), one.get("digits", 0), tuple(one["example"]))
        for one in entries
    )


@lru_cache(MAX_NAMES)
def meaning(name: str, unit: str | None = None, fraction: bool = True) -> Meaning | None:
    """The meaning of a name; None: it is of no use. `fraction`: the value is no whole number."""
    text = _WHEN.sub(" ", _NO_COMM.sub(" ", name.lower().replace("_", " "))).strip()
    factor = _TIME_UNIT.get((unit or "").split("/")[0])
    if unit and factor is None and unit not in ("%", "x"):
        return Meaning("rate")
    inner = _UNIT_IN_NAME.search(text.rstrip(_EDGES)) or _UNIT_IN_BRACKETS.search(text)
    if factor is None and inner:
        factor = _TIME_UNIT[inner[1]]
    text = _STATISTIC.sub("", text)
    for kind in figure_kinds():
        if not kind.expression.search(text):
            continue
        if kind.kind == "none":
            return None
        if kind.time is None:
            timed = factor is not None and kind.kind != "rate"
            return Meaning("step", factor) if timed else Meaning(kind.kind, None, kind.digits)
        if unit == "%" or _IS_SHARE.search(text):
            return Meaning(kind.kind)
        if factor is not None or kind.time == "any" or _IS_TIME.search(text):
            return Meaning(kind.kind, factor or 1.0)
        return Meaning(kind.kind, 1.0) if kind.time == "fraction" and fraction else None
    return None


def is_known(name: str) -> bool:
    """True if figure_kinds.yaml says something about a name, also that it is of no use."""
    text = name.lower().replace("_", " ")
    return any(kind.expression.search(text) for kind in figure_kinds())


def names_a_figure(name: str) -> bool:
    """True if a name means something, as that of a column in a table of figures."""
    return meaning(name) is not None
