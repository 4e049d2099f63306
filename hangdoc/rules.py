"""Typed rules: expressions of the rule-engine library, compiled against the dataclasses of the facts.

Imported only when playbooks are loaded: the library builds its parser tables at import (0.3 s).
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any

from rule_engine import Context, DataType, Rule, ast, errors, resolve_attribute, resolve_item

from hangdoc.facts import Schema

ALL = "all"  # selection of every rank the playbook can see
UNKNOWN = "unknown"  # selection of the others: a probe it needs has not seen them

Path = tuple[str, ...]

_TYPE_NAMES = {"FLOAT": "a number", "STRING": "text", "BOOLEAN": "true or false", "ARRAY": "a list", "NULL": "null"}
_OF_LISTS = ("length", "is_empty", "to_set", "starts_with", "ends_with")
_OPERATORS = {"eq": "==", "ne": "!="}
# What the library raises for a text that is no rule: its own errors, and what constant folding runs into (`1 / 0`).
_REFUSALS = (errors.EngineError, ArithmeticError, TypeError, ValueError, RecursionError)


class RuleError(ValueError):
    """An expression that cannot be compiled: a sentence, and what to do."""

    def __init__(self, sentence: str, remedy: str) -> None:
        super().__init__(sentence)
        self.sentence, self.remedy = sentence, remedy


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled expression."""

    text: str
    rule: Rule
    reads: tuple[Path, ...]  # fields of the thing it is evaluated over that its value depends on

    def holds(self, thing: Any) -> bool:
        """Whether it is true of `thing`; raises whatever the library raises."""
        return bool(self.rule.evaluate(thing))

    def value(self, thing: Any) -> Any:
        """Its value over `thing`; raises whatever the library raises."""
        return self.rule.evaluate(thing)


class Compiler:
    """Compiles the expressions of playbooks against one schema."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.link = _link_type(schema.job)  # None: no analysis yields links
        self._rank = _object(schema.rank)
        self._job = _object(schema.job)
        self._link = None if self.link is None else _object(self.link)
        self._rank_context = _context(self._rank.attributes, resolve_attribute)
        self._link_context = None if self._link is None else _context(self._link.attributes, resolve_attribute)

    @property
    def groups(self) -> tuple[str, ...]:
        """Names that a selection may not take: the job's groups and the two selections there always are."""
        return (*self._job.attributes, ALL, UNKNOWN)

    def hints(self, ranks: Iterable[str], links: Iterable[str]) -> dict[str, Any]:
        """Type hint of each name that an expression over the job may use."""
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
        return _compile(text, _context(names, resolve_item), names)


def lint(expression: Expression, truth: bool = True) -> Iterator[RuleError]:
    """What is legal but wrong: evidence that was not seen silently taken for a no, comparisons that can never hold.

    `truth`: the expression as a whole is asked whether it is true.
    """
    yield from _lint(expression.rule.statement.expression, truth)


def _object(kind: type) -> Any:
    # Not strict: a field of a type the library does not know stays unchecked instead of making every rule fail.
    return DataType.OBJECT.from_dataclass(kind.__name__, kind, strict=False)


def _context(names: Mapping[str, Any], resolver: Any) -> Context:
    return Context(resolver=resolver, type_resolver=names, mapping_attribute_lookup=False)


def _link_type(job: type) -> type | None:
    """The dataclass found in `network.links` of the job's facts."""
    network = typing.get_type_hints(job).get("network")
    links = typing.get_type_hints(network).get("links") if isinstance(network, type) else None
    kind = next(iter(typing.get_args(links)), None)
    return kind if isinstance(kind, type) and is_dataclass(kind) else None


def _compile(text: str, context: Context, fields: Mapping[str, Any]) -> Expression:
    try:
        rule = Rule(text, context=context)
    except _REFUSALS as error:
        raise _refusal(error, fields) from None
    reads = dict.fromkeys(path for path in _reads(rule.statement.expression) if path[0] in fields)
    return Expression(text, rule, tuple(reads))


def _refusal(error: BaseException, fields: Mapping[str, Any]) -> RuleError:
    if isinstance(error, errors.SymbolResolutionError):
        return RuleError(f"unknown name `{error.symbol_name}`", _suggest(error.symbol_name, fields))
    if isinstance(error, errors.AttributeResolutionError):
        known = getattr(error.object, "attributes", None) or _OF_LISTS
        return RuleError(f"unknown field `{error.attribute_name}`", _suggest(error.attribute_name, known))
    message = error.message if isinstance(error, errors.EngineError) else str(error) or type(error).__name__
    if "nullable" in message:
        return RuleError(f"{message.split(' (')[0]}: an operand may not have been seen", "say what then, with `??`")
    return RuleError(message, "see the expressions of the built-in playbooks")


def _suggest(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean `{near[0]}`?" if near else f"known are {', '.join(names)}"


# --- reading the tree -----------------------------------------------------------------------------


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
    """`stack.phase` as ("stack", "phase"), of a symbol and the fields of objects taken from it."""
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
        yield RuleError(f"{_name(node)} may not have been seen, and would count as no", "write `(... ?? false)`")
    if type(node) is ast.ComparisonExpression:
        yield from _lint_comparison(node)
    elif isinstance(node, ast.ContainsExpression) and _nullable(node.member):
        yield RuleError(f"{_name(node.member)} before `in` may not have been seen", "write `(... ?? value) in`")
    elif isinstance(node, ast.FunctionCallExpression):
        for argument in node.arguments:
            if _nullable_members(argument):
                yield RuleError(f"members of {_name(argument)} may not have been seen", "use `??` on each of them")
    asked = _asked_for_truth(node)
    for child in _children(node):
        yield from _lint(child, any(child is one for one in asked))


def _lint_comparison(node: ast.ComparisonExpression) -> Iterator[RuleError]:
    sides = (node.left, node.right)
    if any(isinstance(side, ast.NullExpression) for side in sides):
        return  # an open question whether it was seen
    operator = _OPERATORS[node.type]
    for side in sides:
        if _nullable(side):
            yield RuleError(f"{_name(side)} beside `{operator}` may not have been seen", "write `(... ?? value)`")
    left, right = (DataType.NULLABLE.unwrap(side.result_type) for side in sides)
    if not DataType.is_compatible(left, right):
        kinds = f"{_TYPE_NAMES.get(left.name, left.name)} with {_TYPE_NAMES.get(right.name, right.name)}"
        yield RuleError(f"`{operator}` compares {kinds}, which are never equal", "compare values of one type")


def _asked_for_truth(node: ast.ExpressionBase) -> tuple[Any, ...]:
    """The children that a node only asks whether they are true."""
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
