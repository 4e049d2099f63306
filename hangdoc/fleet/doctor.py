"""`hangdoc doctor --nodes`: the hosts that hangdoc can reach, and what it may see there."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from dataclasses import dataclass, field

from hangdoc.doctor.checks import Check
from hangdoc.fleet import protocol
from hangdoc.fleet.clush import AgentEvent, AgentPool
from hangdoc.fleet.transports import FleetOptions, hosts_of, transport_of
from hangdoc.formatting import fold_hosts
from hangdoc.redaction.text import redact_text

LIMIT_S = 20.0  # for a host to connect and run its checks


@dataclass(slots=True)
class _Host:
    checks: list[Check] = field(default_factory=list)
    ended: str | None = None  # why; empty: normally


def check_hosts(options: FleetOptions, limit_s: float = LIMIT_S) -> tuple[Check, ...]:
    """One check for all hosts with the same result. Raises HangdocError if no host is given."""
    names = hosts_of(options)
    hosts = {name: _Host() for name in names}
    carrier = AgentPool(transport_of(options, "doctor --json"))
    try:
        carrier.start(names)
        until_s = time.monotonic() + limit_s
        while (left_s := until_s - time.monotonic()) > 0 and any(host.ended is None for host in hosts.values()):
            event = carrier.next(min(left_s, 0.5))
            if event is not None:
                _note(hosts[event.host], event, options.via)
    finally:
        carrier.close()
    hosts_by_check: dict[Check, list[str]] = defaultdict(list)
    for name, host in hosts.items():
        for check in _of_host(host, options.via, limit_s):
            hosts_by_check[check].append(name)
    return tuple(
        Check(f"{fold_hosts(at)}: {check.name}" if check.name else fold_hosts(at), check.ok, check.detail, check.fix)
        for check, at in hosts_by_check.items()
    )


def _note(host: _Host, event: AgentEvent, via: str) -> None:
    if event.kind == "ended":
        host.ended = redact_text(event.text.decode(errors="replace"))[:300]
    elif event.kind == "line":
        try:
            if event.text.startswith(b'{"schema"'):  # an agent that can do nothing else
                host.checks.append(_agent(protocol.parse(event.text, protocol.Hello), via))
                host.ended = ""
                return
            data = json.loads(event.text)
            host.checks.append(Check(*(data[key] for key in ("name", "ok", "detail", "fix"))))
        except (ValueError, TypeError, KeyError):
            return  # other output, such as a login banner


def _agent(hello: protocol.Hello, via: str) -> Check:
    detail = f"reached via {via}: the agent of hangdoc {hello.hangdoc[:20]} answers"
    return Check("", True, f"{detail}; run `hangdoc doctor` on the host to see what hangdoc may read there")


def _of_host(host: _Host, via: str, limit_s: float) -> list[Check]:
    if not host.checks:
        why = host.ended if host.ended is not None else f"no answer in {limit_s:g} s"
        fix = (
            "make `ssh HOST hangdoc --version` work without a prompt, or give the path of hangdoc with --agent-command"
        )
        return [Check("", False, f"not reached via {via}: {why or 'no answer'}", fix)]
    bad = [check for check in host.checks if check.ok is False]
    agents = [check for check in host.checks if not check.name]
    return bad or agents or [Check("", True, f"reached via {via}; hangdoc sees everything there")]
