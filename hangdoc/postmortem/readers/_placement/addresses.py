"""Which host has which address, as a text states it: messages name a peer by its IP, MAC, LID, GUID or GID.

People add `arp says b8:59:9f:c0:11:5a is n31`, rows of /etc/hosts, `ip neigh`, `arp`, `getent`, `ibnetdiscover` or
`sinfo`, or the output of `ip addr`, `hostname -I` and `ibstat` below a prompt. An address of several hosts is
an address of none.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise

from hangdoc.postmortem.readers._host_context import HostContext, host_in_front
from hangdoc.postmortem.readers._host_names import NAME, prompt_of
from hangdoc.postmortem.readers._placement.tokens import may_be_host

MAX_LINE = 400  # characters
MAX_TOKENS = 16  # of a line
MAX_ADDRESSES = 20_000
MAX_ALIASES = 3  # addresses between an address and its host: LID -> GUID -> host

_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d{1,2})"
_IPV4 = rf"(?:::ffff:)?(?:{_OCTET}\.){{3}}{_OCTET}"
_MAC = r"(?:[\da-f]{2}[:-]){5}[\da-f]{2}"
_GUID = r"(?:0x)?[\da-f]{16}|(?:[\da-f]{4}:){3}[\da-f]{4}"
_GID = r"fe80(?::[\da-f]{0,4}){2,7}|(?:[\da-f]{1,4}:){7}[\da-f]{1,4}"
_ADDRESS = re.compile(
    rf"(?<![\w.:/-])(?:(?P<ip>{_IPV4})(?:/\d{{1,2}}|:\d{{1,5}}|<\d{{1,5}}>)?|(?P<mac>{_MAC})|(?P<gid>{_GID})"
    rf"|(?P<guid>{_GUID}))(?![\w.-]*\w)"
    r"|(?<![\w-])(?:base )?[rdsp]?lid[ :=#]{1,3}(?P<lid>(?:0x[\da-f]{1,4}|\d{1,5}))\b"
    rf"|(?<![\w./:$-])(?P<host>{NAME})(?![\w/]|\(\))",
    re.IGNORECASE,
)
_STRONG = (
    r"is|are|belongs? to|maps? to|resolves? to|points? to|has|had by|owns?|owned by|of|on|behind|means"
    r"|lladdr|hwaddr|ether"
)
_WEAK = (
    r"at|host(?:name)?|node|machine|server|box|named|called|ip|mac|guid|gid|lid|addr(?:ess)?|inet6?|the|its|hca|ports?"
    r"(?: \d{1,3})?|mlx\d_\d{1,2}|hca-\d|name|dev \w{1,15}|to"
)
_GAP = re.compile(rf"(?:[\s:=()\[\]|,~\"'@;\u2192>-]|\b(?:{_STRONG}|{_WEAK})\b){{1,48}}", re.IGNORECASE)
_LINKED = re.compile(rf"\b(?:{_STRONG})\b|=|->|\u2192|^\s?\(|\(\s?$", re.IGNORECASE)
_DOUBT = re.compile(r"\b(?:not|isn't|was|used to|old|formerly|maybe|probably|if|should)\b|\?", re.IGNORECASE)
_MESSAGE = re.compile(  # a line that a program logs, or that complains
    r"(?<![\w:])\d\d:\d\d:\d\d(?![\w:])|\b(?:NCCL|UCX|ERROR|WARN\w*|INFO|FATAL|failed|failure|closed|refused|reset"
    r"|lost|timed? ?out|retry|unreachable|cannot|can't|unable|no route|error|dead|down|connect\w*|ping|from|between)\b",
    re.IGNORECASE,
)
_NEIGHBOUR = re.compile(
    rf"\(?(?P<ip>{_IPV4})\)?(?: dev \S{{1,20}} lladdr| at|\s{{1,20}}ether)\s{{1,20}}(?P<mac>{_MAC})", re.IGNORECASE
)
# NCCL's transport/net_ib.cc: the address of a peer, and the GID of its port, where a line that was wrapped has a blank
_PEER = re.compile(
    rf"\bfrom peer (?P<ip>{_IPV4})<\d{{1,5}}>.{{0,160}}?\bremoteGids? ?(?P<gid>fe80(?:: ?[\da-f]{{0,4}}){{2,7}})",
    re.IGNORECASE,
)
# infiniband-diags' ibqueryerrors: a port with errors, below the name of its node: host and HCA
_NODE = re.compile(rf"\s{{0,8}}Errors for (?:0x[\da-f]{{16}} )?\"(?P<host>{NAME})(?: [^\"]{{1,40}})?\"\s{{0,4}}")
_PORT = re.compile(rf"\s{{1,12}}GUID (?P<guid>{_GUID}) port \d{{1,4}}:")
_REVERSE = re.compile(
    rf"(?P<ip>{_IPV4.replace('(?:::ffff:)?', '')})\.in-addr\.arpa\b.{{0,40}}?(?:name =|pointer) (?P<host>{NAME})"
)
_SLURM = re.compile(rf"\bNodeName=(?P<host>{NAME})\b.{{0,300}}?\bNodeAddr=(?P<address>{NAME})")
_OWN = re.compile(  # an address of the host that prints it
    rf"\binet6? (?:addr:)?(?P<ip>{_IPV4})\b|\blink/(?:ether|infiniband) (?P<mac>{_MAC})|\bether (?P<ether>{_MAC})"
    rf"|(?<!SM )\b(?:Base lid|lid|base_lid|port_lid): {{1,20}}(?P<lid>\d{{1,5}})\b"
    rf"|\b(?:Node|Port|CA|node_|port_)[ _]?GUID: {{1,20}}(?P<guid>{_GUID})"
    rf"|\b(?:Bootstrap|NET/Socket) ?: Using \S{{1,20}}:(?P<used>{_IPV4})<|\blocalGid (?P<gid>{_IPV4})\b"
    rf"|\bOOB \S{{1,20}}:(?P<oob>{_IPV4})<"
    # a row of ss: the local end of a socket
    r"|^(?:tcp {1,8})?(?:LISTEN|ESTAB|SYN-SENT|(?:CLOSE|TIME)-WAIT) {1,8}\d{1,9} {1,8}\d{1,9} {1,8}"
    rf"(?P<end>(?!0\.|127\.){_IPV4}):\d",
    re.IGNORECASE,
)
_ASKED = re.compile(r"\bhostname (?:-[Ii]|--(?:all-)?ip-addresse?s?)\s*$")
_LISTED = re.compile(rf"\s{{0,8}}(?:{_IPV4})(?: {{1,4}}(?:{_IPV4}|[\da-f:]{{3,45}})){{0,15}}\s{{0,8}}", re.IGNORECASE)
_PREFIX = re.compile(rf"\s{{0,4}}\[?({NAME})(?::\d{{1,9}}:\d{{1,9}} \[\d{{1,3}}\]|\]?: )")


def canonical(address: str) -> str:
    """An address in the form in which it is compared: `ip 10.4.0.31`, `mac b8599fc0115a`, `lid 31`, `guid 506b...`.

    The lower half of an InfiniBand GID is the GUID of its port. Anything else stays as it is, in lower case.
    """
    text = address.strip().strip("[]<>()").lower()
    found = _ADDRESS.fullmatch(text)
    if found is None or (found["host"] and not re.fullmatch(_GUID, text)):
        return text
    kind = found.lastgroup or "guid"
    value = found[kind]
    if kind == "ip":
        return f"ip {value.removeprefix('::ffff:')}"
    if kind == "mac":
        return f"mac {re.sub('[:-]', '', value)}"
    if kind == "lid":
        return f"lid {int(value, 0)}" if value.startswith("0x") else f"lid {int(value)}"
    if kind == "gid":
        groups = [part.rjust(4, "0") for part in value.split(":") if part]
        return f"guid {''.join(groups[-4:])}" if len(groups) >= 5 else f"gid {value}"
    return f"guid {value.removeprefix('0x').replace(':', '')}"


@dataclass(slots=True)
class AddressBook:
    """Takes the lines of a text in order."""

    _hosts: defaultdict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))  # address -> hosts
    _same: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # addresses of one port

    def feed(self, text: str, host: str | None = None) -> None:
        """A line; `host`: on which it was printed, by a prompt or heading above it."""
        if len(text) > MAX_LINE or len(self._hosts) >= MAX_ADDRESSES or not re.search(r"\d", text) or prompt_of(text):
            return
        for address, name in _stated(text, host):
            name = name.rstrip(".-")
            self._hosts[canonical(address)].setdefault(name.partition(".")[0].lower(), name)
        for found in chain(_NEIGHBOUR.finditer(text), _PEER.finditer(text)):
            one, other = (canonical(address.replace(" ", "")) for address in found.groups())
            self._same[one].add(other)
            self._same[other].add(one)

    def feed_own(self, text: str, host: str) -> None:
        """A line of nothing but the addresses of the host that printed it."""
        for address in text.split() if len(self._hosts) < MAX_ADDRESSES else ():
            self._hosts[canonical(address)].setdefault(host.partition(".")[0].lower(), host)

    def host_of(self, address: str) -> str | None:
        """The only host with an address. None: not stated, or several."""
        at = canonical(address)
        reached, seen = [at], {at}
        for _ in range(MAX_ALIASES):
            hosts = {short: name for one in reached for short, name in self._hosts.get(one, {}).items()}
            if hosts:
                return next(iter(hosts.values())) if len(hosts) == 1 else None
            reached = [other for one in reached for other in self._same.get(one, ()) if other not in seen]
            seen.update(reached)
        return None


def address_book(lines: Iterable[tuple[int, str]], content: bytes) -> AddressBook:
    """What the lines of a text state, each with its number, from 1."""
    book, context, asked, node = AddressBook(), HostContext(content), False, ""
    for number, line in lines:
        if named := _NODE.fullmatch(line[:MAX_LINE]):
            node = named["host"]
        elif node and (port := _PORT.match(line[:MAX_LINE])):
            book.feed_own(port["guid"], node)
        elif asked and _LISTED.fullmatch(line[:MAX_LINE]) and (host := context.at(number)):
            book.feed_own(line, host)
        else:
            book.feed(line, context.at(number) if _OWN.search(line[:MAX_LINE]) else None)
        asked = _ASKED.search(line[:MAX_LINE]) is not None
    return book


def _stated(text: str, above: str | None) -> Iterator[tuple[str, str]]:
    """Addresses and their hosts."""
    if reverse := _REVERSE.search(text):
        octets = reverse["ip"].split(".")
        yield ".".join(reversed(octets)), reverse["host"]
        return
    if slurm := _SLURM.search(text):
        yield slurm["address"], slurm["host"]
        return
    if own := _OWN.search(text):
        label = _PREFIX.match(text)
        host = label[1] if label and may_be_host(label[1]) else host_in_front(text, own.start()) or above
        if host and (kind := own.lastgroup):
            yield (f"lid {own[kind]}" if kind == "lid" else own[kind]), host
            return
    yield from _linked(text)


def _linked(text: str) -> Iterator[tuple[str, str]]:
    """An address and the host beside it, if only words that link them are between the two."""
    tokens = [
        one for one in islice(_ADDRESS.finditer(text), 4 * MAX_TOKENS) if not one["host"] or _is_host(one["host"])
    ]
    if len(tokens) > MAX_TOKENS:
        return
    message = _MESSAGE.search(text) is not None
    hosts = {one["host"].partition(".")[0].lower() for one in tokens if one["host"]}
    alone = len(hosts) == 1
    linked: list[re.Match[str]] = []  # tokens in a row with the one before
    strong = False
    for before, one in pairwise([None, *tokens]):
        if one is None:
            continue
        gap = text[before.end() : one.start()] if before else ""
        joins = before is not None and _GAP.fullmatch(gap) is not None and not _DOUBT.search(gap)
        if not joins:
            yield from _of_row(linked, strong or not message, alone)
            linked, strong = [], False
        elif before is not None and (alone or bool(before["host"]) != bool(one["host"])):
            strong = strong or _LINKED.search(gap) is not None
        linked.append(one)
    yield from _of_row(linked, strong or not message, alone)


def _of_row(row: list[re.Match[str]], believed: bool, alone: bool) -> Iterator[tuple[str, str]]:
    """The pairs in tokens that belong together: all addresses of one host, or `address host, address host`."""
    names = [one["host"] for one in row if one["host"]]
    if not believed or not names or len(names) == len(row):
        return
    if alone:
        name = min(names, key=len)  # without its domain, if it stands there so as well
        yield from ((_text(one), name) for one in row if not one["host"])
        return
    for one, other in zip(row[::2], row[1::2], strict=False):  # in pairs, in the same order
        if bool(one["host"]) != bool(row[0]["host"]) or bool(other["host"]) == bool(one["host"]):
            return
    for one, other in zip(row[::2], row[1::2], strict=False):
        host, address = (one, other) if one["host"] else (other, one)
        yield _text(address), host["host"]


def _text(found: re.Match[str]) -> str:
    return f"lid {found['lid']}" if found["lid"] else found[found.lastgroup or 0]


def _is_host(name: str) -> bool:
    return not re.fullmatch(r"\d.*|(?:host|node|boxe|machine|server)s", name) and may_be_host(name.rstrip(".-"))
