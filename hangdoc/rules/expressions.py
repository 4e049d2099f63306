"""Typed terms of conditions: expressions of the rule-engine library, compiled against the dataclasses of the facts.

Users bring their own playbooks, and the library is no sandbox: it reads any attribute of an object of unknown type, and
a regular expression or a large number can block it. `_check_syntax` refuses such expressions before the library parses
them, and `_Context` gives a rule access to the fields of facts and to nothing else.

Imported only when playbooks are loaded: the library builds its parser tables at import (0.3 s).
"""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any

from rule_engine import Context, DataType, Rule, ast, builtins, errors

from hangdoc.analysis import thresholds
from hangdoc.analysis.facts import Schema
from hangdoc.evidence.record import field_names
from hangdoc.rules import regex_limits, time_limit
from hangdoc.rules.conditions import Condition, Counted, Joined, Kind, Not, Path, Quantified, Selected, Term, value

OBSERVED = "observed"  # selection: every rank that the needed probes have seen
UNOBSERVED = "unobserved"  # selection: ranks that some needed probe has not seen
QUANTIFIERS = ("any", "all", "none")

MAX_LENGTH = 2_000  # characters of an expression
MAX_TOKENS = 500  # of an expression
MAX_NESTING = 60  # levels of a term; `a + b + c` has two
MAX_PARENTHESES = 20  # within one another
MAX_DEPTH = 100  # levels of a condition, with those of the selections that it names
MAX_SIZE = 2_000  # terms of a condition, with those of the selections that it names

# Tokens of an expression: no power, no shift, no date, and no number without bound.
_TOKEN = re.compile(
    r"""\s+
    | (?P<text> r? (?: "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' ) )
    | (?P<number> (?: [0-9]{1,15} (?:\.[0-9]{0,15})? | \.[0-9]{1,15} ) (?:[eE][+-]?[0-9]{1,2})? (?![\w.]) )
    | (?P<name> \$?[a-zA-Z_]\w* (?![\w"']) )
    | (?P<regex> =~~ | !~~ | =~ | !~ )
    | (?P<sign> == | != | >= | <= | \?\? | &\. | &\[ | \*(?!\*) | >(?!>) | <(?!<) | [-+/%()\[\]{}.,?:] )
    """,
    re.VERBOSE,
)
_AFTER_REGEX = frozenset({"", ")", "]", "}", ",", "?", ":", "??", "==", "!=", "and", "or", "if", "for"})
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_COUNT = re.compile(r"count_[0-9]+")  # stands for `count(...)` in a term
_FUNCTIONS = ("abs", "all", "any", "max", "min", "sum")  # functions of the library, as `$name`
_METHODS = ("as_lower", "as_upper", "ends_with", "is_empty", "length", "starts_with")  # methods of text and lists

_WORDS = (
    "and",
    "or",
    "not",
    "in",
    "true",
    "false",
    "null",
    "if",
    "for",
    "is",
    "item",
    "loop",
)  # no names of selections
_TYPE_NAMES = {"FLOAT": "a number", "STRING": "text", "BOOLEAN": "true or false", "ARRAY": "a list", "NULL": "null"}
_OPERATORS = {"eq": "==", "ne": "!="}
_REMEDY = "see the expressions of the built-in playbooks"
# Raised by the library for an invalid rule: its own errors, and those of constant folding (`1 / 0`).
_REFUSALS = (errors.EngineError, ArithmeticError, LookupError, TypeError, ValueError)
# What a term may not contain, and what to write instead.
_NOT_IN_TERMS = {
    ast.CoalesceExpression: ("`??` has no place in a condition", "leave it out: what was not seen is unknown"),
    ast.LogicExpression: ("`and` or `or` within a term", "put the comparison on each side of it"),
    ast.TernaryExpression: ("`? :` in a condition", "write it with `and` and `or`"),
}
# Terms that are true or false: within a larger term, null would have no meaning.
_CONDITIONS = (
    ast.ComparisonExpression, ast.ArithmeticComparisonExpression, ast.ContainsExpression, ast.FuzzyComparisonExpression,
)  # fmt: skip


class RuleError(ValueError):
    """An expression that cannot be compiled: sentence and remedy."""

    def __init__(self, sentence: str, remedy: str) -> None:
        super().__init__(sentence)
        self.sentence, self.remedy = sentence, remedy


@dataclass(frozen=True, slots=True)
class Listing:
    """A compiled expression with a list as value (`each`, `blame`)."""

    text: str
    rule: Rule

    def value(self, thing: Any) -> Any:
        """The list; raises TooSlow and any error of the library."""
        time_limit.check()
        return self.rule.evaluate(thing)


@dataclass(frozen=True, slots=True)
class Selections:
    """The selections of a playbook, as far as they are compiled."""

    ranks: dict[str, Condition] = field(default_factory=dict)
    links: dict[str, Condition] = field(default_factory=dict)
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)  # terms and levels, with those that it names
    declared: Mapping[str, Kind] = field(default_factory=dict)  # every name in order, also of those not compiled yet

    def of(self, kind: Kind) -> dict[str, Condition]:
        return self.links if kind == "links" else self.ranks


class Compiler:
    """Compiles the expressions of playbooks against one schema."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.link = _link_type(schema.job)  # None: no analysis provides links
        rank, job = _object(schema.rank), _object(schema.job)
        link = None if self.link is None else _object(self.link)
        self._job = _names({"job": _without_nulls(job)})
        self._of: dict[Kind, Mapping[str, Any] | None] = {
            "ranks": _names(_without_nulls(rank).attributes),
            "links": None if link is None else _names(_without_nulls(link).attributes),
        }
        self._listed: dict[Kind, Any] = {"ranks": rank, "links": link}
        self._job_with_nulls = job

    def hints(self, ranks: Iterable[str], links: Iterable[str]) -> dict[str, Any]:
        """Type hints of the names in templates."""
        hints: dict[str, Any] = {"job": self.schema.job}
        hints |= dict.fromkeys((OBSERVED, UNOBSERVED, *ranks), types.GenericAlias(tuple, (self.schema.rank, ...)))
        return hints | dict.fromkeys(links, types.GenericAlias(tuple, (self.link, ...)))

    def reserved(self, kind: Kind) -> tuple[str, ...]:
        """Names that no selection may have: those of the facts, and the words of the language."""
        return (
            "job",
            OBSERVED,
            UNOBSERVED,
            "count",
            *_WORDS,
            *QUANTIFIERS,
            *(self._of["ranks"] or ()),
            *(self._of[kind] or ()),
        )

    def selection(self, name: str, kind: Kind, above: Selections, text: str) -> None:
        """Adds a condition over one rank or one link, which may name the selections above it; raises RuleError."""
        if self._of[kind] is None:
            raise RuleError(
                "rules over links need the analysis `network`, which is not here", "take the `links` rules out"
            )
        parser = _Parser(text, self, kind, above, name)
        found = parser.whole()
        above.of(kind)[name], above.sizes[name] = found, (parser.size, parser.depth)

    def condition(self, text: str, selections: Selections) -> Condition:
        """A condition over the job, and over the ranks and links by any(), all(), none(), count(); raises RuleError."""
        return _Parser(text, self, None, selections).whole()

    def listing(self, text: str, selections: Selections) -> Listing:
        """An expression with a list as value; raises RuleError."""
        names = {"job": self._job_with_nulls, OBSERVED: DataType.ARRAY(self._listed["ranks"])}
        for kind in typing.get_args(Kind):
            names |= dict.fromkeys(selections.of(kind), DataType.ARRAY(self._listed[kind]))
        rule = _compile(text, _Context(names), names)
        root = DataType.NULLABLE.unwrap(rule.statement.expression.result_type)
        if root != DataType.UNDEFINED and not DataType.is_type(root, DataType.ARRAY):
            raise RuleError("is no list", "name a list of the job's facts, or a selection")
        for node in _all(rule.statement.expression):
            if type(node) is ast.ComparisonExpression:
                _check_types(node)
        return Listing(text, rule)

    def term(self, text: str, shown: str, kind: Kind | None, counts: Iterable[str], selections: Selections) -> Term:
        """A term, shown as it was written; raises RuleError."""
        names = dict(self._job if kind is None else self._of[kind] or {}) | dict.fromkeys(counts, DataType.FLOAT)
        rule = _compile(text, _Context(names), [*names, *selections.declared])
        root = rule.statement.expression
        for node in _all(root):
            for refused, (sentence, remedy) in _NOT_IN_TERMS.items():
                if isinstance(node, refused):
                    raise RuleError(sentence, remedy)
            if type(node) is ast.ComparisonExpression:
                _check_comparison(node)
            if node is not root and isinstance(node, _CONDITIONS) and not _in_comprehension(root, node):
                raise RuleError("a comparison within a term", "write the comparison by itself, with `not` before it")
            if isinstance(node, ast.ComprehensionExpression) and _of_records(node.iterable):
                raise RuleError("a list comprehension over records", "write `any(...)`, `none(...)` or `count(...)`")
        if DataType.is_type(root.result_type, DataType.OBJECT):
            raise RuleError(f"`{shown}` is a whole record", "name a field of it")
        if isinstance(root, ast.LiteralExpressionBase) and not isinstance(root, ast.BooleanExpression):
            raise RuleError(f"`{shown}` is no condition", "compare it with a field")
        paths = dict.fromkeys(path for path in _reads(root) if path[0] in names)
        comparison = type(root) is ast.ComparisonExpression
        fuzzy = isinstance(root, ast.FuzzyComparisonExpression)
        return Term(
            shown,
            tuple(path for path in paths if not thresholds.is_name(path[0]) and path[0] not in counts),
            _membership(root) or (lambda thing: bool(rule.evaluate(thing))),
            without=root.type in ("ne", "ne_fzm", "ne_fzs") if comparison or fuzzy else _negated(root),
            tests_null=comparison and _tests_null(root),
        )


class _Parser:
    """Splits a condition at `and`, `or`, `not`, parentheses and quantifiers; the library gets the terms."""

    def __init__(
        self, text: str, compiler: Compiler, kind: Kind | None, selections: Selections, name: str = ""
    ) -> None:
        self._name = name  # of the selection that is compiled
        self._text, self._compiler, self._kind, self._selections = text, compiler, kind, selections
        self._tokens = [*_check_syntax(text), ("", "", len(text), len(text))]
        self._at = 0
        self._open = 0  # parentheses
        self.size = 0  # terms so far
        self.depth = 1  # levels so far

    def whole(self) -> Condition:
        found = self._or()
        if self._word():
            raise RuleError(f"syntax error at {self._word()!r}", _REMEDY)
        if self.size > MAX_SIZE:
            raise RuleError(f"has more than {MAX_SIZE} terms, with those of its selections", "make it simpler")
        if self.depth > MAX_DEPTH:
            raise RuleError("is nested too deeply, with its selections", "make it simpler")
        return found

    def _word(self, ahead: int = 0) -> str:
        return self._tokens[min(self._at + ahead, len(self._tokens) - 1)][1]

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
        if self._word() == "(" and self._word_after(start) in ("", ")", "and", "or"):
            return self._group()
        if self._kind is None and self._word() in QUANTIFIERS and self._word(1) == "(":
            word, end = self._word(), self._closing(start + 1)
            following = self._tokens[end + 1][1]
            if following in ("", ")", "and", "or"):
                self._at = end + 1
                kind, condition = self._inner(start + 2, end)
                return Quantified(typing.cast(typing.Literal["any", "all", "none"], word), kind, condition)
        self._skip_term()
        if self._at == start:
            written = self._text[self._tokens[start][2] :][:20]
            raise RuleError(f"syntax error at {written!r}", _REMEDY)
        return self._term(start, self._at)

    def _group(self) -> Condition:
        self._open += 1
        self.depth += 1
        if self._open > MAX_PARENTHESES:
            raise RuleError("is nested too deeply", "split it into several selections")
        self._at += 1
        found = self._or()
        if self._word() != ")":
            raise RuleError(f"syntax error at {self._word()!r}", _REMEDY)
        self._at += 1
        self._open -= 1
        return found

    def _closing(self, opening: int) -> int:
        """Index of the token that closes the parenthesis at `opening`."""
        expected: list[str] = []
        for at in range(opening, len(self._tokens)):
            word = self._tokens[at][1]
            if word in _CLOSING:
                expected.append(_CLOSING[word])
            elif word in _CLOSING.values() and (not expected or expected.pop() != word):
                raise RuleError(f"syntax error at {word!r}", _REMEDY)
            if not expected:
                return at
        raise RuleError("a parenthesis is not closed", "close it")

    def _word_after(self, opening: int) -> str:
        return self._tokens[self._closing(opening) + 1][1]

    def _skip_term(self) -> None:
        while self._word() and self._word() not in ("and", "or", ")", "]", "}"):
            self._at = self._closing(self._at) + 1 if self._word() in _CLOSING else self._at + 1

    def _written(self, start: int, end: int) -> str:
        """The text of the tokens from `start` up to, not including, `end`."""
        return self._text[self._tokens[start][2] : self._tokens[end - 1][3]] if end > start else ""

    def _inner(self, start: int, end: int) -> tuple[Kind, Condition]:
        """The condition within a quantifier: over links if it names one of their selections, else over ranks."""
        pairs = zip(self._tokens[start - 1 : end], self._tokens[start:end], strict=False)
        names = {word for (_, before, _, _), (kind, word, _, _) in pairs if kind == "name" and before != "."}
        kind: Kind = "links" if names & self._selections.links.keys() else "ranks"
        if not self._written(start, end):
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
        part = self._tokens[start:end]
        words = [word for kind, word, _, _ in part if kind == "name"]
        for word in words:
            if _COUNT.fullmatch(word):
                raise RuleError(f"unknown name `{word}`", "write `count(...)`")
        if self._kind is not None:
            if end == start + 1 and text in self._selections.of(self._kind):
                self._grow(*self._selections.sizes[text])
                return Selected(text, self._selections.of(self._kind)[text])
            if end == start + 1 and text == OBSERVED:
                return Term(OBSERVED, (), lambda thing: True)
        elif counts := [at for at in range(start, end - 1) if self._is_call(at, ("count",))]:
            return self._counted(text, start, end, counts)
        self._refuse_selections(start, end)
        return self._compiler.term(text, text, self._kind, (), self._selections)

    def _is_call(self, at: int, names: Iterable[str]) -> bool:
        return self._tokens[at][1] in names and self._tokens[at + 1][1] == "("

    def _refuse_selections(self, start: int, end: int) -> None:
        """Say what is wrong with a selection, or a quantifier, within a term."""
        for at in range(start, end):
            kind, word, _, _ = self._tokens[at]
            if kind != "name" or (at > start and self._tokens[at - 1][1] == "."):
                continue
            if self._is_call(at, QUANTIFIERS):
                where = "stands by itself" if self._kind is None else "is a condition over the job"
                raise RuleError(
                    f"`{word}(...)` {where}", "join it with `and`, `or` and `not`; over ranks, name a selection"
                )
            if self._is_call(at, ("count",)):
                raise RuleError("`count(...)` is a number of the job", "compare it in a condition over the job")
            if self._kind is None and word in (*self._selections.ranks, *self._selections.links):
                raise RuleError(f"`{word}` is a selection, not a condition", f"write `any({word})` or `none({word})`")
            if word in self._compiler.reserved(self._kind or "ranks"):
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

    def _counted(self, text: str, start: int, end: int, counts: list[int]) -> Condition:
        found: list[tuple[str, Kind, Condition]] = []
        pieces, at = [], start
        for number, counted in enumerate(counts):
            closing = self._closing(counted + 1)
            found.append((f"count_{number}", *self._inner(counted + 2, closing)))
            pieces += [self._written(at, counted), f"count_{number}"]
            self._refuse_selections(at, counted)
            at = closing + 1
        pieces.append(self._written(at, end))
        self._refuse_selections(at, end)
        names = tuple(name for name, _, _ in found)
        return Counted(self._compiler.term(" ".join(pieces), text, None, names, self._selections), tuple(found))


def _object(kind: type) -> Any:
    # Not strict: fields of types unknown to the library stay unchecked; strict, every rule would fail.
    return DataType.OBJECT.from_dataclass(kind.__name__, kind, strict=False)


def _without_nulls(definition: Any) -> Any:
    """The same type, every field of it taken for seen: `Term` evaluates nothing that is null."""
    inner = DataType.NULLABLE.unwrap(definition)
    if DataType.is_type(inner, DataType.OBJECT):
        return DataType.OBJECT(inner.name, {name: _without_nulls(of) for name, of in inner.attributes.items()})
    return inner


def _names(names: Mapping[str, Any]) -> Mapping[str, Any]:
    """The names of a scope, with those of the thresholds."""
    return {**names, **dict.fromkeys(thresholds.names(), DataType.FLOAT)}


class _Context(Context):  # type: ignore[misc]  # the library is not typed here
    """Scope of a rule: the given names, the fields of facts, and a few functions."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        super().__init__(resolver=_field, type_resolver=names, default_timezone="utc", mapping_attribute_lookup=False)

    def resolve_type(self, name: str, scope: str | None = None) -> Any:
        if scope == builtins.Builtins.scope_name and name not in _FUNCTIONS:
            raise errors.SymbolResolutionError(name, symbol_scope=scope)
        return super().resolve_type(name, scope)

    def resolve_attribute_type(self, object_type: Any, name: str) -> Any:
        if name not in _METHODS:
            raise errors.AttributeResolutionError(name, object_type)
        return super().resolve_attribute_type(object_type, name)

    def resolve_attribute(self, thing: Any, object_: Any, name: str) -> Any:
        if name not in _METHODS:
            raise errors.AttributeResolutionError(name, object_, thing=thing)
        return super().resolve_attribute(thing, object_, name)

    def assignments(self, *assigned: Any) -> Any:
        """Runs at each round of a comprehension."""
        time_limit.check()
        return super().assignments(*assigned)


class _Truncated(ast.ExpressionBase):  # type: ignore[misc]
    """A text cut to MAX_SUBJECT characters, the length that `regex_limits` assumes."""

    def __init__(self, whole: ast.ExpressionBase) -> None:
        self.context, self.result_type, self.whole = whole.context, whole.result_type, whole

    def evaluate(self, thing: Any) -> Any:
        value = self.whole.evaluate(thing)
        return value[: regex_limits.MAX_SUBJECT] if isinstance(value, str) else value


def _field(thing: Any, name: str) -> Any:
    """A name of the scope, or a declared field of a record or dataclass; no other attribute is accessible."""
    if isinstance(thing, Mapping) and name in thing:
        return thing[name]
    kind: Any = type(thing)
    if name in field_names(kind):
        return getattr(thing, name)
    if thresholds.is_name(name):
        return thresholds.value(name)
    raise errors.SymbolResolutionError(name, thing=thing)


def _link_type(job: type) -> type | None:
    """The dataclass of `network.links` in the job's facts; None if there is none."""
    network = typing.get_type_hints(job).get("network")
    links = typing.get_type_hints(network).get("links") if isinstance(network, type) else None
    kind = next(iter(typing.get_args(links)), None)
    return kind if isinstance(kind, type) and is_dataclass(kind) else None


def _compile(text: str, context: Context, names: Iterable[str]) -> Rule:
    _check_syntax(text)
    try:
        rule = Rule(text, context=context)
        if _nesting(rule.statement.expression) > MAX_NESTING:
            raise RecursionError
    except RecursionError:
        raise RuleError("is nested too deeply", "split it into several selections") from None
    except _REFUSALS as error:
        raise _refusal(error, names) from None
    for node in _all(rule.statement.expression):
        if isinstance(node, ast.FuzzyComparisonExpression):
            node.left = _Truncated(node.left)
    return rule


def _check_syntax(text: str) -> list[tuple[str, str, int, int]]:
    """The tokens (kind, text, begin, end); refuses what the library must not even parse.

    The library evaluates constants and matches patterns while it parses.
    """
    if len(text) > MAX_LENGTH:
        raise RuleError(f"is longer than {MAX_LENGTH} characters", "split it into several selections")
    found, at = list[tuple[str, str, int, int]](), 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            written = text[at : at + 20].partition("\n")[0]
            raise RuleError(f"syntax error at {written!r}", _REMEDY)
        if token.lastgroup:
            found.append((token.lastgroup, token[0], at, token.end()))
        at = token.end()
    if len(found) > MAX_TOKENS:
        raise RuleError(f"has more than {MAX_TOKENS} tokens", "split it into several selections")
    ahead = [(kind, word) for kind, word, _, _ in found] + [("", ""), ("", "")]
    for (kind, sign), (literal, pattern), (_, after) in zip(ahead, ahead[1:], ahead[2:], strict=False):
        if kind == "name" and sign.startswith("_"):
            raise RuleError(f"unknown name `{sign}`", "names of facts begin with a letter")
        if kind == "regex":
            if literal != "text" or after not in _AFTER_REGEX:
                raise RuleError(f"`{sign}` needs one quoted pattern on its right", "write the pattern there, in quotes")
            _check_pattern(pattern, searched=sign.endswith("~~"))
    return found


def _check_pattern(literal: str, searched: bool) -> None:
    try:
        regex_limits.check(str(Rule(literal).evaluate(None)), searched)
    except regex_limits.PatternError as error:
        raise RuleError(str(error).replace("not a", "invalid"), regex_limits.BOUNDED) from None
    except errors.EngineError as error:
        raise RuleError(error.message, "fix the quoted text") from None


def _refusal(error: BaseException, names: Iterable[str]) -> RuleError:
    if isinstance(error, errors.SymbolResolutionError):
        of_library = error.symbol_scope is not None
        name = f"${error.symbol_name}" if of_library else error.symbol_name
        return RuleError(
            f"unknown name `{name}`", _suggest(name, [f"${f}" for f in _FUNCTIONS] if of_library else names)
        )
    if isinstance(error, errors.AttributeResolutionError):
        known = getattr(error.object, "attributes", None) or _METHODS
        return RuleError(f"unknown field `{error.attribute_name}`", _suggest(error.attribute_name, known))
    return RuleError(
        error.message if isinstance(error, errors.EngineError) else str(error) or type(error).__name__, _REMEDY
    )


def _suggest(name: str, known: Iterable[str]) -> str:
    names = sorted(name for name in known if not thresholds.is_name(name) and not _COUNT.fullmatch(name))
    near = difflib.get_close_matches(name, [*names, *thresholds.names()], n=1, cutoff=0.6)
    return f"did you mean `{near[0]}`?" if near else f"known are {', '.join(names)}"


# --- reading the tree -----------------------------------------------------------------------------


def _all(node: ast.ExpressionBase) -> Iterator[ast.ExpressionBase]:
    left = [node]
    while left:
        one = left.pop()
        yield one
        left.extend(_children(one))


def _nesting(node: ast.ExpressionBase) -> int:
    depth, level = 0, [node]
    while level:
        depth, level = depth + 1, [child for one in level for child in _children(one)]
    return depth


def _children(node: ast.ExpressionBase) -> Iterator[ast.ExpressionBase]:
    slots = (name for kind in type(node).__mro__ for name in getattr(kind, "__slots__", ()))
    for name in {*getattr(node, "__dict__", ()), *slots} - {"context", "result_type"}:
        yield from _nodes(getattr(node, name, None))


def _nodes(value: Any) -> Iterator[ast.ExpressionBase]:
    if isinstance(value, ast.ExpressionBase):
        yield value
    elif isinstance(value, (tuple, list, set)):
        for member in value:
            yield from _nodes(member)


def _path(node: ast.ExpressionBase) -> Path | None:
    """`stack.phase` as ("stack", "phase"); None for anything but a symbol and its fields."""
    if isinstance(node, ast.SymbolExpression):
        return (node.name,) if node.scope is None else None
    if isinstance(node, ast.GetAttributeExpression):
        of = DataType.NULLABLE.unwrap(node.object.result_type)
        before = _path(node.object)
        return (*before, node.name) if before and DataType.is_type(of, DataType.OBJECT) else None
    return None


def _reads(node: ast.ExpressionBase) -> Iterator[Path]:
    path = _path(node)
    if path:
        yield path
    else:
        for child in _children(node):
            yield from _reads(child)


def _check_comparison(node: ast.ComparisonExpression) -> None:
    """Refuse comparisons that can never hold, and those with an empty text: null is not empty."""
    sides, operator = (node.left, node.right), _OPERATORS[node.type]
    if any(isinstance(side, ast.NullExpression) for side in sides):
        if not _tests_null(node):
            raise RuleError(f"`{operator} null` of a calculation", "compare the field itself with null")
        return
    for side, other in (sides, sides[::-1]):
        if isinstance(side, ast.StringExpression) and side.value == "":
            remedy = f"write `{_name(other)}` or `not {_name(other)}`"
            raise RuleError(f"`{operator}` with an empty text: where there is none, the field may be null", remedy)
    _check_types(node)


def _check_types(node: ast.ComparisonExpression) -> None:
    """Refuse comparisons of types that are never equal."""
    left, right = (DataType.NULLABLE.unwrap(side.result_type) for side in (node.left, node.right))
    if DataType.NULL not in (left, right) and not DataType.is_compatible(left, right):
        kinds = f"{_TYPE_NAMES.get(left.name, left.name)} with {_TYPE_NAMES.get(right.name, right.name)}"
        raise RuleError(
            f"`{_OPERATORS[node.type]}` compares {kinds}, which are never equal", "compare values of one type"
        )


def _tests_null(node: ast.ComparisonExpression) -> bool:
    """True for `field == null`: null is then an answer, and no obstacle."""
    sides = (node.left, node.right)
    return any(isinstance(side, ast.NullExpression) for side in sides) and any(_path(side) for side in sides)


def _membership(node: ast.ExpressionBase) -> Callable[[Any], bool] | None:
    """`rank in job.group.cycle` without the library, which takes 17 us for each of thousands of ranks."""
    if not isinstance(node, ast.ContainsExpression):
        return None
    member, container = _path(node.member), _path(node.container)
    if member is None or container is None or thresholds.is_name(member[0]):
        return None
    return lambda thing: value(thing, member) in value(thing, container)


def _negated(node: ast.ExpressionBase) -> bool:
    return isinstance(node, ast.UnaryExpression) and node.type == "not"


def _in_comprehension(root: ast.ExpressionBase, node: ast.ExpressionBase) -> bool:
    return any(isinstance(one, ast.ComprehensionExpression) and node in _all(one) for one in _all(root)) or _negated(
        root
    )


def _of_records(node: ast.ExpressionBase) -> bool:
    kind = DataType.NULLABLE.unwrap(node.result_type)
    return bool(DataType.is_type(kind, DataType.ARRAY) and DataType.is_type(kind.value_type, DataType.OBJECT))


def _name(node: ast.ExpressionBase) -> str:
    path = _path(node)
    return ".".join(path) if path else "the value"
