"""Which hosts `hangdoc watch --nodes` would reach, and what hangdoc may see there: `doctor` on each of them."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from dataclasses import dataclass, field

from hangdoc.doctor.checks import Check
from hangdoc.fleet import protocol
from hangdoc.fleet.clush import Carrier, Event
from hangdoc.fleet.transports import FleetOptions, hosts_of, way_of
from hangdoc.formatting import fold_hosts
from hangdoc.redaction.text import redact_text

LIMIT_S = 20.0  # for a host to be reached and to have looked around


@dataclass(slots=True)
class _Host:
    checks: list[Check] = field(default_factory=list)
    ended: str | None = None  # why; empty: as it should


def reach(wish: FleetOptions, limit_s: float = LIMIT_S) -> tuple[Check, ...]:
    """A check for all hosts of which the same is to be said; raises HangdocError where no host is named."""
    names = hosts_of(wish)
    hosts = {name: _Host() for name in names}
    carrier = Carrier(way_of(wish, "doctor --json"))
    try:
        carrier.start(names)
        until_s = time.monotonic() + limit_s
        while (left_s := until_s - time.monotonic()) > 0 and any(host.ended is None for host in hosts.values()):
            event = carrier.next(min(left_s, 0.5))
            if event is not None:
                _note(hosts[event.host], event, wish.via)
    finally:
        carrier.close()
    said: dict[Check, list[str]] = defaultdict(list)
    for name, host in hosts.items():
        for check in _of_host(host, wish.via, limit_s):
            said[check].append(name)
    return tuple(
        Check(f"{fold_hosts(at)}: {check.name}" if check.name else fold_hosts(at), check.ok, check.detail, check.fix)
        for check, at in said.items()
    )


def _note(host: _Host, event: Event, via: str) -> None:
    if event.kind == "ended":
        host.ended = redact_text(event.text.decode(errors="replace"))[:300]
    elif event.kind == "line":
        try:
            if event.text.startswith(b'{"schema"'):  # an agent, which can nothing else
                host.checks.append(_agent(protocol.parse(event.text, protocol.Hello), via))
                host.ended = ""
                return
            told = json.loads(event.text)
            host.checks.append(Check(*(told[key] for key in ("name", "ok", "detail", "fix"))))
        except (ValueError, TypeError, KeyError):
            return  # what the host's shell greets with


def _agent(hello: protocol.Hello, via: str) -> Check:
    detail = f"reached by {via}: an agent of hangdoc {hello.hangdoc[:20]} answers"
    return Check("", True, f"{detail}; `hangdoc doctor` on the host tells what may be seen there")


def _of_host(host: _Host, via: str, limit_s: float) -> list[Check]:
    if not host.checks:
        why = host.ended if host.ended is not None else f"no answer in {limit_s:g} s"
        fix = "`ssh HOST hangdoc --version` must answer without a question; --agent-command says where hangdoc is"
        return [Check("", False, f"not reached by {via}: {why or 'no answer'}", fix)]
    bad = [check for check in host.checks if check.ok is False]
    agents = [check for check in host.checks if not check.name]
    return bad or agents or [Check("", True, f"reached by {via}, and all is seen there")]
