"""Analysis `fabric`: network interfaces and InfiniBand adapters that ranks with NCCL are set to use.

Ranks without NCCL, and hosts without InfiniBand, have no such facts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hangdoc.analysis import Analysis, Case, Key
from hangdoc.analysis.startup.advertised_addresses import NCCL, chosen_by_nccl
from hangdoc.evidence import Environ, Process
from hangdoc.evidence.network import Addresses, Infiniband, Port

ADAPTERS = "NCCL_IB_HCA"
NCCL_THREAD = "pt_nccl"  # of the NCCL watchdog threads
ACTIVE = "ACTIVE"


@dataclass(frozen=True, slots=True)
class FabricFacts:
    """One rank that uses NCCL; empty: no problem known."""

    lacks: tuple[str, ...] = ()  # settings that match nothing on its host: "NCCL_SOCKET_IFNAME=ib7"
    exists: tuple[str, ...] = ()  # names that they could select
    down: tuple[str, ...] = ()  # ports it uses that are down: "mlx5_1 port 1 is DOWN (Polling)"
    troubles: tuple[str, ...] = ()  # error counters of its ports that grew: "mlx5_0 port 1: symbol_error +12"


UNSEEN = FabricFacts()


class FabricAnalysis(Analysis[FabricFacts, None]):
    rank_facts = FabricFacts

    def derive(self, case: Case) -> tuple[dict[Key, FabricFacts], None]:
        ports: dict[str, list[Infiniband]] = {}
        for host in {host for host, _ in case.ranks}:
            ports[host] = [one for shot in case.shots(host) if (one := shot.records.get("infiniband")) is not None]
        return {key: _facts(case, key, ports[key[0]]) for key in case.ranks}, None


def _facts(case: Case, key: Key, seen: Sequence[Infiniband]) -> FabricFacts:
    process, environ, held = case.record(key, "cpu"), case.record(key, "environ"), case.record(key, "addresses")
    if not isinstance(environ, Environ) or not (seen or environ.variables.get(NCCL) or environ.variables.get(ADAPTERS)):
        return UNSEEN
    if not isinstance(process, Process) or not any(one.comm.startswith(NCCL_THREAD) for one in process.threads):
        return UNSEEN
    interfaces = [one.name for one in held.interfaces] if isinstance(held, Addresses) else []
    ports = seen[-1].ports if seen else ()
    adapters = list(dict.fromkeys(port.adapter for port in ports))
    variables = environ.variables
    selected = chosen_by_nccl(variables[ADAPTERS], adapters) if variables.get(ADAPTERS) else tuple(adapters)
    used = [port for port in ports if port.adapter in selected]
    lacks = {
        f"{name}={variables[name]}": names
        for name, names in ((NCCL, interfaces), (ADAPTERS, adapters))
        if names and variables.get(name) and not chosen_by_nccl(variables[name], names)
    }
    # The second port of an adapter often has no cable: only a port that has sent data counts.
    down = [port for port in used if port.state not in (None, ACTIVE) and port.sent_bytes]
    return FabricFacts(
        tuple(lacks),
        tuple(name for names in lacks.values() for name in names),
        tuple(
            f"{port.adapter} port {port.number} is {port.state} ({port.physical or 'state unknown'})" for port in down
        ),
        tuple(_grown(seen[0].ports, used)) if len(seen) > 1 else (),
    )


def _grown(before: Sequence[Port], now: Sequence[Port]) -> list[str]:
    """Error counters that have grown."""
    old: Mapping[tuple[str, int], dict[str, int]] = {(one.adapter, one.number): dict(one.troubles) for one in before}
    found = []
    for port in now:
        counted = old.get((port.adapter, port.number), {})
        for name, count in port.troubles:
            if count > counted.get(name, 0):
                found.append(f"{port.adapter} port {port.number}: {name} +{count - counted.get(name, 0)}")
    return found


ANALYSIS = FabricAnalysis()
