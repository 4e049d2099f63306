"""The texts of findings: jinja2 templates, sandboxed, over a playbook's selections and the job's groups.

Users bring their own playbooks. A template reads only declared fields of facts, however it computes their names. It has
`if`, `for` without nesting, and the filters listed here. Its text is cut at MAX_TEXT.

Names and fields are checked when a playbook is loaded. The renderers escape for terminal and HTML.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache, wraps
from typing import Any

from jinja2 import StrictUndefined, Template, Undefined, filters, nodes
from jinja2.exceptions import TemplateError, TemplateRuntimeError
from jinja2.runtime import LoopContext
from jinja2.sandbox import SandboxedEnvironment
from jinja2.tests import TESTS

from hangdoc import formatting
from hangdoc.formatting import name_processes, suggestion
from hangdoc.rules import time_limit

Scope = Mapping[str, Any]
Types = Mapping[str, Any]  # type hints of the names in a template

MAX_PAIRS = 8  # of ranks named in a text
MAX_TEXT = 20_000  # characters of a text
MAX_NESTING = 40  # levels; `a|first|string` has three
MAX_DIGITS = 9  # after the decimal point

# Allowed nodes: nothing that grows without bound (`*`, `%`, `set`), calls, defines or includes.
_ALLOWED = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.Const, nodes.Name, nodes.Getattr, nodes.Getitem,
    nodes.Filter, nodes.Keyword, nodes.Test, nodes.If, nodes.For, nodes.CondExpr, nodes.Compare, nodes.Operand,
    nodes.And, nodes.Or, nodes.Not, nodes.Add, nodes.Sub, nodes.Div, nodes.FloorDiv, nodes.Neg, nodes.Pos,
    nodes.List, nodes.Tuple,
)  # fmt: skip
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
        undefined=StrictUndefined, autoescape=False, finalize=_show, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals = {}
    environment.filters = {name: _timed(made) for name, made in _FILTERS.items()}
    environment.tests = {name: TESTS[name] for name in _TESTS}
    return environment


class _Environment(SandboxedEnvironment):
    """Gives access to declared fields of facts and to members of lists, and to nothing else."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if attribute in _declared(obj) or (isinstance(obj, LoopContext) and attribute in _OF_LOOPS):
            return getattr(obj, attribute)
        return self.undefined(obj=obj, name=attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, str):  # `map(attribute=...)`
            return self.getattr(obj, argument)
        if isinstance(argument, int) and isinstance(obj, (tuple, list, str)) and -len(obj) <= argument < len(obj):
            return obj[argument]
        return self.undefined(obj=obj, name=argument)


def _declared(thing: Any) -> Collection[str]:
    return getattr(type(thing), "__dataclass_fields__", ())


def _timed(made: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that first checks the CPU time."""

    @wraps(made)
    def timed(*arguments: Any, **named: Any) -> Any:
        time_limit.check()
        return made(*arguments, **named)

    return timed


def _show(value: Any) -> Any:
    """Text of an expression without a filter."""
    return "unknown" if value is None else _text(value) if isinstance(value, float) else _plain(value)


def _plain(value: Any) -> Any:
    """The value, if a text may show it; a whole object, such as a rank, would be endless text."""
    for one in value if isinstance(value, (tuple, list)) else (value,):
        if not isinstance(one, (str, int, float, Undefined, type(None))):
            raise TemplateRuntimeError(f"a text cannot show a whole {type(one).__name__}: name a field of it")
    return value


# --- filters --------------------------------------------------------------------------------------


def _rank_list(ranks: Iterable[Any]) -> str:
    """`0-1,7`."""
    return formatting.fold_ranks(r.rank for r in ranks if r.rank >= 0)


def _pids(ranks: Iterable[Any]) -> str:
    """`4276 4278`, as arguments of kill."""
    return " ".join(str(r.pid) for r in ranks)


def _hosts(ranks: Iterable[Any]) -> str:
    return formatting.fold_hosts(r.host for r in ranks)


def _attr(values: Iterable[Any], path: str, digits: int | None = None) -> str:
    """The distinct values of a dotted field, joined; numbers with `digits` after the decimal point."""
    return ", ".join(dict.fromkeys(_text(v, digits) for v in _values(values, path) if v is not None)) or "unknown"


def _links(links: Iterable[Any]) -> str:
    """`ranks 0 and 1, rank 1 and 10.0.0.9`: both ends of each link; the first MAX_PAIRS, and the number of others."""
    pairs = dict.fromkeys(
        tuple(sorted(_ends(link), key=lambda end: (not end.isdecimal(), len(end), end))) for link in links
    )
    named = [f"ranks {one} and {other}" if other.isdecimal() else f"{_end(one)} and {other}" for one, other in pairs]
    return _some(named) or "no link"


def _ways(links: Iterable[Any]) -> str:
    """`from rank 0 to rank 1, from rank 2 to rank 1`: directions of the links."""
    pairs = dict.fromkeys(_ends(link) for link in links)
    return _some([f"from {_end(one)} to {_end(other)}" for one, other in pairs]) or "nowhere"


def _some(texts: Sequence[str]) -> str:
    more = len(texts) - MAX_PAIRS
    return ", ".join((*texts[:MAX_PAIRS], f"and {more} more pairs") if more > 1 else texts)


def _end(name: str) -> str:
    return f"rank {name}" if name.isdecimal() else name


def _ends(link: Any) -> tuple[str, str]:
    """Rank at each end of a link, or its address if the rank is unknown."""
    known = ((link.from_rank, link.local), (link.to_rank, link.remote))
    one, other = (str(rank) if rank >= 0 else address.rpartition(":")[0] or "?" for rank, address in known)
    return one, other


def _sites(ranks: Iterable[Any]) -> str:
    return _attr(ranks, "stack.site")


def _by(ranks: Iterable[Any], path: str, digits: int | None = None) -> str:
    """`20 on ranks 0-1, 15 on rank 2`: values of a dotted field by rank."""
    groups: dict[str, list[Any]] = {}
    for rank in ranks:
        (value,) = _values([rank], path)
        if value is not None:
            groups.setdefault(_text(value, digits), []).append(rank)
    return ", ".join(f"{value} on {name_processes(group)}" for value, group in groups.items()) or "unknown"


def _standing(ranks: Iterable[Any]) -> str:
    """`all_reduce at train (train.py:24)`; where ranks differ, what each of them is in."""
    groups: dict[str, list[Any]] = {}
    for rank in ranks:
        doing = rank.stack.op or rank.stack.phase
        groups.setdefault(f"{doing} at {rank.stack.site}" if rank.stack.site else doing, []).append(rank)
    if len(groups) == 1:
        return next(iter(groups))
    return ", ".join(f"{doing} on {name_processes(group)}" for doing, group in groups.items())


_PLURALS = {"is": "are", "was": "were", "has": "have", "does": "do"}


def _verb(ranks: Iterable[Any], verb: str) -> str:
    """The verb (`is`, `was`, `has`, `wait`) as it agrees with the ranks: `rank 2 waits`, `ranks 0-1 wait`."""
    many = len(list(ranks)) != 1
    if verb in _PLURALS:
        return _PLURALS[verb] if many else verb
    if not many and verb.endswith("y") and verb[-2:-1] not in "aeiou":
        return f"{verb[:-1]}ies"
    return verb if many else f"{verb}es" if verb.endswith(("s", "sh", "ch", "x", "z", "o")) else f"{verb}s"


def _plural(ranks: Iterable[Any], singular: str, plural: str) -> str:
    """The word for one rank, or that for several: `it`, `them`."""
    return plural if len(list(ranks)) != 1 else singular


def _values(things: Iterable[Any], path: str) -> Iterator[Any]:
    for thing in things:
        value = thing
        for name in path.split("."):
            if value is not None and name not in _declared(value):
                raise TemplateRuntimeError(f"unknown field `{name}` in '{path}'")
            value = None if value is None else getattr(value, name)
        yield value


def _text(value: Any, digits: int | None = None) -> str:
    if isinstance(value, float):
        if digits is not None:
            return f"{value:.{max(0, min(int(digits), MAX_DIGITS))}f}"
        return f"{value:.0f}" if value.is_integer() else f"{value:.3g}"
    return ", ".join(map(_text, value)) if isinstance(value, tuple) else str(_plain(value))


def _join(values: Iterable[Any], between: str = "") -> str:
    pieces, size = [], 0
    for value in values:
        pieces.append(str(_plain(value)))
        size += len(pieces[-1]) + len(between)
        if size > MAX_TEXT:
            raise TemplateRuntimeError(f"join: longer than {MAX_TEXT} characters")
    return between.join(pieces)


def _replace(value: Any, old: str, new: str) -> str:
    text = str(_plain(value))
    if len(text) + text.count(old) * len(new) > MAX_TEXT:
        raise TemplateRuntimeError(f"replace: longer than {MAX_TEXT} characters")
    return text.replace(str(old), str(new))


def _round(number: float | None, digits: int = 0) -> float | None:
    return None if number is None else round(float(number), max(0, min(int(digits), MAX_DIGITS)))


def _first(values: Iterable[Any]) -> Any:
    """The first value; None if there is none, which a text shows as "unknown"."""
    return next(iter(values), None)


def _last(values: Sequence[Any]) -> Any:
    return values[-1] if values else None


def _min(values: Iterable[Any]) -> Any:
    return min((value for value in values if value is not None), default=None)


def _max(values: Iterable[Any]) -> Any:
    return max((value for value in values if value is not None), default=None)


def _of_text(made: Callable[[str], str]) -> Callable[[Any], str]:
    return lambda value: made(str(_plain(value)))


# Filters of jinja2 with a result no longer than their input.
_KEPT = (
    "abs", "count", "default", "length", "list", "map", "reject", "rejectattr", "select",
    "selectattr", "sort", "sum", "unique",
)  # fmt: skip
_TESTS = ("defined", "eq", "equalto", "false", "ge", "gt", "in", "le", "lt", "ne", "none", "true", "undefined")
_FILTERS: Mapping[str, Callable[..., Any]] = {
    **{name: filters.FILTERS[name] for name in _KEPT},
    **{made.__name__: _of_text(made) for made in (str.capitalize, str.lower, str.strip, str.upper)},
    "first": _first,
    "last": _last,
    "min": _min,
    "max": _max,
    "join": _join,
    "replace": _replace,
    "round": _round,
    "ranks": name_processes,
    "rank_list": _rank_list,
    "pids": _pids,
    "hosts": _hosts,
    "links": _links,
    "ways": _ways,
    "sites": _sites,
    "standing": _standing,
    "verb": _verb,
    "plural": _plural,
    "attr": _attr,
    "by": _by,
    "seconds": formatting.seconds,
    "bytes": formatting.size,
    "percent": formatting.percent,
}


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
    """The dataclass of a type hint, optional or not."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next((one for one in typing.get_args(hint) if one is not type(None)), None)
    return hint if isinstance(hint, type) and is_dataclass(hint) else None


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
