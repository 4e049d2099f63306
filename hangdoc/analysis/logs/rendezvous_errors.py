"""How the meeting of the ranks failed, as logs tell: who could not get there, which port or interface was to blame."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

from hangdoc.analysis import Key
from hangdoc.analysis.logs.log_events import JobLogs, number
from hangdoc.evidence.logs import LogEvent


class RendezvousFields(TypedDict, total=False):
    lacks: str
    loopback: str
    port: str
    unreached: str
    unmeshed: str
    refused: str
    awaits: int


@dataclass(slots=True)
class RendezvousErrors:
    expected: int | None = None
    come: int | None = None
    place: str | None = None
    whole: RendezvousFields = field(default_factory=lambda: RendezvousFields())  # said of no rank in particular
    of_rank: dict[Key, RendezvousFields] = field(default_factory=dict)


def meeting(heard: JobLogs) -> RendezvousErrors:
    """By the lines of stores, sockets and gloo."""
    found = RendezvousErrors()
    for said in heard.anyone("clients_missing", "barrier_of_store"):
        joined, expected = number(said, "joined"), number(said, "expected")
        if joined is not None and expected is not None and joined < expected:
            found.come, found.expected = max(joined, found.come or 0), max(expected, found.expected or 0)
    for key, lines in heard.ranks.items():
        facts = RendezvousFields()
        for said in lines:
            _take(facts, said)
        if facts:
            found.of_rank[key] = facts
            found.place = found.place or facts.get("unreached")
    for _, said in heard.whole:
        _take(found.whole, said)
    for said in heard.anyone("connect_failed"):
        _offered(found, heard, said)
    found.place = found.place or found.whole.get("unreached")
    return found


def _take(facts: RendezvousFields, said: LogEvent) -> None:
    if said.kind == "no_interface":
        facts["lacks"] = said.fields.get("interface", "any interface that was named")
    elif said.kind == "loopback":
        facts["loopback"] = "its host's name leads to none of its addresses"
    elif said.kind == "connect_failed":
        facts["unmeshed"] = said.text
        if "refused" in said.fields.get("why", ""):
            facts["refused"] = said.fields.get("address", "?")
    elif said.kind == "address_missing":
        facts["awaits"] = number(said, "missing") or 0
    elif said.kind == "port_in_use":
        facts["port"] = said.fields.get("address") or said.fields.get("port") or "a port"
    elif said.kind == "unreachable":
        facts["unreached"] = _place(said)


def _offered(found: RendezvousErrors, heard: JobLogs, said: LogEvent) -> None:
    """Whoever offers others a loopback address: where they are two, the one that the other could not connect to."""
    address, rank = said.fields.get("address", ""), number(said, "from_rank")
    if not address.startswith("127."):
        return
    why = f"others were to connect to it at {address}, which on every host is that host itself"
    peer = heard.numbers.get(1 - rank) if rank in (0, 1) and number(said, "size") == 2 else None
    facts = found.whole if peer is None else found.of_rank.setdefault(peer, RendezvousFields())
    facts.setdefault("loopback", why)


def _place(said: LogEvent) -> str:
    return f"{said.fields.get('address', '?')}:{said.fields.get('port', '?')}"
