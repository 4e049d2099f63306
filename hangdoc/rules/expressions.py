"""Typed rules: expressions of the rule-engine library, compiled against the dataclasses of the facts.

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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any

from rule_engine import Context, DataType, Rule, ast, builtins, errors

from hangdoc.analysis.facts import Schema
from hangdoc.rules import regex_limits, time_limit

ALL = "all"  # selection: every rank that the needed probes have seen
UNKNOWN = "unknown"  # selection: ranks that some needed probe has not seen

MAX_LENGTH = 2_000  # characters of an expression
MAX_TOKENS = 500  # of an expression
MAX_NESTING = 60  # levels; `a or b or c` has two

Path = tuple[str, ...]

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
_FUNCTIONS = ("abs", "all", "any", "max", "min", "sum")  # functions of the library, as `$name`
_METHODS = ("as_lower", "as_upper", "ends_with", "is_empty", "length", "starts_with")  # methods of text and lists

_TYPE_NAMES = {"FLOAT": "a number", "STRING": "text", "BOOLEAN": "true or false", "ARRAY": "a list", "NULL": "null"}
_OPERATORS = {"eq": "==", "ne": "!="}
_REMEDY = "see the expressions of the built-in playbooks"
# Raised by the library for an invalid rule: its own errors, and those of constant folding (`1 / 0`).
_REFUSALS = (errors.EngineError, ArithmeticError, LookupError, TypeError, ValueError)


class RuleError(ValueError):
    """An expression that cannot be compiled: sentence and remedy."""

    def __init__(self, sentence: str, remedy: str) -> None:
        super().__init__(sentence)
        self.sentence, self.remedy = sentence, remedy


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled expression."""

    text: str
    rule: Rule
    reads: tuple[Path, ...]  # fields that the value depends on

    def holds(self, thing: Any) -> bool:
        """True if the expression holds for `thing`; raises TooSlow and any error of the library."""
        time_limit.check()
        return bool(self.rule.evaluate(thing))

    def value(self, thing: Any) -> Any:
        """Value for `thing`; raises TooSlow and any error of the library."""
        time_limit.check()
        return self.rule.evaluate(thing)


class Compiler:
    """Compiles the expressions of playbooks against one schema."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.link = _link_type(schema.job)  # None: no analysis provides links
        self._rank = _object(schema.rank)
        self._job = _object(schema.job)
        self._link = None if self.link is None else _object(self.link)
        self._rank_context = _Context(self._rank.attributes)
        self._link_context = None if self._link is None else _Context(self._link.attributes)

    @property
    def groups(self) -> tuple[str, ...]:
        """Reserved names: the job's fact groups and the two built-in selections."""
        return (*self._job.attributes, ALL, UNKNOWN)

    def hints(self, ranks: Iterable[str], links: Iterable[str]) -> dict[str, Any]:
        """Type hints of the names in expressions over the job."""
        hints = dict(typing.get_type_hints(self.schema.job))
        hints |= dict.fromkeys((ALL, UNKNOWN, *ranks), types.GenericAlias(tuple, (self.schema.rank, ...)))
        return hints | dict.fromkeys(links, types.GenericAlias(tuple, (self.link, ...)))

    def over_rank(self, text: str) -> Expression:
        """An expression over one rank; raises RuleError."""
        return _compile(text, self._rank_context, self._rank.attributes)

    def over_link(self, text: str) -> Expression:
        """An expression over one link; raises RuleError."""
        if self._link is None or self._link_context is None:
            raise RuleError(
                "rules over links need the analysis `network`, which is not here", "take the `links` rules out"
            )
        return _compile(text, self._link_context, self._link.attributes)

    def over_job(self, text: str, ranks: Iterable[str], links: Iterable[str]) -> Expression:
        """An expression over the job's groups and the selections of these names; raises RuleError."""
        names = {**self._job.attributes, **dict.fromkeys((ALL, UNKNOWN, *ranks), DataType.ARRAY(self._rank))}
        if self._link is not None:
            names |= dict.fromkeys(links, DataType.ARRAY(self._link))
        return _compile(text, _Context(names), names)


def lint(expression: Expression, truth: bool = True) -> Iterator[RuleError]:
    """Legal but wrong: missing evidence that would count as "no", and comparisons that can never hold.

    `truth`: the expression as a whole is used as a condition.
    """
    yield from _lint(expression.rule.statement.expression, truth)


def _object(kind: type) -> Any:
    # Not strict: fields of types unknown to the library stay unchecked; strict, every rule would fail.
    return DataType.OBJECT.from_dataclass(kind.__name__, kind, strict=False)


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
    """A name of the scope, or a declared field of a dataclass; no other attribute is accessible."""
    if isinstance(thing, Mapping) and name in thing:
        return thing[name]
    if name in getattr(type(thing), "__dataclass_fields__", ()):
        return getattr(thing, name)
    raise errors.SymbolResolutionError(name, thing=thing)


def _link_type(job: type) -> type | None:
    """The dataclass of `network.links` in the job's facts; None if there is none."""
    network = typing.get_type_hints(job).get("network")
    links = typing.get_type_hints(network).get("links") if isinstance(network, type) else None
    kind = next(iter(typing.get_args(links)), None)
    return kind if isinstance(kind, type) and is_dataclass(kind) else None


def _compile(text: str, context: Context, fields: Mapping[str, Any]) -> Expression:
    _check_syntax(text)
    try:
        rule = Rule(text, context=context)
        if _nesting(rule.statement.expression) > MAX_NESTING:
            raise RecursionError
    except RecursionError:
        raise RuleError("is nested too deeply", "split it into several selections") from None
    except _REFUSALS as error:
        raise _refusal(error, fields) from None
    for node in _all(rule.statement.expression):
        if isinstance(node, ast.FuzzyComparisonExpression):
            node.left = _Truncated(node.left)
    reads = dict.fromkeys(path for path in _reads(rule.statement.expression) if path[0] in fields)
    return Expression(text, rule, tuple(reads))


def _check_syntax(text: str) -> None:
    """Refuse what the library must not even parse, as it evaluates constants and matches patterns while parsing."""
    if len(text) > MAX_LENGTH:
        raise RuleError(f"is longer than {MAX_LENGTH} characters", "split it into several selections")
    tokens, at = list[tuple[str, str]](), 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            written = text[at : at + 20].partition("\n")[0]
            raise RuleError(f"syntax error at {written!r}", _REMEDY)
        at = found.end()
        if found.lastgroup:
            tokens.append((found.lastgroup, found[0]))
    if len(tokens) > MAX_TOKENS:
        raise RuleError(f"has more than {MAX_TOKENS} tokens", "split it into several selections")
    tokens += [("", ""), ("", "")]
    for (kind, sign), (literal, pattern), (_, after) in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if kind == "name" and sign.startswith("_"):
            raise RuleError(f"unknown name `{sign}`", "names of facts begin with a letter")
        if kind == "regex":
            if literal != "text" or after not in _AFTER_REGEX:
                raise RuleError(f"`{sign}` needs one quoted pattern on its right", "write the pattern there, in quotes")
            _check_pattern(pattern, searched=sign.endswith("~~"))


def _check_pattern(literal: str, searched: bool) -> None:
    try:
        regex_limits.check(str(Rule(literal).evaluate(None)), searched)
    except regex_limits.PatternError as error:
        raise RuleError(str(error).replace("not a", "invalid"), regex_limits.BOUNDED) from None
    except errors.EngineError as error:
        raise RuleError(error.message, "fix the quoted text") from None


def _refusal(error: BaseException, fields: Mapping[str, Any]) -> RuleError:
    if isinstance(error, errors.SymbolResolutionError):
        of_library = error.symbol_scope is not None
        name = f"${error.symbol_name}" if of_library else error.symbol_name
        return RuleError(
            f"unknown name `{name}`", _suggest(name, [f"${f}" for f in _FUNCTIONS] if of_library else fields)
        )
    if isinstance(error, errors.AttributeResolutionError):
        known = getattr(error.object, "attributes", None) or _METHODS
        return RuleError(f"unknown field `{error.attribute_name}`", _suggest(error.attribute_name, known))
    message = error.message if isinstance(error, errors.EngineError) else str(error) or type(error).__name__
    if "nullable" in message:
        return RuleError(f"{message.split(' (')[0]}: an operand may be unseen", "give a default with `??`")
    return RuleError(message, _REMEDY)


def _suggest(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
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


def _lint(node: ast.ExpressionBase, truth: bool) -> Iterator[RuleError]:
    if truth and _nullable(node):
        yield RuleError(f"{_name(node)} may be unseen, and would then count as no", "write `(... ?? false)`")
    if type(node) is ast.ComparisonExpression:
        yield from _lint_comparison(node)
    elif isinstance(node, ast.ContainsExpression) and _nullable(node.member):
        yield RuleError(f"{_name(node.member)} before `in` may be unseen", "write `(... ?? value) in`")
    elif isinstance(node, ast.FunctionCallExpression):
        for argument in node.arguments:
            if _nullable_members(argument):
                yield RuleError(f"members of {_name(argument)} may be unseen", "use `??` on each of them")
    asked = _asked_for_truth(node)
    for child in _children(node):
        yield from _lint(child, any(child is one for one in asked))


def _lint_comparison(node: ast.ComparisonExpression) -> Iterator[RuleError]:
    sides = (node.left, node.right)
    if any(isinstance(side, ast.NullExpression) for side in sides):
        return  # a test whether it was seen
    operator = _OPERATORS[node.type]
    for side in sides:
        if _nullable(side):
            yield RuleError(f"{_name(side)} next to `{operator}` may be unseen", "write `(... ?? value)`")
    left, right = (DataType.NULLABLE.unwrap(side.result_type) for side in sides)
    if not DataType.is_compatible(left, right):
        kinds = f"{_TYPE_NAMES.get(left.name, left.name)} with {_TYPE_NAMES.get(right.name, right.name)}"
        yield RuleError(f"`{operator}` compares {kinds}, which are never equal", "compare values of one type")


def _asked_for_truth(node: ast.ExpressionBase) -> tuple[Any, ...]:
    """Children of a node that are used as conditions."""
    if isinstance(node, ast.LogicExpression):
        return (node.left, node.right)
    if isinstance(node, ast.UnaryExpression) and node.type == "not":
        return (node.right,)
    if isinstance(node, (ast.TernaryExpression, ast.ComprehensionExpression)):
        return (node.condition,)
    return ()


def _nullable(node: ast.ExpressionBase) -> bool:
    return bool(DataType.is_type(node.result_type, DataType.NULLABLE))


def _nullable_members(node: ast.ExpressionBase) -> bool:
    kind = node.result_type
    return bool(DataType.is_type(kind, DataType.ARRAY) and DataType.is_type(kind.value_type, DataType.NULLABLE))


def _name(node: ast.ExpressionBase) -> str:
    path = _path(node)
    return f"`{'.'.join(path)}`" if path else "a value"
