"""Rendezvous errors in logs: the ranks that could not connect, and the port or interface at fault."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TypedDict

from hangdoc.analysis import Key
from hangdoc.analysis.logs.log_events import TIMEOUTS, JobLogs, followed, known_host, number
from hangdoc.evidence.logs import LogEvent

_CLOSED = re.compile(r"[Cc]onnection (?:was )?(?:likely )?(?:reset|closed)|[Bb]roken pipe")
_MAKES_STORE = re.compile(r"_create_(?:c10d|tcp)_store \(")  # rendezvous.py, c10d_rendezvous_backend.py
NAMELESS = "(its name is not in the log)"
OF_NAME = "its host name resolves to none of its addresses"


class RendezvousFields(TypedDict, total=False):
    lacks: str
    loopback: str
    port: str
    misled: str
    unreached: str
    unmeshed: str
    dropped: str
    refused: str
    awaits: int


@dataclass(slots=True)
class RendezvousErrors:
    """Rendezvous errors of a job, by rank and for the job as a whole."""

    expected: int | None = None  # ranks that the rendezvous waited for
    joined: int | None = None  # ranks that had joined when it gave up
    endpoint: str | None = None  # address and port of the rendezvous
    unresolved: bool = False  # only a name that could not be resolved shows it, and that may have changed
    on_loopback: int | None = None  # a rank without any evidence that advertises a loopback address
    loopback_host: str | None = None  # the only host whose name leads to that address, as the text states it
    taken_on: str | None = None  # host on which a port was in use
    unresolved_on: str | None = None  # the only host that is known not to resolve the name
    unattributed: RendezvousFields = field(default_factory=lambda: RendezvousFields())  # errors of no known rank
    of_rank: dict[Key, RendezvousFields] = field(default_factory=dict)


def rendezvous_errors(logs: JobLogs) -> RendezvousErrors:
    """Errors from the events of stores, sockets and gloo."""
    found = RendezvousErrors()
    for event in logs.all("clients_missing", "barrier_of_store"):
        joined, expected = number(event, "joined"), number(event, "expected")
        if joined is None or expected is None or followed(logs, event, "progress", "all_come"):
            continue
        if joined < expected:
            found.joined, found.expected = max(joined, found.joined or 0), max(expected, found.expected or 0)
    everywhere = any("deduplicated" in event.fields for event in logs.all("loopback"))
    for key, events in logs.ranks.items():
        fields = RendezvousFields()
        for event in events:
            if event.kind == "loopback" and everywhere:
                _add(found.unattributed, event)
            elif event.kind == "port_in_use" and (host := known_host(key[0])):
                _add(found.unattributed, event)  # the port is that of the host, whichever process asks for it
                found.taken_on = host
            else:
                _add(fields, event)
        if fields:
            found.of_rank[key] = fields
            found.endpoint = found.endpoint or fields.get("unreached")
    for host, event in logs.unattributed:
        _add(found.unattributed, event)
        if event.kind == "port_in_use" and known_host(host):
            found.taken_on = host
    for event in logs.all("connect_failed"):
        _add_loopback_peer(found, logs, event)
    _add_loopback_neighbours(found)
    found.endpoint = found.endpoint or found.unattributed.get("unreached")
    if found.endpoint is None and (unresolved := _unresolved(logs)):
        found.endpoint = found.unattributed["unreached"] = unresolved
        found.unresolved = True
    found.unresolved_on = _unresolved_on(logs, found.endpoint)
    return found


def _unresolved_on(logs: JobLogs, endpoint: str | None) -> str | None:
    """The only host that did not resolve the name of the rendezvous address. None: none, several, or an unknown one."""
    name = (endpoint or "").rpartition(":")[0]
    hosts = {
        host
        for host, event in logs.unattributed
        if event.kind == "unresolved" and event.fields.get("address", NAMELESS) in (name, NAMELESS, endpoint)
    }
    return known_host(hosts.pop()) if len(hosts) == 1 else None


def _unresolved(logs: JobLogs) -> str | None:
    """The rendezvous address whose name was unknown up to the end; None: there is none, or the job went on."""
    if any(True for _ in logs.all(*TIMEOUTS, "progress", "all_come", "work_status", "clients_missing")):
        return None
    event = next(iter(logs.all("unresolved")), None)
    if event is None:
        return None
    return f"{event.fields['address']}:{event.fields.get('port', '?')}" if "address" in event.fields else NAMELESS


def _add(fields: RendezvousFields, event: LogEvent) -> None:
    if event.kind == "no_interface":
        fields["lacks"] = event.fields.get("interface", "any of the configured interfaces")
    elif event.kind == "loopback":
        fields["loopback"] = OF_NAME
    elif event.kind == "connect_failed":
        fields["unmeshed"] = event.text
        if "refused" in event.fields.get("why", ""):
            fields["refused"] = event.fields.get("address", "?")
    elif event.kind == "address_missing":
        fields["awaits"] = number(event, "missing") or 0
    elif event.kind == "port_in_use":
        fields["port"] = event.fields.get("address") or event.fields.get("port") or "a port"
    elif event.kind == "not_a_store":
        fields["misled"] = f"{event.fields['address']}:{event.fields['port']}"
    elif event.kind == "exception" and _joins_store(event) and _CLOSED.search(event.text):
        fields["dropped"] = event.text
    elif event.kind == "unreachable":
        fields["unreached"] = f"{event.fields.get('address', '?')}:{event.fields.get('port', '?')}"


def _joins_store(event: LogEvent) -> bool:
    """True if an exception was raised while the store was made: in `TCPStore()`, or in torch's function around it."""
    return "TCPStore(" in event.fields.get("innermost", "") or bool(_MAKES_STORE.match(event.fields.get("site", "")))


def _add_loopback_neighbours(found: RendezvousErrors) -> None:
    """Ranks that could not connect either, on a host whose name leads to loopback: it is the same for all of them."""
    hosts = {host for (host, _), fields in found.of_rank.items() if fields.get("loopback") == OF_NAME}
    for (host, _), fields in found.of_rank.items():
        if known_host(host) and host in hosts and "unmeshed" in fields:
            fields.setdefault("loopback", OF_NAME)


def _add_loopback_peer(found: RendezvousErrors, logs: JobLogs, event: LogEvent) -> None:
    """Record a rank that advertises a loopback address. Of two ranks, it is the peer of the one that cannot connect."""
    address, rank = event.fields.get("address", ""), number(event, "from_rank")
    if not address.startswith("127."):
        return
    found.loopback_host = found.loopback_host or event.fields.get("peer_host")
    why = f"it advertises {address}, which on every host is that host itself"
    other = 1 - rank if rank in (0, 1) and number(event, "size") == 2 else None
    peer = logs.keys.get(other) if other is not None else None
    if peer is None and other is not None:  # it has written nothing
        found.on_loopback = other
    fields = found.unattributed if peer is None else found.of_rank.setdefault(peer, RendezvousFields())
    fields.setdefault("loopback", why)
