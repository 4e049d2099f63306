"""Conditions of playbooks: `and`, `or` and `not` over typed terms, in Kleene's three-valued logic.

A term is true, false or unknown. It is unknown where it reads a fact group whose probes have not seen the rank; links
and the job are always seen. `false and unknown` is false, `true or unknown` is true, anything else with unknown is
unknown. A field that is null in a group that was seen means "there is none": it equals nothing, and no comparison holds
of it.

`parser` makes conditions from text. Their terms are expressions of the rule-engine library: see `terms`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, Literal, Protocol

from hangdoc.rules import time_limit

OBSERVED = "observed"  # selection: every rank that the needed probes have seen
UNOBSERVED = "unobserved"  # selection: ranks that some needed probe has not seen
MAX_COMBINATIONS = 256  # of counts, where ranks are unknown

Truth = bool | None  # None: unknown
Path = tuple[str, ...]
Kind = Literal["ranks", "links"]
Quantifier = Literal["any", "all", "none"]


class RuleError(ValueError):
    """An expression that cannot be compiled: sentence and remedy."""

    def __init__(self, sentence: str, remedy: str) -> None:
        super().__init__(sentence)
        self.sentence, self.remedy = sentence, remedy


@dataclass(frozen=True, slots=True)
class Members:
    """The ranks or links of which a condition is true, and those of which it is unknown."""

    certain: tuple[Any, ...] = ()
    unknown: tuple[Any, ...] = ()


class Scope(Protocol):
    """What a condition is evaluated over."""

    def members(self, condition: Condition, kind: Kind) -> Members:
        """The observed ranks, or the links, by their truth."""

    def everything(self, kind: Kind) -> Sequence[Any]:
        """Every observed rank, or every link."""

    def unseen(self, thing: Any, reads: Iterable[Path]) -> bool:
        """True if evidence behind one of these fields was not seen of the rank. Links and the job are always seen."""


class Condition(ABC):
    """A node of a compiled condition; its text is as a rule author writes it."""

    __slots__ = ()

    @abstractmethod
    def truth(self, thing: Any, scope: Scope) -> Truth:
        """The outcome for a rank, a link or the job; raises TooSlow, and any error of the library."""

    def parts(self) -> Iterable[Condition]:
        """The conditions that it consists of."""
        return ()

    @property
    def reads(self) -> Iterable[Path]:
        """The fields that the outcome depends on; those of the job only in a term."""
        return dict.fromkeys(path for part in self.parts() for path in part.reads)


@dataclass(frozen=True, slots=True)
class Term(Condition):
    """A typed expression over the fields of one rank, one link or the job."""

    text: str
    paths: tuple[Path, ...]  # of the fields
    holds: Callable[[Any], bool]
    of_null: Truth = False  # its value if a field is null; None: it tests for null, so `holds` gives the value

    @property
    def reads(self) -> Iterable[Path]:
        return self.paths

    def truth(self, thing: Any, scope: Scope) -> Truth:
        time_limit.check()
        if scope.unseen(thing, self.paths):
            return None
        if self.of_null is not None and any(value(thing, path) is None for path in self.paths):
            return self.of_null
        return self.holds(thing)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Joined(Condition):
    """Conditions joined by `and` or `or`."""

    word: Literal["and", "or"]
    conditions: tuple[Condition, ...]

    def parts(self) -> Iterable[Condition]:
        return self.conditions

    def truth(self, thing: Any, scope: Scope) -> Truth:
        decisive = self.word == "or"
        outcome: Truth = not decisive
        for one in self.conditions:
            found = one.truth(thing, scope)
            if found is decisive:
                return decisive
            outcome = None if found is None else outcome
        return outcome

    def __str__(self) -> str:
        return f" {self.word} ".join(f"({one})" if isinstance(one, Joined) else str(one) for one in self.conditions)


@dataclass(frozen=True, slots=True)
class Not(Condition):
    """The opposite of a condition."""

    condition: Condition

    def parts(self) -> Iterable[Condition]:
        return (self.condition,)

    def truth(self, thing: Any, scope: Scope) -> Truth:
        found = self.condition.truth(thing, scope)
        return None if found is None else not found

    def __str__(self) -> str:
        return f"not ({self.condition})" if isinstance(self.condition, Joined) else f"not {self.condition}"


@dataclass(frozen=True, slots=True)
class Selected(Condition):
    """The name of a selection further up, true of its members."""

    name: str
    condition: Condition

    def parts(self) -> Iterable[Condition]:
        return (self.condition,)

    def truth(self, thing: Any, scope: Scope) -> Truth:
        return self.condition.truth(thing, scope)

    def __str__(self) -> str:
        return self.name


class Aggregate(Condition):
    """A condition over the job that the ranks or the links decide."""

    __slots__ = ()

    @property
    @abstractmethod
    def over(self) -> Iterable[tuple[Kind, Condition]]:
        """The conditions over ranks or links."""

    def parts(self) -> Iterable[Condition]:
        return [condition for _, condition in self.over]

    @property
    def reads(self) -> Iterable[Path]:
        return ()


@dataclass(frozen=True, slots=True)
class Quantified(Aggregate):
    """`any(...)`, `all(...)` or `none(...)` of the ranks, or of the links."""

    word: Quantifier
    kind: Kind
    condition: Condition

    @property
    def over(self) -> Iterable[tuple[Kind, Condition]]:
        return ((self.kind, self.condition),)

    def truth(self, thing: Any, scope: Scope) -> Truth:
        found = scope.members(self.condition, self.kind)
        if self.word == "all":
            left = len(scope.everything(self.kind)) - len(found.certain) - len(found.unknown)
            return False if left else None if found.unknown else True
        some = True if found.certain else None if found.unknown else False
        return some if self.word == "any" or some is None else not some

    def __str__(self) -> str:
        return f"{self.word}({self.condition})"


@dataclass(frozen=True, slots=True)
class Counted(Aggregate):
    """A comparison in which `count(...)` of ranks or links occurs; certain if every possible count decides it alike."""

    term: Term  # of the job, and of the counts by name
    counts: Mapping[str, tuple[Kind, Condition]]  # by the name that stands for the count in the term

    @property
    def over(self) -> Iterable[tuple[Kind, Condition]]:
        return self.counts.values()

    def truth(self, thing: Any, scope: Scope) -> Truth:
        found = [scope.members(condition, kind) for kind, condition in self.over]
        possible = [range(len(one.certain), len(one.certain) + len(one.unknown) + 1) for one in found]
        if prod(map(len, possible)) > MAX_COMBINATIONS:
            return None
        cases = (dict(zip(self.counts, some, strict=True)) for some in product(*possible))
        outcomes = {self.term.truth({**thing, **case}, scope) for case in cases}
        return outcomes.pop() if len(outcomes) == 1 else None

    def __str__(self) -> str:
        return self.term.text


def value(thing: Any, path: Path) -> Any:
    """The value of a field; None if it, or a record on the way, is null."""
    found = thing[path[0]] if isinstance(thing, dict) else getattr(thing, path[0])
    for name in path[1:]:
        if found is None:
            return None
        found = getattr(found, name)
    return found


def every(condition: Condition) -> Iterator[Condition]:
    """A condition and all conditions below it, those of the selections that it names included."""
    left = [condition]
    while left:
        one = left.pop()
        yield one
        left.extend(one.parts())
