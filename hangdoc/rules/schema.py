"""The form of a `playbook.yaml`, validated by pydantic; what its expressions and templates mean is not known here.

Imported only when playbooks are loaded: pydantic costs start-up time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from hangdoc.rules import regex_limits
from hangdoc.verdict import CLASSES, STATUSES

MAX_PARTS = 64  # selections, steps, lines of evidence, actions of one playbook: each of them is compiled

Location = tuple[str | int, ...]  # keys and indices from the top of the file

Text = Annotated[str, StringConstraints(min_length=1, max_length=4000)]
Short = Annotated[str, StringConstraints(max_length=200)]
Id = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=60)]
Selection = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$", max_length=60)]


def _class(name: str) -> str:
    if name not in CLASSES:
        raise ValueError(f"unknown class {name!r}, known are {', '.join(CLASSES)}")
    return name


def _status(name: str) -> str:
    if name not in STATUSES:
        raise ValueError(f"unknown status {name!r}, known are {', '.join(STATUSES)}")
    return name


def _pattern(text: str) -> str:
    regex_limits.parse(text)
    return text


Pattern = Annotated[Text, AfterValidator(_pattern)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Step(_Model):
    """A reason to be more, or less, certain."""

    if_: Text = Field(alias="if")
    because: Text


class Confidence(_Model):
    base: Literal["low", "medium", "high"] = "medium"
    raise_: tuple[Step, ...] = Field(default=(), alias="raise", max_length=MAX_PARTS)
    lower: tuple[Step, ...] = Field(default=(), max_length=MAX_PARTS)


class Line(_Model):
    """A line of evidence, left out where `if` does not hold or the selection `ranks` is empty."""

    probe: Text
    ranks: Selection = "all"
    if_: Text | None = Field(None, alias="if")
    each: Text | None = None  # an expression that gives a list: a line for each member, `item` in the template
    text: Text


class Expect(_Model):
    """What must be said of a job that has gone wrong in this way."""

    culprits: tuple[int, ...] = ()
    status: Annotated[str, AfterValidator(_status)] | None = None  # None: that of the playbook
    # Each is found in a line of the evidence; the tests look for it.
    evidence: tuple[Pattern, ...] = Field(default=(), max_length=MAX_PARTS)


class Start(_Model):
    """How a job is started, and what must be said of it."""

    ranks: int = Field(1, ge=1)
    launcher: Literal["torchrun", "self"] = "torchrun"  # self: the script starts its ranks by itself
    script: Annotated[str, StringConstraints(pattern=r"^\w+\.py$")] = "reproducer.py"  # in the playbook's folder
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    watch: Literal["once", "live"] = "once"  # live: watched while it goes wrong, for there is nothing to see afterwards
    ask: tuple[Literal["store", "recorder", "ping", "dns"], ...] = ()  # what hangdoc must send to name it (`--ask`)
    within_s: float = Field(60.0, gt=0)
    expect: Expect = Expect()


class Reproducer(Start):
    """The job that the demo shows."""

    ranks: int = Field(ge=1)
    within_s: float = Field(gt=0)


class LookAlike(_Model):
    id: Id
    tell: Text


class Envelope(_Model):
    """A playbook as it is written."""

    id: Id
    cls: Annotated[str, AfterValidator(_class)] = Field("", alias="class")
    status: Annotated[str, AfterValidator(_status)] = "stalled"
    title: Text
    needs: tuple[Short, ...] = Field(default=(), max_length=MAX_PARTS)  # probes; "a|b": one of the two
    ranks: dict[Selection, Text] = Field(default={}, max_length=MAX_PARTS)
    links: dict[Selection, Text] = Field(default={}, max_length=MAX_PARTS)
    when: Text
    culprits: Selection | None = None
    blame: Text | None = None  # an expression that gives a list: culprits that are no ranks seen (rank, pid, host)
    blame_links: Selection | None = None
    confidence: Confidence = Confidence.model_validate({})
    over: tuple[Id, ...] = Field(default=(), max_length=MAX_PARTS)
    summary: Text
    evidence: tuple[Line, ...] = Field(default=(), max_length=MAX_PARTS)
    actions: tuple[Text, ...] = Field(default=(), max_length=MAX_PARTS)
    reproducer: Reproducer | None = None
    not_this: tuple[LookAlike, ...] = ()

    @model_validator(mode="after")
    def _faulty_has_class(self) -> Envelope:
        if not self.cls and self.status != "healthy":
            raise ValueError(f"`class` is missing: only `status: healthy` has none, else it is {', '.join(CLASSES)}")
        return self

    def conditions(self) -> Iterator[tuple[Location, str]]:
        """The expressions over the job and the selections, by where they stand."""
        yield ("when",), self.when
        for i, step in enumerate(self.confidence.raise_):
            yield ("confidence", "raise", i, "if"), step.if_
        for i, step in enumerate(self.confidence.lower):
            yield ("confidence", "lower", i, "if"), step.if_
        for i, line in enumerate(self.evidence):
            if line.if_ is not None:
                yield ("evidence", i, "if"), line.if_

    def lists(self) -> Iterator[tuple[Location, str]]:
        """The expressions that give lists, by where they stand."""
        if self.blame is not None:
            yield ("blame",), self.blame
        for i, line in enumerate(self.evidence):
            if line.each is not None:
                yield ("evidence", i, "each"), line.each

    def templates(self) -> Iterator[tuple[Location, str]]:
        """The jinja2 templates, by where they stand."""
        yield ("summary",), self.summary
        for i, line in enumerate(self.evidence):
            yield ("evidence", i, "text"), line.text
        for i, action in enumerate(self.actions):
            yield ("actions", i), action

    def names(self) -> Iterator[tuple[Location, str, bool]]:
        """Where a selection is used by name: location, name, and whether it must be one of links."""
        if self.culprits is not None:
            yield ("culprits",), self.culprits, False
        if self.blame_links is not None:
            yield ("blame_links",), self.blame_links, True
        for i, line in enumerate(self.evidence):
            yield ("evidence", i, "ranks"), line.ranks, False
