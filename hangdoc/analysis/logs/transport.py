"""Analysis `transport`: what NCCL chose on each host, and transfers between hosts that failed below it.

All hosts of a communicator choose alike: the transport (InfiniBand, a plugin, sockets) and GPUDirect RDMA. A host on
which the better choice is missing slows or breaks the job. A message about a failed transfer is printed at either end,
so only a peer that all other hosts name stands out.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile

from hangdoc.analysis import Case, Detector, Key, Suspect
from hangdoc.analysis.logs.common_peer import NOT_BETWEEN_HOSTS, OF_BRIDGE, common_peer, peer_of
from hangdoc.analysis.logs.log_events import TIMEOUTS, JobLogs, job_logs, known_host
from hangdoc.analysis.ranks.host_ranks import on_hosts
from hangdoc.analysis.thresholds import COMPARABLE_RANKS, REPORTERS, SOCKET_RATE
from hangdoc.evidence.logs import LogEvent

MAX_SUSPECTS = 16
OF_PORT = re.compile(r"[rd]?lid\b")  # a peer of which only the number of its InfiniBand port is known
FALLBACKS = frozenset({"Socket", "Disabled"})  # what NCCL takes where the better choice is missing
OWN = frozenset({"Socket", "IB"})  # networks of NCCL itself; any other is a plugin's


@dataclass(frozen=True, slots=True)
class TransportJob:
    """None: no line shows it."""

    fallback: str | None = None  # what differs: "network Socket on gn3, IB on gn1, gn2, gn4"
    odd: tuple[Suspect, ...] = ()  # the hosts with the fallback
    clear: bool = False  # most of three or more hosts have the better choice
    plugins: str | None = None  # "network IBext_v8 on gn1, IB on gn3": a plugin and another network cannot connect
    without: tuple[Suspect, ...] = ()  # with `plugins`: the hosts on which the plugin of the others is missing
    sockets: str | None = None  # NCCL found no adapter and uses sockets everywhere, which is slow or was not wanted
    named: str | None = None  # with `sockets`: the adapters that NCCL was told to use
    library: str | None = None  # with `sockets`: the library that NCCL could not load
    # With `sockets`: a slow test, the faster network of an earlier run, a slow interface, or adapters not used.
    slow: str | None = None
    failed: str | None = None  # first line about a failed connection or transfer
    count: int = 0  # such lines
    hosts: int = 0  # hosts that report one; with `peer`, those that name it
    peer: tuple[Suspect, ...] = ()  # the only host that all other reporters name
    port: str | None = None  # with `peer`: the number of its port, "rlid 47", "dlid=47", and no line gives the host
    bridge: str | None = None  # an address of `failed` that is usually the host's own, of docker0 or virbr0
    unmet: tuple[Suspect, ...] = ()  # the only address that ranks of several hosts cannot connect to


class TransportDetector(Detector[object, TransportJob]):
    job_facts = TransportJob

    def derive(self, case: Case) -> tuple[dict[Key, object], TransportJob]:
        logs = job_logs(case)
        if logs is None:
            return {}, TransportJob()
        failed = list(_with_host(logs, "transfer_failed"))
        reporters = {writer for host, event in failed if (writer := event.fields.get("local") or host)}
        peer, naming = common_peer(failed)
        text, odd, clear = _fallback(logs)
        plugins, without = _plugins(logs)
        sockets = _sockets(logs)
        named = next((event.fields["adapters"] for event in logs.all("adapters_named")), None)
        slow = _slow(logs)
        return {}, TransportJob(
            fallback=text,
            odd=on_hosts(case, odd),
            clear=clear,
            plugins=plugins,
            without=on_hosts(case, without),
            sockets=sockets.text if sockets and (named or slow) else None,
            named=named if sockets else None,
            library=sockets.fields.get("library") if sockets else None,
            slow=slow if sockets else None,
            failed=failed[0][1].text if failed else None,
            count=len(failed),
            hosts=naming or len(reporters),
            peer=on_hosts(case, [Suspect(None, None, peer)] if peer else ()),
            port=peer if peer and OF_PORT.match(peer) else None,
            bridge=next((one for _, event in failed if OF_BRIDGE.match(one := peer_of(event))), None),
            unmet=on_hosts(case, _unmet(logs)),
        )


def _with_host(logs: JobLogs, *kinds: str) -> Iterator[tuple[str | None, LogEvent]]:
    """Events of these kinds with the host that printed them; None: not stated."""
    yield from ((known_host(key[0]), event) for key, event in logs.of_ranks(*kinds))
    yield from ((known_host(host), event) for host, event in logs.unattributed if event.kind in kinds)


def _unmet(logs: JobLogs) -> tuple[Suspect, ...]:
    """The address that all failed connections of several hosts lead to, unless it is one that no other host reaches."""
    failed = list(_with_host(logs, "connect_failed"))
    addresses = {event.fields.get("address", "") for _, event in failed}
    address = addresses.pop() if len(addresses) == 1 else ""
    # A message without the address of its writer may come from any host, and says nothing more.
    writers = {writer for host, event in failed if (writer := event.fields.get("local") or host)}
    if (
        not address
        or NOT_BETWEEN_HOSTS.match(address)
        or address.startswith("fe80:")
        or len(writers) < REPORTERS
        or address in writers
    ):
        return ()
    return (Suspect(None, None, peer_of(failed[0][1])),)


def _fallback(logs: JobLogs) -> tuple[str | None, tuple[Suspect, ...], bool]:
    """The first choice that differs between hosts, the hosts with the fallback, and whether most hosts agree."""
    for name, choices in sorted(_choices(logs).items()):
        odd = sorted(host for host, choice in choices.items() if choice in FALLBACKS)
        others = sorted(choices.keys() - set(odd))
        if not odd or not others or len(odd) > len(others):
            continue
        usual = Counter(choices[host] for host in others).most_common(1)[0][0]
        text = f"{name} {choices[odd[0]]} on {', '.join(odd[:4])}, {usual} on {', '.join(others[:4])}"
        clear = len(choices) >= COMPARABLE_RANKS and len(odd) < len(others)
        return text[:300], tuple(Suspect(None, None, host) for host in odd)[:MAX_SUSPECTS], clear
    return None, (), False


def _plugins(logs: JobLogs) -> tuple[str | None, tuple[Suspect, ...]]:
    """Networks of which one is a plugin's, if hosts differ in them, and the hosts that use NCCL's own instead."""
    hosts: dict[str, list[str]] = defaultdict(list)
    for host, network in sorted(_choices(logs).get("network", {}).items()):
        hosts[network].append(host)
    plugins = hosts.keys() - OWN
    if len(hosts) < 2 or not plugins or hosts.keys() & FALLBACKS:  # a fallback to sockets has a rule of its own
        return None, ()
    sides = sorted(hosts.items(), key=lambda side: (-len(side[1]), side[0] in OWN, side[0]))
    text = ", ".join(f"{network} on {', '.join(of[:4])}" for network, of in sides[:4])
    without = [host for network in hosts.keys() & OWN for host in hosts[network]]
    of_plugins = sum(len(hosts[network]) for network in plugins)
    odd = without if len(plugins) == 1 and len(without) <= of_plugins else []
    return f"network {text}"[:300], tuple(Suspect(None, None, host) for host in odd)[:MAX_SUSPECTS]


def _sockets(logs: JobLogs) -> LogEvent | None:
    """The line about a missing adapter, if all hosts that say what NCCL uses say sockets, and nothing timed out."""
    missing = next(logs.all("no_adapter"), None)
    networks = {**_choices(logs).get("network", {}), **{host: "Socket" for host, _ in _before(logs)}}
    if missing is None or not networks or set(networks.values()) != {"Socket"} or any(logs.all(*TIMEOUTS)):
        return None
    return missing


def _before(logs: JobLogs) -> Iterator[tuple[str, LogEvent]]:
    """The hosts that use sockets in the last run that a text shows, and what they used in an earlier one."""
    runs: dict[tuple[str, str], list[LogEvent]] = defaultdict(list)
    for host, event in _with_host(logs, "nccl_choice"):
        if host is not None and "network" in event.fields:
            runs[host, event.source].append(event)
    for (host, _), events in runs.items():
        events.sort(key=lambda event: event.line)
        earlier = list(takewhile(lambda event: event.fields["network"] not in FALLBACKS, events))
        later = {event.fields["network"] for event in events[len(earlier) :]}
        if earlier and later == {"Socket"}:  # the ranks of one run would alternate
            yield host, earlier[0]


def _slow(logs: JobLogs) -> str | None:
    """The largest rate of a slow test, what an earlier run used, a slow interface, or an adapter that is not used."""
    rates = [float(one.partition("=")[2]) for event in logs.all("bandwidth") for one in event.fields["rates"].split()]
    if rates and max(rates) <= SOCKET_RATE:
        return f"at most {max(rates):.3g} GB/s in a bandwidth test"
    if earlier := next(_before(logs), None):
        return f"{earlier[0]} used {earlier[1].fields['network']} in an earlier run"
    shown = next((event.text.strip() for event in logs.all("slow_interface", "adapters_hidden")), None)
    return shown or next(
        (
            f"a host has an adapter: {event.fields['interface']} is active"
            for event in logs.all("port_state")
            if event.fields.get("state") == "active" and event.fields.get("interface")
        ),
        None,
    )


def _choices(logs: JobLogs) -> Mapping[str, Mapping[str, str]]:
    """What each host chose, by the name of the choice; the better one of several on a host."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for host, event in _with_host(logs, "nccl_choice"):
        for name, choice in event.fields.items():
            if host is None or name not in ("network", "rdma"):
                continue
            name = "GPUDirect RDMA" if name == "rdma" else name
            if found[name].get(host, choice) in FALLBACKS:
                found[name][host] = choice
            else:
                found[name].setdefault(host, choice)
    return found


ANALYSIS = TransportDetector()
