"""The grammar of conditions: `and`, `or`, `not`, parentheses, quantifiers and selections around typed terms."""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from hangdoc.rules.conditions import (
    OBSERVED,
    UNOBSERVED,
    Condition,
    Counted,
    Joined,
    Kind,
    Not,
    Quantified,
    Quantifier,
    RuleError,
    Selected,
    Term,
)
from hangdoc.rules.terms import Compiler
from hangdoc.rules.tokens import REMEDY, tokens

MAX_PARENTHESES = 20  # within one another
MAX_DEPTH = 100  # levels of a condition, with those of the selections that it names
MAX_SIZE = 2_000  # terms of a condition, with those of the selections that it names

_QUANTIFIERS = typing.get_args(Quantifier)
_WORDS = ("and", "or", "not", "in", "true", "false", "null", "if", "for", "is", "item", "loop", "count")
_ENDS = frozenset({"", ")", "and", "or"})  # what follows a whole condition
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_COUNT = re.compile(r"count_[0-9]+")  # stands for `count(...)` in a term


@dataclass(frozen=True, slots=True)
class Selections:
    """The selections of a playbook, as far as they are compiled."""

    ranks: dict[str, Condition] = field(default_factory=dict)
    links: dict[str, Condition] = field(default_factory=dict)
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)  # terms and levels, with those that it names
    declared: Mapping[str, Kind] = field(default_factory=dict)  # every name in order, also of those not compiled yet

    def of(self, kind: Kind) -> dict[str, Condition]:
        return self.links if kind == "links" else self.ranks


def reserved(compiler: Compiler, kind: Kind) -> Collection[str]:
    """Names that no selection may have: those of the facts, and the words of the language."""
    own = {*_WORDS, *_QUANTIFIERS, "job", OBSERVED, UNOBSERVED}
    return own.union(compiler.fields["ranks"], compiler.fields[kind])


def add_selection(compiler: Compiler, above: Selections, name: str, kind: Kind, text: str) -> None:
    """Adds a condition over one rank or one link, which may name the selections above it; raises RuleError."""
    parser = _Parser(text, compiler, kind, above, name)
    above.of(kind)[name] = parser.whole()
    above.sizes[name] = parser.size, parser.depth


def condition(compiler: Compiler, selections: Selections, text: str) -> Condition:
    """A condition over the job, and over the ranks and links by any(), all(), none(), count(); raises RuleError."""
    return _Parser(text, compiler, None, selections).whole()


class _Parser:
    """A parser of one condition; `name`: the selection that it defines."""

    def __init__(
        self, text: str, compiler: Compiler, kind: Kind | None, selections: Selections, name: str = ""
    ) -> None:
        self._text, self._compiler, self._kind, self._selections, self._name = text, compiler, kind, selections, name
        self._tokens = tokens(text)
        self._reserved = reserved(compiler, kind or "ranks")
        self._at = 0
        self._open = 0  # parentheses
        self.size = 0  # terms so far
        self.depth = 1  # levels so far

    def whole(self) -> Condition:
        found = self._or()
        if self._word():
            raise RuleError(f"syntax error at {self._word()!r}", REMEDY)
        if self.size > MAX_SIZE:
            raise RuleError(f"has more than {MAX_SIZE} terms, with those of its selections", "make it simpler")
        if self.depth > MAX_DEPTH:
            raise RuleError("is nested too deeply, with its selections", "make it simpler")
        return found

    def _word(self) -> str:
        return self._tokens[self._at].word

    def _or(self) -> Condition:
        return self._joined("or", lambda: self._joined("and", self._not))

    def _joined(self, word: typing.Literal["and", "or"], inner: Callable[[], Condition]) -> Condition:
        found = [inner()]
        while self._word() == word:
            self._at += 1
            found.append(inner())
        return found[0] if len(found) == 1 else Joined(word, tuple(found))

    def _not(self) -> Condition:
        count = 0
        while self._word() == "not":
            self._at, count = self._at + 1, count + 1
        found = self._operand()
        return Not(found) if count % 2 else found

    def _operand(self) -> Condition:
        start = self._at
        if self._word() == "(" and self._word_after(start) in _ENDS:
            return self._group()
        if self._kind is None and self._is_call(start, _QUANTIFIERS) and self._word_after(start + 1) in _ENDS:
            self._at = self._closing(start + 1) + 1
            word = typing.cast(Quantifier, self._tokens[start].word)
            return Quantified(word, *self._inner(start + 2, self._at - 1))
        while self._word() not in _ENDS and self._word() not in _CLOSING.values():
            self._at = self._closing(self._at) + 1 if self._word() in _CLOSING else self._at + 1
        if self._at == start:
            raise RuleError(f"syntax error at {self._text[self._tokens[start].begin :][:20]!r}", REMEDY)
        return self._term(start, self._at)

    def _group(self) -> Condition:
        self._open += 1
        self.depth += 1
        if self._open > MAX_PARENTHESES:
            raise RuleError("is nested too deeply", "split it into several selections")
        self._at += 1
        found = self._or()
        if self._word() != ")":
            raise RuleError(f"syntax error at {self._word()!r}", REMEDY)
        self._at += 1
        self._open -= 1
        return found

    def _is_call(self, at: int, names: Collection[str]) -> bool:
        return self._tokens[at].word in names and self._tokens[at + 1].word == "("

    def _closing(self, opening: int) -> int:
        """Index of the token that closes the parenthesis at `opening`."""
        expected: list[str] = []
        for at in range(opening, len(self._tokens)):
            word = self._tokens[at].word
            if word in _CLOSING:
                expected.append(_CLOSING[word])
            elif word in _CLOSING.values() and (not expected or expected.pop() != word):
                raise RuleError(f"syntax error at {word!r}", REMEDY)
            if not expected:
                return at
        raise RuleError("a parenthesis is not closed", "close it")

    def _word_after(self, opening: int) -> str:
        return self._tokens[self._closing(opening) + 1].word

    def _written(self, start: int, end: int) -> str:
        """The text of the tokens from `start` up to, not including, `end`."""
        return self._text[self._tokens[start].begin : self._tokens[end - 1].end] if end > start else ""

    def _inner(self, start: int, end: int) -> tuple[Kind, Condition]:
        """The condition within a quantifier: over links if it names one of their selections, else over ranks."""
        pairs = zip(self._tokens[start - 1 : end], self._tokens[start:end], strict=False)
        names = {after.word for before, after in pairs if after.kind == "name" and before.word != "."}
        kind: Kind = "links" if names & self._selections.links.keys() else "ranks"
        if start == end:
            raise RuleError("a quantifier without a condition", "name a selection: `any(waiting)`")
        inner = _Parser(self._written(start, end), self._compiler, kind, self._selections)
        found = inner.whole()
        self._grow(inner.size, inner.depth)
        return kind, found

    def _grow(self, size: int, depth: int) -> None:
        self.size += size
        self.depth = max(self.depth, self._open + 1 + depth)

    def _term(self, start: int, end: int) -> Condition:
        text = self._written(start, end)
        self.size += 1
        for token in self._tokens[start:end]:
            if token.kind == "name" and _COUNT.fullmatch(token.word):
                raise RuleError(f"unknown name `{token.word}`", "write `count(...)`")
        if self._kind is not None and text in self._selections.of(self._kind):
            self._grow(*self._selections.sizes[text])
            return Selected(text, self._selections.of(self._kind)[text])
        if self._kind is not None and text == OBSERVED:
            return Term(OBSERVED, (), lambda thing: True)
        if self._kind is None and (counts := [at for at in range(start, end) if self._is_call(at, ("count",))]):
            return self._counted(text, start, end, counts)
        self._refuse_selections(start, end)
        return self._compiler.term(text, self._kind, self._selections.declared)

    def _counted(self, text: str, start: int, end: int, counts: list[int]) -> Condition:
        found: dict[str, tuple[Kind, Condition]] = {}
        pieces, at = [], start
        for number, counted in enumerate(counts):
            closing, name = self._closing(counted + 1), f"count_{number}"
            found[name] = self._inner(counted + 2, closing)
            self._refuse_selections(at, counted)
            pieces += [self._written(at, counted), name]
            at = closing + 1
        self._refuse_selections(at, end)
        pieces.append(self._written(at, end))
        term = self._compiler.term(" ".join(pieces), None, self._selections.declared, found)
        return Counted(replace(term, text=text), found)

    def _refuse_selections(self, start: int, end: int) -> None:
        """Say what is wrong with a selection, or a quantifier, within a term."""
        for at in range(start, end):
            word = self._tokens[at].word
            if self._tokens[at].kind != "name" or (at > start and self._tokens[at - 1].word == "."):
                continue
            if self._is_call(at, _QUANTIFIERS):
                where = "stands by itself" if self._kind is None else "is a condition over the job"
                remedy = "join it with `and`, `or` and `not`; over ranks, name a selection"
                raise RuleError(f"`{word}(...)` {where}", remedy)
            if self._is_call(at, ("count",)):
                raise RuleError("`count(...)` is a number of the job", "compare it in a condition over the job")
            if self._kind is None and word in (*self._selections.ranks, *self._selections.links):
                raise RuleError(f"`{word}` is a selection, not a condition", f"write `any({word})` or `none({word})`")
            if word in self._reserved:
                continue
            if self._kind is not None and word in self._selections.of(self._kind):
                raise RuleError(f"`{word}` is a selection, not a field", "join it with `and`, `or` and `not`")
            self._refuse_unknown_selection(word)

    def _refuse_unknown_selection(self, word: str) -> None:
        """Say why a selection cannot be named here."""
        declared = self._selections.declared
        if self._kind is not None and declared.get(word, self._kind) != self._kind:
            wanted, other = ("links", "ranks") if self._kind == "links" else ("ranks", "links")
            raise RuleError(f"`{word}` is a selection of {other}, not of {wanted}", f"name selections of {wanted} only")
        if word == self._name:
            raise RuleError(f"the selection `{word}` names itself", "name selections above it")
        if word not in declared:
            return
        order = list(declared)
        if self._name and order.index(word) > order.index(self._name):
            raise RuleError(f"the selection `{word}` is defined further down", "move it up")
        raise RuleError(f"the selection `{word}` has a problem of its own", "fix that first")
