"""Hardware errors in logs: interfaces, links and GPUs, by rank, or by host if no rank is known."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hangdoc.analysis import Case, Key, Suspect
from hangdoc.analysis.logs.common_peer import peer_of
from hangdoc.analysis.logs.log_events import TIMEOUTS, JobLogs, known_host, number
from hangdoc.evidence.logs import LogEvent

# Interfaces and addresses that cannot reach another host.
INTERNAL = re.compile(r"^(?:docker|br-|veth|virbr|cni|flannel|cali|kube|lxc|podman|lo$)|^tun(?:l\d)?$")
INTERNAL_ADDRESS = re.compile(r"^(?:127\.|169\.254\.)")
# Of the driver about a broken GPU (driver_types.h); an illegal address or a failed assertion is of the program.
CUDA_ERROR = re.compile(
    r"(?:CUDA|HIP) error: (?:unknown error|unspecified launch failure|GPU is lost|device not ready"
    r"|all CUDA-capable devices|(?:an )?uncorrectable|hardware stack error|no CUDA-capable device)",
    re.IGNORECASE,
)
MAX_TEXT = 200  # characters of a message
OF_IPV4, LINK_LOCAL = "::ffff:", "fe80:"  # how GIDs begin
FLUSHED = 5  # IBV_WC_WR_FLUSH_ERR: only the consequence of an earlier error
STATUSES = {
    "4": "local protection error", "9": "the peer refused the request", "10": "remote access error",
    "11": "remote operation error", "12": "retries exceeded: the peer does not answer",
    "13": "the peer was not ready to receive",
}  # fmt: skip
# Xid numbers of errors in the GPU, its memory, link or firmware (NVIDIA, "XID Errors"); most others are the program's.
HARDWARE = frozenset({46, 48, 61, 62, 64, 74, 79, 92, 94, 95, 109, 110, 119, 120, 121, 136, 140, 143, 149, 150, 154})
HUNG = re.compile(r"\bHW Exception by GPU node")
ABORTED = frozenset({"-6", "134"})  # SIGABRT, as torchelastic and as a shell report it


@dataclass(slots=True)
class HardwareErrors:
    """Hardware errors by rank, and by host if no rank of it reports them."""

    nic: dict[Key, str] = field(default_factory=dict)  # chosen by NCCL, reaches no other host: "docker0:172.17.0.1"
    nic_hosts: int = 0  # hosts of which the text shows what NCCL chose
    nic_shared: str | None = None  # an address that several hosts chose, so that it leads each of them to itself
    ib: dict[Key, str] = field(default_factory=dict)  # "completion error 12 (retries exceeded: ...) from 10.1.2.3"
    ports: dict[Key, str] = field(default_factory=dict)  # "mlx5_0:1: port error, 3 times"
    gpus: dict[Key, str] = field(default_factory=dict)  # "Xid 79 on GPU 0000:44:00: GPU has fallen off the bus"
    peers: tuple[Suspect, ...] = ()  # the host named by InfiniBand errors of several ranks, or that with `gid`
    gid: str | None = None  # one end of a connection has a GID of another kind than the other: "fe80::7"
    scattered: bool = False  # InfiniBand errors on several hosts name different peers: no end stands out
    port_hosts: dict[str, str] = field(default_factory=dict)
    gpu_hosts: dict[str, str] = field(default_factory=dict)


def hardware_errors(case: Case, logs: JobLogs) -> HardwareErrors:
    found = HardwareErrors()
    named: dict[str, set[Key]] = defaultdict(set)
    chosen: dict[str, set[str]] = defaultdict(set)  # on which hosts each address was chosen
    for key, events in logs.ranks.items():
        if nic := next((name for event in events if (name := _internal_interface(event))), None):
            found.nic[key] = nic
        for address in filter(None, map(_bootstrap_address, events)):
            chosen[address].add(key[0])
        errors = [event for event in events if event.kind == "ib_error" and event.fields.get("status") != str(FLUSHED)]
        if errors:
            found.ib[key] = _format_completion(errors[-1], len(errors))
            for error in errors:
                named[peer_of(error)].add(key)
        if text := _format_ports(events):
            if host := next((event.fields["of_host"] for event in events if "of_host" in event.fields), None):
                found.port_hosts[host] = text
            else:
                found.ports[key] = text
        if text := _format_gpu(events):
            found.gpus[key] = text
    _move_shared_ports(found)
    found.peers = _peers(named)
    if odd := next(filter(None, (_odd_gid(key[0], event) for key, event in logs.of_ranks("ib_error"))), None):
        found.gid, host = odd
        found.peers = (Suspect(None, None, host),)
    # Both ends report an error and none names its peer, or each names another one.
    several = len(named.keys() - {""}) > 1 or named.keys() == {""}
    found.scattered = not found.peers and several and len({host for host, _ in found.ib}) > 1
    by_host: dict[str, list[LogEvent]] = defaultdict(list)
    for host, event in logs.unattributed:
        if host is not None:
            by_host[host].append(event)
            if used := _bootstrap_address(event):
                chosen[used].add(host)
    found.nic_hosts = len(set().union(*chosen.values()))
    found.nic_shared = _shared(chosen)
    for host, events in by_host.items():
        ranks = [key for key in case.ranks if key[0] == host]
        gpu = _format_gpu(events)
        if gpu and (failed := _aborted(logs, host) or _failed_by_its_gpu(logs, host)):
            found.gpus.setdefault(failed, gpu)
        for texts, hosts, text in (
            (found.ports, found.port_hosts, _format_ports(events)),
            (found.gpus, found.gpu_hosts, gpu),
        ):
            if text and not any(key in texts for key in ranks):
                hosts[host] = text
    return found


def _move_shared_ports(found: HardwareErrors) -> None:
    """A port that several ranks of a host report is one of the host, unless the transfers of one of them failed."""
    at: dict[str, list[Key]] = defaultdict(list)
    for key in found.ports:
        if known_host(key[0]):
            at[key[0]].append(key)
    for host, keys in at.items():
        if len(keys) < 2:
            continue
        failed = [key for key in keys if key in found.ib]
        kept = failed[0] if len(failed) == 1 else None
        if kept is None:
            found.port_hosts.setdefault(host, found.ports[keys[0]])
        for key in keys:
            if key != kept:
                del found.ports[key]


def _aborted(logs: JobLogs, host: str) -> Key | None:
    """The rank that the runtime of its GPU aborted. None: more than one may be meant.

    ROCm's runtime reports a hung GPU in the process that uses it, and aborts this process (ROCR-Runtime:
    src/core/runtime/runtime.cpp). So it is the rank that a launcher reports first, if it alone failed, and by SIGABRT.
    """
    reports = [event for event in logs.all("gpu_hardware") if HUNG.search(event.text)]
    failed = [(key, event) for key, event in logs.of_ranks("failure")]
    if len(reports) != 1 or len(failed) != 1:
        return None
    key, failure = failed[0]
    same_host = key[0] == host or failure.fields.get("host") == host
    return key if same_host and failure.fields.get("code") in ABORTED and "root" in failure.fields else None


def _failed_by_its_gpu(logs: JobLogs, host: str) -> Key | None:
    """The only rank of a host that reports an error of CUDA, and no timeout. None: none, or several."""
    reporting = [
        key
        for key, events in logs.ranks.items()
        if key[0] == host
        and any(CUDA_ERROR.search(event.text + event.fields.get("error", "")) for event in events)
        and not any(event.kind in TIMEOUTS for event in events)
    ]
    return reporting[0] if len(reporting) == 1 else None


def _internal_interface(event: LogEvent) -> str | None:
    """The interface that NCCL chose, if none of its choices reaches another host: "docker0:172.17.0.1"."""
    if event.kind == "nccl_bootstrap":
        chosen = [(event.fields.get("interface", ""), event.fields.get("address", ""))]
    elif event.kind == "nccl_interface":
        chosen = re.findall(r"\[\d+\]([^:\s]+):([\d.a-fA-F:]+?)<", event.fields.get("interfaces", ""))
    else:
        return None
    wrong = [f"{name}:{address}" for name, address in chosen if INTERNAL.match(name) or INTERNAL_ADDRESS.match(address)]
    return wrong[0] if wrong and len(wrong) == len(chosen) else None


def _bootstrap_address(event: LogEvent) -> str | None:
    """Where NCCL on this host receives connections of its peers: "eth0:10.0.0.1"."""
    if event.kind != "nccl_bootstrap":
        return None
    return f"{event.fields.get('interface', '?')}:{event.fields.get('address', '?')}"[:MAX_TEXT]


def _shared(chosen: dict[str, set[str]]) -> str | None:
    """The first address that several known hosts chose, with their names."""
    for address, hosts in chosen.items():
        known = sorted(filter(known_host, hosts))
        if len(known) > 1:
            return f"{address} on {', '.join(known[:4])}"[:MAX_TEXT]
    return None


def _format_completion(event: LogEvent, count: int) -> str:
    status, peer = event.fields.get("status", "?"), event.fields.get("peer")
    meaning = f" ({STATUSES[status]})" if status in STATUSES else ""
    times = f", {count} times" if count > 1 else ""
    return f"completion error {status}{meaning}{f' from {peer}' if peer else ''}{times}"


def _peers(named: dict[str, set[Key]]) -> tuple[Suspect, ...]:
    """The peer that at least two ranks could not reach, and more ranks than any other peer."""
    ranked = Counter({peer: len(keys) for peer, keys in named.items() if peer}).most_common(2)
    if ranked and ranked[0][1] > 1 and (len(ranked) == 1 or ranked[1][1] < ranked[0][1]):
        return (Suspect(None, None, ranked[0][0]),)
    return ()


def _odd_gid(host: str, event: LogEvent) -> tuple[str, str] | None:
    """A link-local GID opposite to one of an IPv4 address, and the host that has it. None: they are of one kind.

    RoCE v2 needs the second kind at both ends: at the index that NCCL uses, that host has another entry (show_gids).
    """
    local, remote = event.fields.get("local_gid", ""), event.fields.get("remote_gid", "")
    if local.startswith(OF_IPV4) and remote.startswith(LINK_LOCAL) and (peer := peer_of(event)):
        return remote, peer
    if local.startswith(LINK_LOCAL) and remote.startswith(OF_IPV4) and known_host(host):
        return local, host
    return None


def _format_ports(events: Iterable[LogEvent]) -> str | None:
    counts: Counter[tuple[str, str]] = Counter(_port_errors(events))
    if not counts:
        return None
    return "; ".join(
        f"{port + ': ' if port else ''}{error}{f', {n} times' if n > 1 else ''}" for (port, error), n in counts.items()
    )


def _port_errors(events: Iterable[LogEvent]) -> Iterator[tuple[str, str]]:
    """Port and error of each event that reports a failing port."""
    for event in events:
        if event.kind == "ib_event" and "port error" in event.fields.get("event", ""):
            yield event.fields.get("port", ""), "port error"
        elif event.kind == "port_event" and event.fields.get("state", "").lower() == "down":
            yield event.fields.get("port", ""), "link down"


def _format_gpu(events: Iterable[LogEvent]) -> str | None:
    """The first hardware error of a GPU."""
    for event in events:
        if event.kind == "gpu_lost":
            return f"GPU{' ' + event.fields['gpu'] if 'gpu' in event.fields else ''} has fallen off the bus"
        if event.kind == "xid" and int(event.fields.get("xid", "0")[:6]) in HARDWARE:
            what = f": {event.fields['what'].rstrip('.')}" if "what" in event.fields else ""
            return f"Xid {event.fields['xid']} on GPU {event.fields.get('gpu', '?').removeprefix('PCI:')}{what}"
        if event.kind == "gpu_hardware":
            return event.text[:MAX_TEXT]
    return None


def shares_gpus_by_design(logs: JobLogs, per_host: int | None) -> bool:
    """True if the launch or the script put ranks onto one GPU, so that no rank is more at fault than another.

    Either most ranks took the same GPU, or there are more ranks on a host than GPUs, and `rank % count` starts over:
    each pair is the same number of ranks apart, and closer than the ranks of the host.
    """
    events = list(logs.all("duplicate_gpu"))
    found = {frozenset((number(event, "rank") or 0, number(event, "rank_b") or 0)) for event in events}
    pairs = sorted(tuple(sorted(pair)) for pair in found if len(pair) == 2)
    sharing = {rank for pair in pairs for rank in pair}
    of_one_gpu = len({event.fields.get("gpu") for event in events}) == 1
    if len(sharing) > 2 and (
        len(sharing) == logs.size or (of_one_gpu and 2 * len(sharing) > (logs.size or max(sharing) + 1))
    ):
        return True
    if per_host is None or not pairs or logs.size not in (None, per_host):
        return False
    if sharing == set(range(per_host)) and of_one_gpu:
        return True
    apart = {last - first for first, last in pairs}
    return len(pairs) > 1 and len(apart) == 1 and apart.pop() > 1 and max(sharing) < per_host
