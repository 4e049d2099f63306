"""Filters of templates: how a text names ranks, links, values and words that agree with them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jinja2.filters
from jinja2 import Undefined
from jinja2.exceptions import TemplateRuntimeError

from hangdoc.analysis.facts import where
from hangdoc.evidence.record import field_names
from hangdoc.formatting import capitalized, fold_hosts, fold_ranks, name_processes, percent, seconds, size

MAX_PAIRS = 8  # of ranks named in a text
MAX_TEXT = 20_000  # characters of a text
MAX_DIGITS = 9  # after the decimal point


def declared(thing: Any) -> Collection[str]:
    """The fields of a record that a template may read."""
    kind: Any = type(thing)
    return field_names(kind)


def show(value: Any) -> Any:
    """Text of an expression without a filter."""
    return "unknown" if value is None else _text(value) if isinstance(value, float) else _plain(value)


def _plain(value: Any) -> Any:
    """The value, if a text may show it; a whole object, such as a rank, would be endless text."""
    for one in value if isinstance(value, (tuple, list)) else (value,):
        if not isinstance(one, (str, int, float, Undefined, type(None))):
            raise TemplateRuntimeError(f"a text cannot show a whole {type(one).__name__}: name a field of it")
    return value


def _rank_list(ranks: Iterable[Any]) -> str:
    """`0-1,7`."""
    return fold_ranks(r.rank for r in ranks if r.rank is not None and r.rank >= 0)


def _pids(ranks: Iterable[Any]) -> str:
    """`4276 4278`, as arguments of kill."""
    return " ".join(str(r.pid) for r in ranks if r.pid is not None)


def _hosts(ranks: Iterable[Any]) -> str:
    return fold_hosts(r.host for r in ranks if r.host is not None)


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
    """The lines of the user's code where the ranks are; of a rank that has ended, where it was last seen."""
    known = dict.fromkeys(site for rank in ranks if (site := rank.stack.site or rank.exit.site))
    return ", ".join(known) or "an unknown line"


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
        if site := where(rank):
            doing = f"{doing} at {site}"
        elif rank.exit.site:
            doing = f"{doing}, last seen at {rank.exit.site}"
        groups.setdefault(doing, []).append(rank)
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
            if value is not None and name not in declared(value):
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
    pieces, length = [], 0
    for value in values:
        pieces.append(str(_plain(value)))
        length += len(pieces[-1]) + len(between)
        if length > MAX_TEXT:
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
FILTERS: Mapping[str, Callable[..., Any]] = {
    **{name: jinja2.filters.FILTERS[name] for name in _KEPT},
    **{made.__name__: _of_text(made) for made in (str.lower, str.strip, str.upper)},
    "capitalize": _of_text(capitalized),
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
    "seconds": seconds,
    "bytes": size,
    "percent": percent,
}
