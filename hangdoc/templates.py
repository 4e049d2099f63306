"""The texts of findings: jinja2 templates, sandboxed, over a playbook's selections and the job's groups.

Names and fields are checked when a playbook is loaded. Escaping for terminal and HTML is the renderers' work.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from typing import Any

from jinja2 import StrictUndefined, Template, nodes
from jinja2.exceptions import TemplateError
from jinja2.sandbox import SandboxedEnvironment

from hangdoc import fold

Scope = Mapping[str, Any]
Types = Mapping[str, Any]  # type hint of each name a template may use

MAX_PAIRS = 8  # of ranks that a text names


class Text:
    """A text of a playbook, compiled when it is first said: most never are, and compiling all takes a second."""

    __slots__ = ("_source", "_template")

    def __init__(self, source: str) -> None:
        self._source = source
        self._template: Template | None = None

    def render(self, scope: Scope) -> str:
        """The text on one line; raises TemplateError and what a filter raises on values it cannot take."""
        if self._template is None:
            self._template = _environment().from_string(self._source)
        return " ".join(self._template.render(scope).split())


def check(text: str, names: Types) -> tuple[str, ...]:
    """A sentence for each name or field in a text that does not exist, or why it cannot be parsed."""
    try:
        return tuple(_check(_environment().parse(text), names))
    except TemplateError as error:
        return (str(error),)


def _check(tree: nodes.Template, names: Types) -> Iterator[str]:
    local = {node.name for node in tree.find_all(nodes.Name) if node.ctx != "load"}
    loaded = {node.name for node in tree.find_all(nodes.Name) if node.ctx == "load"}
    for name in sorted(loaded - local - {"loop", *_environment().globals, *names}):
        yield f"unknown name `{name}`; {_suggest(name, names)}"
    known = {name: hint for name, hint in names.items() if name not in local}
    for attribute in tree.find_all(nodes.Getattr):
        of = _hint(attribute.node, known)
        if _kind(of) is not None and _field(of, attribute.attr) is None:
            yield f"unknown field `{attribute.attr}`; {_suggest(attribute.attr, _fields(of))}"
        elif _member(of) is not None:
            yield f"`.{attribute.attr}` of several: use the filter attr('{attribute.attr}')"
    for test in tree.find_all(nodes.Test):
        if test.name not in _environment().tests:
            yield f"unknown test `{test.name}`; {_suggest(test.name, _environment().tests)}"
    for filtered in tree.find_all(nodes.Filter):
        if filtered.name not in _environment().filters:
            yield f"unknown filter `{filtered.name}`; {_suggest(filtered.name, _environment().filters)}"
        if filtered.name in ("attr", "by") and filtered.args and isinstance(filtered.args[0], nodes.Const):
            yield from _check_path(str(filtered.args[0].value), _member(_hint(filtered.node, known)))


@cache
def _environment() -> SandboxedEnvironment:
    environment = SandboxedEnvironment(
        undefined=StrictUndefined, autoescape=False, finalize=_show, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(_FILTERS)
    return environment


def _show(value: Any) -> Any:
    """What an expression that was not piped through a filter looks like."""
    return "unknown" if value is None else _text(value) if isinstance(value, float) else value


# --- filters --------------------------------------------------------------------------------------


def _ranks(ranks: Iterable[Any]) -> str:
    """`rank 2`, `ranks 0-1,7`; by PID where the rank's number is not known."""
    found = list(ranks)
    known = [r.rank for r in found if r.rank >= 0]
    nameless = [r.pid for r in found if r.rank < 0]
    pids = [str(pid) for pid in nameless if pid >= 0]
    named = [fold.name_ranks(known)] if known or not nameless else []
    if pids:
        named.append(f"pid {', '.join(pids)}")
    if unknown := len(nameless) - len(pids):  # of a dump that does not say whose it is
        named.append("an unnamed process" if unknown == 1 else f"{unknown} unnamed processes")
    return " and ".join(named)


def _rank_list(ranks: Iterable[Any]) -> str:
    """`0-1,7`."""
    return fold.fold_ranks(r.rank for r in ranks if r.rank >= 0)


def _pids(ranks: Iterable[Any]) -> str:
    """`4276 4278`, as kill takes them."""
    return " ".join(str(r.pid) for r in ranks)


def _hosts(ranks: Iterable[Any]) -> str:
    return fold.fold_hosts(r.host for r in ranks)


def _attr(values: Iterable[Any], path: str, digits: int | None = None) -> str:
    """The distinct values of a dotted field, joined; numbers with so many digits after the point."""
    return ", ".join(dict.fromkeys(_text(v, digits) for v in _values(values, path) if v is not None)) or "unknown"


def _links(links: Iterable[Any]) -> str:
    """`ranks 0 and 1, rank 1 and 10.0.0.9`: whom the links join; of many the first, and how many more there are."""
    pairs = dict.fromkeys(
        tuple(sorted(_ends(link), key=lambda end: (not end.isdecimal(), len(end), end))) for link in links
    )
    told = [f"ranks {one} and {other}" if other.isdecimal() else f"{_end(one)} and {other}" for one, other in pairs]
    return _some(told) or "no link"


def _ways(links: Iterable[Any]) -> str:
    """`from rank 0 to rank 1, from rank 2 to rank 1`: who sends to whom over the links."""
    pairs = dict.fromkeys(_ends(link) for link in links)
    return _some([f"from {_end(one)} to {_end(other)}" for one, other in pairs]) or "nowhere"


def _some(texts: Sequence[str]) -> str:
    more = len(texts) - MAX_PAIRS
    return ", ".join((*texts[:MAX_PAIRS], f"and {more} more pairs") if more > 1 else texts)


def _end(name: str) -> str:
    return f"rank {name}" if name.isdecimal() else name


def _ends(link: Any) -> tuple[str, str]:
    """The ranks at the two ends of a link; of one that is not known the address."""
    known = ((link.from_rank, link.local), (link.to_rank, link.remote))
    one, other = (str(rank) if rank >= 0 else address.rpartition(":")[0] or "?" for rank, address in known)
    return one, other


def _sites(ranks: Iterable[Any]) -> str:
    return _attr(ranks, "stack.site")


def _by(ranks: Iterable[Any], path: str, digits: int | None = None) -> str:
    """`20 on ranks 0-1, 15 on rank 2`: who has which value of a dotted field."""
    groups: dict[str, list[Any]] = {}
    for rank in ranks:
        (value,) = _values([rank], path)
        if value is not None:
            groups.setdefault(_text(value, digits), []).append(rank)
    return ", ".join(f"{value} on {_ranks(group)}" for value, group in groups.items()) or "unknown"


def _values(things: Iterable[Any], path: str) -> Iterator[Any]:
    for thing in things:
        value = thing
        for name in path.split("."):
            value = None if value is None else getattr(value, name)
        yield value


def _text(value: Any, digits: int | None = None) -> str:
    if isinstance(value, float):
        if digits is not None:
            return f"{value:.{digits}f}"
        return f"{value:.0f}" if value.is_integer() else f"{value:.3g}"
    return ", ".join(map(_text, value)) if isinstance(value, tuple) else str(value)


_FILTERS: Mapping[str, Callable[..., str]] = {
    "ranks": _ranks,
    "rank_list": _rank_list,
    "pids": _pids,
    "hosts": _hosts,
    "links": _links,
    "ways": _ways,
    "sites": _sites,
    "attr": _attr,
    "by": _by,
    "seconds": fold.seconds,
    "bytes": fold.size,
    "percent": fold.percent,
}


# --- what a template may speak of -----------------------------------------------------------------


def _hint(node: nodes.Node | None, names: Types) -> Any:
    """Type hint of a template expression; None where it cannot be told."""
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
            yield f"unknown field `{name}` in '{path}'; {_suggest(name, _fields(before))}"
            return


def _kind(hint: Any) -> type | None:
    """The dataclass a hint stands for, also where it may be None."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next((one for one in typing.get_args(hint) if one is not type(None)), None)
    return hint if isinstance(hint, type) and is_dataclass(hint) else None


def _member(hint: Any) -> Any:
    """The hint of the members of `tuple[X, ...]`."""
    return next(iter(typing.get_args(hint)), None) if typing.get_origin(hint) is tuple else None


def _fields(hint: Any) -> Mapping[str, Any]:
    """The fields of the dataclass a hint stands for, with their hints."""
    kind: Any = _kind(hint)
    return _hints(kind) if kind else {}


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    return typing.get_type_hints(kind)


def _field(hint: Any, name: str) -> Any:
    return _fields(hint).get(name)


def _suggest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean `{near[0]}`?" if near else f"known are {', '.join(sorted(known))}"
