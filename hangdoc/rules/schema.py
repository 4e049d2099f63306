"""The schema of `playbook.yaml`, as pydantic models. Expressions and templates are plain text here.

Imported only when playbooks are loaded, as pydantic costs start-up time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from hangdoc.rules import regex_limits
from hangdoc.verdict import CLASSES, STATUSES

MAX_PARTS = 64  # of each kind (selections, steps, evidence, actions) in one playbook, as each is compiled

Fault = Literal["job", "node"]  # who is to blame
Layer = Literal["cause", "contract", "symptom", "guess"]  # each explains the layers after it
LAYERS = get_args(Layer)

Location = tuple[str | int, ...]  # keys and indices from the top of the file

Text = Annotated[str, StringConstraints(min_length=1, max_length=4000)]
Short = Annotated[str, StringConstraints(max_length=200)]
Id = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=60)]
Selection = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$", max_length=60)]


def _known(what: str, names: Sequence[str]) -> Callable[[str], str]:
    """Validates a name that is one of these."""

    def check(name: str) -> str:
        if name not in names:
            raise ValueError(f"unknown {what} {name!r}, known are {', '.join(names)}")
        return name

    return check


def _pattern(text: str) -> str:
    regex_limits.parse(text)
    return text


Pattern = Annotated[Text, AfterValidator(_pattern)]
Class = Annotated[str, AfterValidator(_known("class", CLASSES))]
Status = Annotated[str, AfterValidator(_known("status", STATUSES))]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Step(_Model):
    """A reason to raise or lower the confidence."""

    if_: Text = Field(alias="if")
    because: Text


class Confidence(_Model):
    base: Literal["low", "medium", "high"] = "medium"
    raise_: tuple[Step, ...] = Field(default=(), alias="raise", max_length=MAX_PARTS)
    lower: tuple[Step, ...] = Field(default=(), max_length=MAX_PARTS)


class Line(_Model):
    """A line of evidence; omitted if `if` does not hold or its selection is empty.

    Without a text it says where the ranks are: operation and site, from their stacks.
    """

    probe: Text = "stacks"
    ranks: Selection = "observed"
    if_: Text | None = Field(None, alias="if")
    each: Text | None = None  # an expression with a list: one line per member, `item` in the template
    text: Text = ""

    @property
    def template(self) -> str:
        return self.text or f"{{{{ {self.ranks}|standing }}}}"


class Action(_Model):
    """Something to do; omitted if `if` does not hold or its text is empty. A text alone is an action."""

    if_: Text | None = Field(None, alias="if")
    text: Text

    @model_validator(mode="before")
    @classmethod
    def _text_alone(cls, given: Any) -> Any:
        return {"text": given} if isinstance(given, str) else given


class Expect(_Model):
    """The expected diagnosis of a reproducer."""

    culprits: tuple[int, ...] = ()
    status: Status | None = None  # None: the status of the playbook
    # Patterns for the tests: each must match a line of evidence.
    evidence: tuple[Pattern, ...] = Field(default=(), max_length=MAX_PARTS)


class Start(_Model):
    """Launch of a job, and its expected diagnosis."""

    ranks: int = Field(1, ge=1)
    launcher: Literal["torchrun", "self"] = "torchrun"  # self: the script starts its own ranks
    script: Annotated[str, StringConstraints(pattern=r"^\w+\.py$")] = "reproducer.py"  # in the playbook's folder
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    watch: Literal["once", "live"] = "once"  # live: watched from the start, as nothing is left to see afterwards
    ask: tuple[Literal["store", "recorder", "ping", "dns"], ...] = ()  # requests needed for the diagnosis (`--ask`)
    within_s: float = Field(60.0, gt=0)
    expect: Expect = Expect()


class Reproducer(Start):
    """The job that the demo runs."""

    ranks: int = Field(ge=1)
    within_s: float = Field(gt=0)


class Envelope(_Model):
    """A playbook as written in its file."""

    id: Id
    cls: Class = Field("", alias="class")
    status: Status = "stalled"
    title: Text
    layer: Layer = "symptom"
    fault: Fault | None = None  # for [actions] of the daemon; None: either may be to blame
    explains: tuple[Id, ...] = Field(default=(), max_length=MAX_PARTS)  # in addition
    needs: tuple[Short, ...] = Field(default=(), max_length=MAX_PARTS)  # probes; "a|b": either
    select: dict[Selection, Text] = Field(default={}, max_length=MAX_PARTS)  # of ranks, in order
    links: dict[Selection, Text] = Field(default={}, max_length=MAX_PARTS)
    when: Text
    culprits: Selection | None = None
    blame: Text | None = (
        None  # an expression with a list of culprits that are no ranks, or were not seen (rank, pid, host)
    )
    blame_links: Selection | None = None
    confidence: Confidence = Confidence.model_validate({})
    summary: Text
    evidence: tuple[Line, ...] = Field(default=(), max_length=MAX_PARTS)
    actions: tuple[Action, ...] = Field(default=(), max_length=MAX_PARTS)
    reproducer: Reproducer | None = None
    look_alikes: dict[Id, Text] = Field(default={}, max_length=MAX_PARTS)  # by playbook: how to tell them apart

    @model_validator(mode="after")
    def _faulty_has_class(self) -> Envelope:
        if not self.cls and self.status != "healthy":
            raise ValueError(f"`class` is missing: only `status: healthy` has none, else it is {', '.join(CLASSES)}")
        return self

    @property
    def layer_number(self) -> int:
        """The number of its layer: it explains those with a higher one."""
        return LAYERS.index(self.layer)

    def conditions(self) -> Iterator[tuple[Location, str]]:
        """Conditions over the job and the selections, by location."""
        yield ("when",), self.when
        for i, step in enumerate(self.confidence.raise_):
            yield ("confidence", "raise", i, "if"), step.if_
        for i, step in enumerate(self.confidence.lower):
            yield ("confidence", "lower", i, "if"), step.if_
        for i, line in enumerate(self.evidence):
            if line.if_ is not None:
                yield ("evidence", i, "if"), line.if_
        for i, action in enumerate(self.actions):
            if action.if_ is not None:
                yield ("actions", i, "if"), action.if_

    def lists(self) -> Iterator[tuple[Location, str]]:
        """Expressions with a list as value, by location."""
        if self.blame is not None:
            yield ("blame",), self.blame
        for i, line in enumerate(self.evidence):
            if line.each is not None:
                yield ("evidence", i, "each"), line.each

    def templates(self) -> Iterator[tuple[Location, str]]:
        """Templates, by location."""
        yield ("summary",), self.summary
        for i, line in enumerate(self.evidence):
            yield ("evidence", i, "text"), line.template
        for i, action in enumerate(self.actions):
            yield ("actions", i), action.text

    def names(self) -> Iterator[tuple[Location, str, bool]]:
        """Uses of selections by name: location, name, and whether it must be a selection of links."""
        if self.culprits is not None:
            yield ("culprits",), self.culprits, False
        if self.blame_links is not None:
            yield ("blame_links",), self.blame_links, True
        for i, line in enumerate(self.evidence):
            yield ("evidence", i, "ranks"), line.ranks, False
