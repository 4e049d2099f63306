"""The hosts of a job, as a person lists all of them beside its size: host k has the ranks k*n to k*n+n-1.

`16 x H100 (nodes g1, g2)`, `2 nodes (c13 c14), 16 ranks`, `gn21-gn23, 4 ranks each`. Slurm and torch's rendezvous
(`_mark_rendezvous_complete` in torch/distributed/elastic/rendezvous/dynamic_rendezvous.py) number the nodes in the
order of their names, and people list them so. A list in another order says nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hangdoc.postmortem.readers._host_names import hosts_in_set, written_number
from hangdoc.postmortem.readers._placement.tokens import may_be_host

MAX_LINE = 400  # characters
MAX_HOSTS = 1024
MAX_PER_HOST = 1024
MAX_LISTS = 16

_NAME = r"(?:[A-Za-z][\w-]{0,40}\d|[a-z][a-z0-9]{1,14}-[a-z])(?![\w-]|\.\w)"
_SPAN = (
    r"[A-Za-z][\w-]{0,40}?\d{1,4} ?(?:-|\u2013|\.\.\.?|to) ?[A-Za-z][\w-]{0,40}?\d{1,4}(?![\w.-])"
    r"|[A-Za-z][\w-]{0,40}\[\d{1,4}-\d{1,4}\]"
)
_LIST = rf"(?:{_NAME}(?:(?:,? and | ?[,+&/] ?| ){_NAME}){{1,63}}|{_SPAN})"
_PLACES = r"(?:nodes|hosts|machines|servers|boxes|vms|workstations|pods)"
_COUNTED = re.compile(
    rf"(?<![\w.-])(?P<count>\d{{1,4}}|two|three|four|six|eight)[ -]{_PLACES} ?(?:[(:=,]|are|on)? ?(?P<hosts>{_LIST})",
    re.IGNORECASE,
)
_NAMED = re.compile(rf"\b(?:{_PLACES}|hostfile|node ?list)[ :=]{{1,3}}(?P<hosts>{_LIST})", re.IGNORECASE)
_UNIT = r"(?:gpus?|ranks?|procs?|processes|tasks?|workers?|gcds?)"
_EACH = re.compile(
    rf"(?P<hosts>{_LIST}) ?[,(:] ?(?P<size>\d{{1,4}}) ?(?:x )?(?:{_UNIT} ?)?(?:each\b|(?:per|/) ?node\b|per host\b)",
    re.IGNORECASE,
)
_RULE = re.compile(r"\brank ?= ?(?P<size>\d{1,4}) ?\* ?(?:host|node|machine)\w{0,8} ?\+", re.IGNORECASE)
_TOTAL = re.compile(
    rf"(?<![\w.:/x*-])(?<![x*\u00d7] )(?P<total>\d{{1,5}}) ?(?:x |\u00d7 ?)?(?:(?:cpu|gpu|ddp|fsdp) )?"
    rf"(?:{_UNIT}|[abh]\d{{2,3}}s?|mi\d{{3}}x?|l40s?)"
    r"(?![\w.-])(?! ?(?:each|per|a|/|on each|on every)\b)|(?:^|\s)-np? (?P<started>\d{1,5})(?=[\s,]|$)",
    re.IGNORECASE,
)
_ENDS = re.compile(
    r"(?P<stem>[A-Za-z][\w-]{0,40}?)\[?(?P<first>\d{1,4}) ?(?:-|\u2013|\.\.\.?|to) ?"
    r"(?P<last>(?:[A-Za-z][\w-]{0,40}?)?\d{1,4})\]?"
)


@dataclass(slots=True)
class JobHosts:
    """Takes the lines of a text in order."""

    sizes: set[int] = field(default_factory=set)  # ranks on each host
    _lists: set[tuple[str, ...]] = field(default_factory=set)

    def feed(self, text: str) -> None:
        if len(text) > MAX_LINE or len(self._lists) >= MAX_LISTS or not re.search(r"\d", text):
            return
        totals = {int(found["total"] or found["started"]) for found in _TOTAL.finditer(text)}
        if (each := _EACH.search(text)) and (hosts := _hosts(each["hosts"])):
            self._add(hosts, int(each["size"]))
        for found in _COUNTED.finditer(text):
            if (hosts := _hosts(found["hosts"])) and len(hosts) == written_number(found["count"]):
                self._add(hosts, _share(totals, len(hosts)))
        rule = _RULE.search(text)  # `rank = 4*host + local, hosts c1 c2 c3`
        for found in _NAMED.finditer(text):
            if (hosts := _hosts(found["hosts"])) and (
                size := int(rule["size"]) if rule else _share(totals, len(hosts))
            ):
                self._add(hosts, size)

    def _add(self, hosts: tuple[str, ...], size: int | None) -> None:
        self._lists.add(hosts)
        if size is not None and 0 < size <= MAX_PER_HOST:
            self.sizes.add(size)

    @property
    def hosts(self) -> tuple[str, ...]:
        """All hosts of the job; empty: not stated, or in several ways."""
        return next(iter(self._lists)) if len(self._lists) == 1 else ()


def _share(totals: set[int], hosts: int) -> int | None:
    """The ranks on each of so many hosts; None: the line does not say how many ranks there are."""
    total = next(iter(totals)) if len(totals) == 1 else 0
    return total // hosts if total and total % hosts == 0 else None


def _hosts(text: str) -> tuple[str, ...]:
    """The hosts in a list; empty: it is not in the order of its names, or they are none."""
    if ends := _ENDS.fullmatch(text):
        first, last = ends["first"], ends["last"].removeprefix(ends["stem"])
        names = hosts_in_set(f"{ends['stem']}[{first}-{last}]", MAX_HOSTS)
    else:
        names = tuple(re.split(r",? and | ?[,+&/] ?| ", text))
    in_order = len({*names}) == len(names) > 1 and sorted(names) == [*names]
    return names if in_order and all(map(may_be_host, names)) else ()
