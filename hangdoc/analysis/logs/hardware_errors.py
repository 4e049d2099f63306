"""What logs say of interfaces, links and GPUs: by rank, and of hosts of which no rank is known."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hangdoc.analysis import Case, Key
from hangdoc.analysis.culprits import Suspect
from hangdoc.analysis.logs.log_events import JobLogs
from hangdoc.evidence.logs import LogEvent

# Interfaces that lead nowhere outside their host; an address of the first kind does neither.
INNER = re.compile(r"^(?:docker|br-|veth|virbr|cni|flannel|cali|kube|lxc|podman|lo$)|^tun(?:l\d)?$")
INNER_ADDRESS = re.compile(r"^(?:127\.|169\.254\.)")
FLUSHED = 5  # IBV_WC_WR_FLUSH_ERR: only the consequence of an error before
STATUSES = {
    "4": "local protection error", "9": "the peer refused the request", "10": "remote access error",
    "11": "remote operation error", "12": "retries exceeded: the peer does not answer",
    "13": "the peer was not ready to receive",
}  # fmt: skip
# Xid numbers that tell of the GPU, its memory, link or firmware; the others are mostly the program's.
HARDWARE = frozenset({46, 48, 61, 62, 64, 74, 79, 92, 94, 95, 109, 110, 119, 120, 121, 136, 140, 143, 149, 150, 154})


@dataclass(slots=True)
class HardwareErrors:
    """By rank, then by host."""

    nic: dict[Key, str] = field(default_factory=dict)  # "docker0:172.17.0.1": chosen, and it leads nowhere
    ib: dict[Key, str] = field(default_factory=dict)  # "error 12 (retries exceeded) from 10.1.2.3"
    ports: dict[Key, str] = field(default_factory=dict)  # "mlx5_0:1: port error, 3 times"
    gpus: dict[Key, str] = field(default_factory=dict)  # "Xid 79: GPU has fallen off the bus"
    peers: tuple[Suspect, ...] = ()  # the host that InfiniBand errors of several ranks name
    port_hosts: dict[str, str] = field(default_factory=dict)
    gpu_hosts: dict[str, str] = field(default_factory=dict)


def gear(case: Case, heard: JobLogs) -> HardwareErrors:
    found = HardwareErrors()
    named: dict[str, set[Key]] = defaultdict(set)
    for key, said in heard.ranks.items():
        if nic := next((name for one in said if (name := _inner(one))), None):
            found.nic[key] = nic
        errors = [one for one in said if one.kind == "ib_error" and one.fields.get("status") != str(FLUSHED)]
        if errors:
            found.ib[key] = _completion(errors[-1], len(errors))
            for one in errors:
                named[one.fields.get("peer", "")].add(key)
        if text := _ports(said):
            found.ports[key] = text
        if text := _gpu(said):
            found.gpus[key] = text
    found.peers = _peers(named)
    by_host: dict[str, list[LogEvent]] = defaultdict(list)
    for host, one in heard.whole:
        if host is not None:
            by_host[host].append(one)
    for host, lines in by_host.items():
        for texts, hosts, text in (
            (found.ports, found.port_hosts, _ports(lines)),
            (found.gpus, found.gpu_hosts, _gpu(lines)),
        ):
            ranks = [key for key in case.ranks if key[0] == host]
            if text and not any(key in texts for key in ranks):
                hosts[host] = text
    return found


def _inner(said: LogEvent) -> str | None:
    if said.kind == "nccl_bootstrap":
        chosen = [(said.fields.get("interface", ""), said.fields.get("address", ""))]
    elif said.kind == "nccl_interface":
        chosen = re.findall(r"\[\d+\]([^:\s]+):([\d.a-fA-F:]+?)<", said.fields.get("interfaces", ""))
    else:
        return None
    wrong = [f"{name}:{address}" for name, address in chosen if INNER.match(name) or INNER_ADDRESS.match(address)]
    return wrong[0] if wrong and len(wrong) == len(chosen) else None


def _completion(said: LogEvent, count: int) -> str:
    status, peer = said.fields.get("status", "?"), said.fields.get("peer")
    meaning = f" ({STATUSES[status]})" if status in STATUSES else ""
    times = f", {count} times" if count > 1 else ""
    return f"completion error {status}{meaning}{f' from {peer}' if peer else ''}{times}"


def _peers(named: dict[str, set[Key]]) -> tuple[Suspect, ...]:
    """The one peer that at least two ranks could not reach, and more of them than any other."""
    ranked = Counter({peer: len(keys) for peer, keys in named.items() if peer}).most_common(2)
    if ranked and ranked[0][1] > 1 and (len(ranked) == 1 or ranked[1][1] < ranked[0][1]):
        return (Suspect(None, None, ranked[0][0]),)
    return ()


def _ports(said: Iterable[LogEvent]) -> str | None:
    events: Counter[tuple[str, str]] = Counter(_events(said))
    if not events:
        return None
    return "; ".join(
        f"{port + ': ' if port else ''}{event}{f', {n} times' if n > 1 else ''}" for (port, event), n in events.items()
    )


def _events(said: Iterable[LogEvent]) -> Iterator[tuple[str, str]]:
    for one in said:
        if one.kind == "ib_event" and "port error" in one.fields.get("event", ""):
            yield one.fields.get("port", ""), "port error"
        elif one.kind == "port_event" and one.fields.get("state", "").lower() == "down":
            yield one.fields.get("port", ""), "link down"


def _gpu(said: Iterable[LogEvent]) -> str | None:
    for one in said:
        if one.kind == "gpu_lost":
            return (
                f"GPU {one.fields['gpu']} has fallen off the bus"
                if "gpu" in one.fields
                else "GPU has fallen off the bus"
            )
        if one.kind == "xid" and int(one.fields.get("xid", "0")[:6]) in HARDWARE:
            what = f": {one.fields['what']}" if "what" in one.fields else ""
            return f"Xid {one.fields['xid']} on GPU {one.fields.get('gpu', '?').removeprefix('PCI:')}{what}"
    return None
