"""The texts of findings: jinja2 templates, sandboxed, over a playbook's selections and the job's groups.

Users bring their own playbooks. A template reads only declared fields of facts, however it computes their names. It has
`if`, `for` without nesting, and the filters of `filters`. Its text is cut at MAX_TEXT.

Names and fields are checked when a playbook is loaded. The renderers escape for terminal and HTML.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache, wraps
from typing import Any

from jinja2 import StrictUndefined, Template, nodes
from jinja2.exceptions import TemplateError
from jinja2.runtime import LoopContext
from jinja2.sandbox import SandboxedEnvironment
from jinja2.tests import TESTS

from hangdoc.evidence.record import field_names
from hangdoc.formatting import suggestion
from hangdoc.rules import time_limit
from hangdoc.rules.filters import FILTERS, MAX_TEXT, declared, show

Scope = Mapping[str, Any]
Types = Mapping[str, Any]  # type hints of the names in a template

MAX_NESTING = 40  # levels; `a|first|string` has three

# Allowed nodes: nothing that grows without bound (`*`, `%`, `set`), calls, defines or includes.
_ALLOWED = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.Const, nodes.Name, nodes.Getattr, nodes.Getitem,
    nodes.Filter, nodes.Keyword, nodes.Test, nodes.If, nodes.For, nodes.CondExpr, nodes.Compare, nodes.Operand,
    nodes.And, nodes.Or, nodes.Not, nodes.Add, nodes.Sub, nodes.Div, nodes.FloorDiv, nodes.Neg, nodes.Pos,
    nodes.List, nodes.Tuple,
)  # fmt: skip
_TESTS = ("defined", "eq", "equalto", "false", "ge", "gt", "in", "le", "lt", "ne", "none", "true", "undefined")
_OF_LOOPS = ("first", "index", "index0", "last", "length")  # fields of `loop`


class Text:
    """A template, compiled at its first use: most are never used, and compiling all takes a second."""

    __slots__ = ("_source", "_template")

    def __init__(self, source: str) -> None:
        self._source = source
        self._template: Template | None = None

    def render(self, scope: Scope) -> str:
        """The text on one line; raises TooSlow, TemplateError, and any error of a filter on unsuitable values."""
        if self._template is None:
            self._template = _environment().from_string(self._source)
        pieces, left = [], MAX_TEXT
        for piece in self._template.generate(scope):
            time_limit.check()
            pieces.append(piece if len(piece) <= left else f"{piece[:left]} ...")
            left -= len(piece)
            if left < 0:
                break
        return " ".join("".join(pieces).split())


def check(text: str, names: Types) -> tuple[str, ...]:
    """One sentence for each unknown name or field, or for the syntax error."""
    tree = _parsed(text)
    return (tree,) if isinstance(tree, str) else tuple(_refused(tree)) or tuple(_check(tree, names))


def reads(text: str, name: str) -> bool:
    """True if the template reads the name, or cannot be parsed."""
    tree = _parsed(text)
    return isinstance(tree, str) or any(node.name == name for node in tree.find_all(nodes.Name))


def _parsed(text: str) -> nodes.Template | str:
    """The tree, or a sentence about the syntax error."""
    try:
        return _environment().parse(text)
    except TemplateError as error:
        return str(error)
    except (RecursionError, ValueError) as error:
        return f"cannot be parsed: {error}"


def _refused(tree: nodes.Template) -> Iterator[str]:
    """One sentence for each construct that is not allowed."""
    refusals = set()
    level: list[tuple[nodes.Node, bool]] = [(tree, False)]
    for _ in range(MAX_NESTING):
        for node, _ in level:
            if not isinstance(node, _ALLOWED) or (isinstance(node, nodes.For) and node.recursive):
                refusals.add(
                    f"`{type(node).__name__.lower()}` is not allowed in playbooks; use names, fields and filters"
                )
        if any(inside and isinstance(node, nodes.For) for node, inside in level):
            refusals.add("nested `for`; use a filter for one of the two")
        level = [
            (child, inside or isinstance(node, nodes.For))
            for node, inside in level
            for child in node.iter_child_nodes()
        ]
    if level:
        refusals.add("is nested too deeply; see the built-in playbooks")
    yield from sorted(refusals)


def _check(tree: nodes.Template, names: Types) -> Iterator[str]:
    local = {node.name for node in tree.find_all(nodes.Name) if node.ctx != "load"}
    loaded = {node.name for node in tree.find_all(nodes.Name) if node.ctx == "load"}
    for name in sorted(loaded - local - {"loop", *_environment().globals, *names}):
        yield f"unknown name `{name}`; {suggestion(name, names)}"
    known = {name: hint for name, hint in names.items() if name not in local}
    for attribute in tree.find_all(nodes.Getattr):
        of = _hint(attribute.node, known)
        if _kind(of) is not None and _field(of, attribute.attr) is None:
            yield f"unknown field `{attribute.attr}`; {suggestion(attribute.attr, _fields(of))}"
        elif _member(of) is not None:
            yield f"`.{attribute.attr}` of several: use the filter attr('{attribute.attr}')"
    for test in tree.find_all(nodes.Test):
        if test.name not in _environment().tests:
            yield f"unknown test `{test.name}`; {suggestion(test.name, _environment().tests)}"
    for filtered in tree.find_all(nodes.Filter):
        if filtered.name not in _environment().filters:
            yield f"unknown filter `{filtered.name}`; {suggestion(filtered.name, _environment().filters)}"
        if filtered.name in ("attr", "by") and filtered.args and isinstance(filtered.args[0], nodes.Const):
            yield from _check_path(str(filtered.args[0].value), _member(_hint(filtered.node, known)))


@cache
def _environment() -> SandboxedEnvironment:
    environment = _Environment(
        undefined=StrictUndefined, autoescape=False, finalize=show, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals = {}
    environment.filters = {name: _timed(made) for name, made in FILTERS.items()}
    environment.tests = {name: TESTS[name] for name in _TESTS}
    return environment


class _Environment(SandboxedEnvironment):
    """Gives access to declared fields of facts and to members of lists, and to nothing else."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if attribute in declared(obj) or (isinstance(obj, LoopContext) and attribute in _OF_LOOPS):
            return getattr(obj, attribute)
        return self.undefined(obj=obj, name=attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, str):  # `map(attribute=...)`
            return self.getattr(obj, argument)
        if isinstance(argument, int) and isinstance(obj, (tuple, list, str)) and -len(obj) <= argument < len(obj):
            return obj[argument]
        return self.undefined(obj=obj, name=argument)


def _timed(made: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that first checks the CPU time."""

    @wraps(made)
    def timed(*arguments: Any, **named: Any) -> Any:
        time_limit.check()
        return made(*arguments, **named)

    return timed


# --- types of template expressions ----------------------------------------------------------------


def _hint(node: nodes.Node | None, names: Types) -> Any:
    """Type hint of a template expression; None: unknown."""
    if isinstance(node, nodes.Name):
        return names.get(node.name)
    if isinstance(node, nodes.Getattr):
        return _field(_hint(node.node, names), node.attr)
    if isinstance(node, nodes.Getitem):
        return _member(_hint(node.node, names))
    if isinstance(node, nodes.Filter) and node.name in ("first", "last"):
        return _member(_hint(node.node, names))
    return None


def _check_path(path: str, of: Any) -> Iterator[str]:
    for name in path.split("."):
        if _kind(of) is None:
            return
        before, of = of, _field(of, name)
        if of is None:
            yield f"unknown field `{name}` in '{path}'; {suggestion(name, _fields(before))}"
            return


def _kind(hint: Any) -> type | None:
    """The record or dataclass of a type hint, optional or not."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next((one for one in typing.get_args(hint) if one is not type(None)), None)
    return hint if isinstance(hint, type) and field_names(hint) else None


def _member(hint: Any) -> Any:
    """Type hint of the members of `tuple[X, ...]`."""
    return next(iter(typing.get_args(hint)), None) if typing.get_origin(hint) is tuple else None


def _fields(hint: Any) -> Mapping[str, Any]:
    """Fields of the dataclass of a type hint, with their hints."""
    kind: Any = _kind(hint)
    return _hints(kind) if kind else {}


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    return typing.get_type_hints(kind)


def _field(hint: Any, name: str) -> Any:
    return _fields(hint).get(name)
