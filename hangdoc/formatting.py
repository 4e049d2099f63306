"""Formats values for people: folded ranks and hosts, durations, sizes, shares."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterable, Sequence
from typing import Protocol

_PLAIN_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")


def fold_ranks(ranks: Iterable[int]) -> str:
    """Folded integers: `0-2,5`; empty text if there are none."""
    runs: list[tuple[int, int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    return _folded(runs)


def _folded(runs: Iterable[tuple[int, int]]) -> str:
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def name_runs(runs: Sequence[tuple[int, int]]) -> str:
    """Ranges of ranks (first, last): `ranks 8-511`, `no rank`."""
    if not runs:
        return "no rank"
    return f"rank{'s' if len(runs) > 1 or runs[0][0] < runs[0][1] else ''} {_folded(runs)}"


def name_ranks(ranks: Iterable[int]) -> str:
    """`rank 2`, `ranks 0-1,7`, `no rank`."""
    distinct = set(ranks)
    if not distinct:
        return "no rank"
    return f"rank{'s' if len(distinct) > 1 else ''} {fold_ranks(distinct)}"


class Process(Protocol):
    """A process that may be a rank."""

    @property
    def rank(self) -> int | None:
        """Its number; -1 or None: unknown."""

    @property
    def pid(self) -> int | None:
        """Its PID; -1 or None: unknown."""

    @property
    def host(self) -> str | None:
        """Where it runs; None: unknown."""


def name_processes(processes: Iterable[Process]) -> str:
    """`rank 2`, `ranks 0-1,7 and pid 4276`, `host gpu07`, `no rank`: by PID if the rank is unknown.

    A suspect of which the text shows neither is a host.
    """
    found = list(processes)
    ranks = [one.rank for one in found if one.rank is not None and one.rank >= 0]
    nameless = [one for one in found if one.rank is None or one.rank < 0]
    pids = [str(one.pid) for one in nameless if one.pid is not None and one.pid >= 0]
    hosts = [one.host for one in nameless if one.rank is None and one.pid is None and one.host]
    named = [name_ranks(ranks)] if ranks or not found else []
    if pids:
        named.append(f"pid{'s' if len(pids) > 1 else ''} {', '.join(pids)}")
    if hosts:
        distinct = list(dict.fromkeys(hosts))
        named.append(f"host{'s' if len(distinct) > 1 else ''} {', '.join(distinct)}")
    if unknown := len(nameless) - len(pids) - len(hosts):  # from a dump without rank and PID
        named.append("an unnamed process" if unknown == 1 else f"{unknown} unnamed processes")
    return " and ".join(named)


def capitalized(text: str) -> str:
    """The text with a capital first letter; names of hosts in it keep theirs."""
    return text[:1].upper() + text[1:]


def endpoint(address: str, port: int) -> str:
    """`10.0.0.1:29500`, `[fe80::1]:29500`."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def fold_hosts(hosts: Iterable[str]) -> str:
    """Folded host names: `node[01-16]`. Names that contain ClusterShell syntax are only joined."""
    names = sorted(set(hosts))
    if len(names) > 1 and all(map(_PLAIN_HOST.match, names)):
        try:
            nodes = importlib.import_module("ClusterShell.NodeSet")
        except ImportError:  # folding is optional
            return ",".join(names)
        return str(nodes.NodeSet.fromlist(names, resolver=nodes.RESOLVER_NOGROUP))
    return ",".join(names)


def seconds(value: float | None) -> str:
    """A duration: `0.4 s`, `41 s`, `3 min 20 s`, `2 h`, `2 h 5 min`, `3 d 4 h`; None: `an unknown time`."""
    if value is None or math.isnan(value):
        return "an unknown time"
    sign, value = ("-", -value) if value < 0 else ("", float(value))
    if value == float("inf"):
        return f"{sign}forever"
    if 0 < value < 0.0095:
        return f"{sign}{value * 1e3:.1f} ms"
    if value < 0.995:
        return f"{sign}{value * 1e3:.0f} ms" if value else "0 s"
    if value < 9.95:
        return f"{sign}{value:.1f}".removesuffix(".0") + " s"
    whole = round(value)
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    # The two largest units.
    start = next(i for i, (_, size) in enumerate(units) if whole >= size)
    if whole < 60:
        return f"{sign}{whole} s"
    (big, size), (small, part) = units[start], units[start + 1]
    rest = whole % size // part
    return f"{sign}{whole // size} {big}" + (f" {rest} {small}" if rest else "")


def size(value: float | None) -> str:
    """A size in bytes: `0 B`, `512 B`, `1.2 MiB`; None: `an unknown size`."""
    if value is None or math.isnan(value):
        return "an unknown size"
    value = float(value)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1023.5 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or abs(value) >= 99.95 else f"{value:.1f} {unit}".replace(".0 ", " ")


def percent(value: float | None) -> str:
    """A share (0 to 1): `37 %`; None: `an unknown share`."""
    if value is None or math.isnan(value):
        return "an unknown share"
    points = value * 100
    return f"{points:.1f} %" if 0 < abs(points) < 0.95 else f"{points:.0f} %"


def suggestion(name: str, known: Iterable[str], more: Iterable[str] = ()) -> str:
    """The remedy for an unknown name: the nearest one of `known` and `more`, or all of `known`."""
    from difflib import get_close_matches  # rarely needed

    names = sorted(known)
    near = get_close_matches(name, (*names, *more), n=1)
    return f"did you mean `{near[0]}`?" if near else f"known are {', '.join(names) or 'none'}"
