"""Terms of conditions, and lists: expressions of the rule-engine library, compiled against the types of the facts.

Users bring their own playbooks, and the library is no sandbox: it reads any attribute of an object of unknown type.
`_Context` gives a rule access to the fields of facts and to nothing else.

Imported only when playbooks are loaded: the library takes 0.05 s.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hangdoc.analysis import thresholds
from hangdoc.analysis.facts import Schema
from hangdoc.evidence.record import field_names
from hangdoc.formatting import suggestion
from hangdoc.rules import regex_limits, time_limit
from hangdoc.rules.conditions import OBSERVED, UNOBSERVED, Kind, Path, RuleError, Term, Truth, value
from hangdoc.rules.engine import Context, DataType, Rule, ast, builtins, errors
from hangdoc.rules.tokens import REMEDY, tokens

MAX_NESTING = 60  # levels of a term; `a + b + c` has two

_FUNCTIONS = ("abs", "all", "any", "max", "min", "sum")  # functions of the library, as `$name`
_METHODS = ("as_lower", "as_upper", "ends_with", "is_empty", "length", "starts_with")  # methods of text and lists
_TYPE_NAMES = {"FLOAT": "a number", "STRING": "text", "BOOLEAN": "true or false", "ARRAY": "a list", "NULL": "null"}
_OPERATORS = {"eq": "==", "ne": "!="}
# Raised by the library for an invalid rule: its own errors, and those of constant folding (`1 / 0`).
_REFUSALS = (errors.EngineError, ArithmeticError, LookupError, TypeError, ValueError)
# What a term may not contain, and what to write instead.
_NOT_IN_TERMS = {
    ast.CoalesceExpression: ("`??` has no place in a condition", "leave it out: what was not seen is unknown"),
    ast.LogicExpression: ("`and` or `or` within a term", "put the comparison on each side of it"),
    ast.TernaryExpression: ("`? :` in a condition", "write it with `and` and `or`"),
}


@dataclass(frozen=True, slots=True)
class Listing:
    """A compiled expression with a list as value (`each`, `blame`)."""

    rule: Rule

    def value(self, thing: Any) -> Any:
        """The list; raises TooSlow and any error of the library."""
        time_limit.check()
        return self.rule.evaluate(thing)


class Compiler:
    """Compiles terms and lists against one schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._link = _link_type(schema.job)
        self._records = {kind: _record(of) for kind, of in (("ranks", schema.rank), ("links", self._link))}
        self._job = _record(schema.job)
        # Types of the names in a term over one rank, one link or, by None, the job.
        self.fields: Mapping[Kind | None, Mapping[str, Any]] = {
            None: {"job": _without_nulls(self._job)},
            "ranks": _without_nulls(self._records["ranks"]).attributes,
            "links": _without_nulls(self._records["links"]).attributes,
        }
        self._contexts: dict[tuple[Kind | None, tuple[str, ...]], _Context] = {}  # of terms: slow to make
        self._terms: dict[tuple[str, Kind | None, tuple[str, ...]], Term] = {}  # many playbooks have the same

    def hints(self, ranks: Iterable[str], links: Iterable[str]) -> dict[str, Any]:
        """Type hints of the names in templates."""
        hints: dict[str, Any] = {"job": self._schema.job}
        hints |= dict.fromkeys((OBSERVED, UNOBSERVED, *ranks), types.GenericAlias(tuple, (self._schema.rank, ...)))
        return hints | dict.fromkeys(links, types.GenericAlias(tuple, (self._link, ...)))

    def listing(self, ranks: Iterable[str], links: Iterable[str], text: str) -> Listing:
        """An expression over the job and these selections, with a list as value; raises RuleError."""
        names = {"job": self._job, **dict.fromkeys((OBSERVED, *ranks), DataType.ARRAY(self._records["ranks"]))}
        names |= dict.fromkeys(links, DataType.ARRAY(self._records["links"]))
        rule = _compile(text, _Context(names), names)
        root = DataType.NULLABLE.unwrap(rule.statement.expression.result_type)
        if root != DataType.UNDEFINED and not DataType.is_type(root, DataType.ARRAY):
            raise RuleError("is no list", "name a list of the job's facts, or a selection")
        for node in _all(rule.statement.expression):
            if type(node) is ast.ComparisonExpression:
                _check_types(node)
        return Listing(rule)

    def term(self, text: str, kind: Kind | None, selections: Iterable[str], counts: Iterable[str] = ()) -> Term:
        """A term over one rank, one link or, without `kind`, over the job and `counts`; raises RuleError.

        `selections`: names that an error suggests.
        """
        fields, counted = self.fields[kind], tuple(counts)
        known = self._terms.get((text, kind, counted))
        if known is not None:
            return known
        context = self._contexts.get((kind, counted))
        if context is None:
            numbers = dict.fromkeys((*thresholds.names(), *counted), DataType.FLOAT)
            context = self._contexts[kind, counted] = _Context({**fields, **numbers})
        rule = _compile(text, context, (*fields, *selections))
        root = rule.statement.expression
        _check_term(text, root)
        reads = dict.fromkeys(path for path in _reads(root) if path[0] in fields)
        holds = _membership(root) or (lambda thing: bool(rule.evaluate(thing)))
        return self._terms.setdefault((text, kind, counted), Term(text, tuple(reads), holds, _of_null(root)))


def _link_type(job: type) -> Any:
    """The dataclass of `network.links` in the job's facts."""
    return typing.get_args(typing.get_type_hints(typing.get_type_hints(job)["network"])["links"])[0]


def _record(kind: type) -> Any:
    # Not strict: fields of types unknown to the library stay unchecked; strict, every rule would fail.
    return DataType.OBJECT.from_dataclass(kind.__name__, kind, strict=False)


def _without_nulls(definition: Any) -> Any:
    """The same type, every field of it taken for seen: `Term` evaluates nothing that is null."""
    inner = DataType.NULLABLE.unwrap(definition)
    if DataType.is_type(inner, DataType.OBJECT):
        return DataType.OBJECT(inner.name, {name: _without_nulls(of) for name, of in inner.attributes.items()})
    return inner


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
    kind: Any = type(thing)
    if name in field_names(kind):
        return getattr(thing, name)
    if thresholds.is_name(name):
        return thresholds.value(name)
    raise errors.SymbolResolutionError(name, thing=thing)


def _compile(text: str, context: _Context, known: Iterable[str]) -> Rule:
    tokens(text)  # refuses what the library must not even parse
    try:
        rule = Rule(text, context=context)
        if _nesting(rule.statement.expression) > MAX_NESTING:
            raise RecursionError
    except RecursionError:
        raise RuleError("is nested too deeply", "split it into several selections") from None
    except _REFUSALS as error:
        raise _refusal(error, known) from None
    for node in _all(rule.statement.expression):
        if isinstance(node, ast.FuzzyComparisonExpression):
            node.left = _Truncated(node.left)
    return rule


def _refusal(error: BaseException, names: Iterable[str]) -> RuleError:
    if isinstance(error, errors.SymbolResolutionError):
        if error.symbol_scope is None:
            name, remedy = error.symbol_name, suggestion(error.symbol_name, names, thresholds.names())
        else:
            name = f"${error.symbol_name}"
            remedy = suggestion(name, [f"${one}" for one in _FUNCTIONS])
        return RuleError(f"unknown name `{name}`", remedy)
    if isinstance(error, errors.AttributeResolutionError):
        known = getattr(error.object, "attributes", None) or _METHODS
        return RuleError(f"unknown field `{error.attribute_name}`", suggestion(error.attribute_name, known))
    message = error.message if isinstance(error, errors.EngineError) else str(error)
    return RuleError(message or type(error).__name__, REMEDY)


# --- what a term may be ---------------------------------------------------------------------------


def _check_term(text: str, root: ast.ExpressionBase) -> None:
    """Refuse what has no meaning as a term, or none where a field is null."""
    whole = root.right if _negated(root) else root  # `not in` is `in` within a `not`
    loops = [node for node in _all(root) if isinstance(node, ast.ComprehensionExpression)]
    in_loops = {id(node) for loop in loops for node in _all(loop)}
    for node in _all(root):
        for refused, (sentence, remedy) in _NOT_IN_TERMS.items():
            if isinstance(node, refused):
                raise RuleError(sentence, remedy)
        if type(node) is ast.ComparisonExpression:
            _check_comparison(node)
        comparison = isinstance(node, (ast.ComparisonExpression, ast.ContainsExpression))
        if comparison and node is not whole and id(node) not in in_loops:
            raise RuleError("a comparison within a term", "write the comparison by itself, with `not` before it")
        if isinstance(node, ast.ComprehensionExpression) and _of_records(node.iterable):
            raise RuleError("a list comprehension over records", "write `any(...)`, `none(...)` or `count(...)`")
    if DataType.is_type(root.result_type, DataType.OBJECT):
        raise RuleError(f"`{text}` is a whole record", "name a field of it")
    if isinstance(root, ast.LiteralExpressionBase) and not isinstance(root, ast.BooleanExpression):
        raise RuleError(f"`{text}` is no condition", "compare it with a field")


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


def _of_null(root: ast.ExpressionBase) -> Truth:
    """The value of a term if a field that it reads is null; None: the term tests for null."""
    if type(root) is ast.ComparisonExpression and _tests_null(root):
        return None
    if type(root) in (ast.ComparisonExpression, ast.FuzzyComparisonExpression):
        return root.type in ("ne", "ne_fzm", "ne_fzs")
    return _negated(root)


def _membership(node: ast.ExpressionBase) -> Callable[[Any], bool] | None:
    """`rank in job.group.cycle` without the library, which takes 17 us for each of thousands of ranks."""
    if not isinstance(node, ast.ContainsExpression):
        return None
    member, container = _path(node.member), _path(node.container)
    if member is None or container is None or member[0] in thresholds.names():
        return None
    return lambda thing: value(thing, member) in value(thing, container)


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
    for name in dict.fromkeys((*getattr(node, "__dict__", ()), *slots)):
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


def _negated(node: ast.ExpressionBase) -> bool:
    return isinstance(node, ast.UnaryExpression) and node.type == "not"


def _of_records(node: ast.ExpressionBase) -> bool:
    kind = DataType.NULLABLE.unwrap(node.result_type)
    return bool(DataType.is_type(kind, DataType.ARRAY) and DataType.is_type(kind.value_type, DataType.OBJECT))


def _name(node: ast.ExpressionBase) -> str:
    path = _path(node)
    return ".".join(path) if path else "the value"
