"""Analysis `mesh`: creation of a gloo group: the address each rank advertises, and connections that fail.

Every rank stores its address in the job's store, and one rank of each pair connects to the other. That takes a moment.
A rank with a refused connection exits at once; its peers keep waiting, for minutes or for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hangdoc.analysis import Case, Detector, Key
from hangdoc.analysis.network.tcp_counters import identity, syn_age_s
from hangdoc.analysis.ranks.exit import ExitFacts
from hangdoc.analysis.ranks.progress import ProgressFacts
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.analysis.ranks.world import WorldJob
from hangdoc.analysis.startup.advertised_addresses import (
    ELSEWHERE,
    GLOO,
    LOOPBACK,
    JobAddresses,
    RankAddress,
    address_fault,
    plain,
    rank_address,
    unknown_to_gloo,
)
from hangdoc.analysis.startup.rendezvous import arrival
from hangdoc.analysis.thresholds import ARRIVED_S, UNANSWERED_S
from hangdoc.discovery.environment import on_loopback
from hangdoc.evidence import Connection, Environ, Process, ProcessGroups, Sockets
from hangdoc.evidence.network import Firewall, InterfaceAddresses
from hangdoc.evidence.rendezvous import Advertised, Mesh
from hangdoc.evidence.stacks import making_group
from hangdoc.evidence.target import parse_endpoint
from hangdoc.formatting import endpoint, fold_hosts

MAX_LINES = 8
GLOO_THREAD = "gloo"


@dataclass(frozen=True, slots=True)
class MeshFacts:
    """One rank that is joining a gloo group, or that failed while joining. None: unknown, or not joining."""

    makes: bool = False  # it is creating the group now
    waited_s: float | None = None  # at least
    host: str | None = None  # host name, as the host reports it
    advertised: str | None = None  # ip:port, or the predicted address if it never got that far
    foreseen: bool = False  # the address is predicted, not seen
    interface: str | None = None  # that has this address
    leads: str | None = None  # interface that reaches the other hosts
    leads_address: str | None = None
    setting: str | None = None  # "GLOO_SOCKET_IFNAME=docker0"; None: not set when the rank was started
    named: str | None = None  # line of the hosts file that maps the host name to this address
    fault: str | None = None  # of the address: loopback | elsewhere (other hosts cannot reach it)
    lacks: tuple[str, ...] = ()  # interfaces in GLOO_SOCKET_IFNAME that the host does not have
    exists: tuple[str, ...] = ()  # interfaces of the host: "eth0 (10.0.0.1)"
    untold: bool | None = None  # GLOO_SOCKET_IFNAME is set for other ranks, but not for this one
    tried: tuple[str, ...] = ()  # addresses of peers that do not answer: "10.0.0.1:4711 (rank 0)"
    tried_s: float | None = None  # for how long, at least
    ended: bool = False  # it failed
    # It lacks an interface, and was started after its peers had begun to wait: restarted, it will fail again.
    late: bool = False
    age_s: float | None = None  # of its process, if it is late
    answers: bool | None = None  # one of these peers is alive and listens
    rules: tuple[str, ...] = ()  # firewall rules of its host that dropped or rejected packets
    refuses: bool | None = None  # one of these rules rejects connections
    stuck: bool | None = None


@dataclass(frozen=True, slots=True)
class UnseenRank:
    """A rank known only from its entry in the store."""

    rank: int
    pid: int | None
    host: str | None
    advertised: str
    fault: str | None


@dataclass(frozen=True, slots=True)
class MeshJob:
    """The group as a whole."""

    pending: bool = False  # they have not waited long enough to be stuck
    in_vain: bool = False  # they wait for a rank that will fail as soon as it joins
    met: bool | None = None  # they have the addresses of their peers; None: unknown
    far: bool = False  # the ranks are on several hosts
    lacking: tuple[int, ...] = ()  # ranks without an entry in the store
    one_sided: bool = False  # ranks with a wrong address have no GLOO_SOCKET_IFNAME, but others do
    loopback: tuple[UnseenRank, ...] = ()  # ranks known only from the store, with a loopback address
    elsewhere: tuple[UnseenRank, ...] = ()  # the same, with an unreachable address
    advertised: tuple[str, ...] = ()  # "rank 0 on node-a advertises 172.17.0.1:4711, on docker0", faulty ones first
    exports: tuple[str, ...] = ()  # "export GLOO_SOCKET_IFNAME=eth0 on node-[a-b]"


class MeshDetector(Detector[MeshFacts, MeshJob]):
    rank_facts = MeshFacts
    job_facts = MeshJob

    def derive(self, case: Case) -> tuple[dict[Key, MeshFacts], MeshJob]:
        making = {key: since for key in case.ranks if (since := mesh_wait_s(case, key)) is not None}
        ended = {
            key
            for key, one in case.facts(ExitFacts).items()
            if one.first and one.kind == "failed" and not _joined(case, key)
        }
        if not making and not ended:
            return dict.fromkeys(case.ranks, MeshFacts()), MeshJob()
        entries, lacking = store_entries(case)
        places = {key: rank_address(case, key, entries) for key in case.ranks}
        unseen_ranks = unseen_addresses(case, entries)
        around = JobAddresses.of(
            [*places.values(), *unseen_ranks.values()], bool(unseen_ranks) or may_span_hosts(case, places)
        )
        faults = {key: address_fault(places[key], around) for key in (*making, *ended)}
        endpoints = rank_by_endpoint(case, places, entries)
        attempts = {key: unanswered_peers(case, key, endpoints) for key in making}
        hopeless = any(age >= UNANSWERED_S for every in attempts.values() for age in every.values())
        met = _met(case, making, attempts, lacking)
        settings = {place.setting for place in places.values()}
        present = {case.ranks[key].target.rank for key in making}
        facts = {key: _facts(case, key, place, making.get(key)) for key, place in places.items()}
        late = _late(case, facts)
        in_vain = hopeless or bool(ended or late) or (any(faults.values()) and not lacking and met is not False)
        for key, place in places.items():
            facts[key] = replace(
                facts[key],
                fault=faults.get(key),
                untold=place.setting is None and len(settings) > 1,
                tried=tuple(attempts.get(key, ())),
                tried_s=max(attempts[key].values(), default=None) if key in attempts else None,
                answers=any(f"(rank {rank})" in one for rank in present for one in attempts[key])
                if key in attempts
                else None,
                ended=key in ended,
                late=key in late,
                age_s=late.get(key),
                stuck=True if in_vain and key in making and (making[key] >= ARRIVED_S) else None,
            )
        return facts, _job(case, facts, unseen_ranks, around, entries, lacking, met)


# --- one rank ------------------------------------------------------------------------------------


def _facts(case: Case, key: Key, place: RankAddress, since: float | None) -> MeshFacts:
    """The facts that need no other rank."""
    held, firewall = place.held, case.record(key, "firewall")
    names = [one.name for one in held.interfaces] if held else []
    own, leads = place.interface, place.uplink
    line = held.line if held and held.line and place.setting is None and place.address in (held.named or ()) else None
    return MeshFacts(
        makes=since is not None,
        waited_s=since,
        host=_host(case, key, place),
        advertised=_address(place),
        foreseen=place.foreseen,
        interface=own.name if own else None,
        leads=leads.name if leads else None,
        leads_address=place.store_address or (plain(leads.addresses[0]) if leads and leads.addresses else None),
        setting=f"{GLOO}={place.setting}" if place.setting else None,
        named=line,
        lacks=unknown_to_gloo(place.setting, names) if place.setting and names and not _joined(case, key) else (),
        exists=tuple(_format_interface(one) for one in held.interfaces) if held else (),
        rules=tuple(f"{rule.text} ({rule.packets} packets)" for rule in firewall.rules)
        if isinstance(firewall, Firewall)
        else (),
        refuses=any(rule.refuses for rule in firewall.rules) if isinstance(firewall, Firewall) else None,
    )


def _late(case: Case, facts: Mapping[Key, MeshFacts]) -> dict[Key, float]:
    """Ranks that are still on their way to the group, cannot join it, and are younger (s) than the wait of a peer.

    A script may correct the setting, so a first start proves nothing. A supervisor starts again what has failed. Where
    a peer has come so far in spite of the same setting, the script does correct it.
    """
    if any(one.makes and one.lacks for one in facts.values()):
        return {}
    ages: dict[Key, float] = {}
    for key, one in facts.items():
        process, seen = case.record(key, "cpu"), isinstance(case.record(key, "groups"), ProcessGroups)
        if one.lacks and seen and not one.makes and case.ranks[key].alive and isinstance(process, Process):
            ages[key] = process.age_s
    if not ages:
        return {}
    waits = [arrival(case, key).waited_s or 0.0 for key, one in facts.items() if one.makes]
    return {key: age_s for key, age_s in ages.items() if age_s < max(waits, default=0.0)}


def _joined(case: Case, key: Key) -> bool:
    """True if the rank is already a member of a group: gloo has found its interface."""
    return bool(getattr(case.record(key, "groups"), "groups", ()))


def _format_interface(one: InterfaceAddresses) -> str:
    addresses = [plain(text) for text in one.addresses if not text.lower().startswith("fe80:")]
    return one.name + (f" ({', '.join(addresses)})" if addresses else " (no address)") + ("" if one.up else ", down")


def _host(case: Case, key: Key, place: RankAddress) -> str:
    return (place.held.hostname if place.held else None) or case.ranks[key].target.host


def _address(place: RankAddress) -> str | None:
    if place.address is None or place.port is None:
        return place.address
    return endpoint(place.address, place.port)


# --- the group -----------------------------------------------------------------------------------


def _job(
    case: Case,
    facts: Mapping[Key, MeshFacts],
    unseen_ranks: Mapping[int, RankAddress],
    around: JobAddresses,
    entries: Mapping[int, Advertised],
    lacking: tuple[int, ...],
    met: bool | None,
) -> MeshJob:
    making = [key for key, one in facts.items() if one.makes]
    unseen = [
        UnseenRank(rank, None, entries[rank].hostname, _address(place) or "", address_fault(place, around))
        for rank, place in unseen_ranks.items()
    ]
    return MeshJob(
        pending=bool(making) and not any(one.stuck for one in facts.values()),
        in_vain=any(one.late for one in facts.values()) and any(one.stuck for one in facts.values()),
        met=met,
        far=around.far,
        lacking=lacking,
        one_sided=any(one.fault for one in facts.values()) and all(one.untold for one in facts.values() if one.fault),
        loopback=tuple(one for one in unseen if one.fault == LOOPBACK),
        elsewhere=tuple(one for one in unseen if one.fault == ELSEWHERE),
        advertised=_format_addresses(case, facts, unseen),
        exports=_exports(facts),
    )


def _met(
    case: Case, making: Iterable[Key], attempts: Mapping[Key, Mapping[str, float]], lacking: tuple[int, ...]
) -> bool | None:
    """True if the ranks have the addresses of their peers; None: unknown.

    They do if one of them tries to connect, or if the store lacks no address. Without the store, the native frames show
    whether a rank waits for an address (c10d) or for a peer (gloo).
    """
    if any(attempts.values()):
        return True
    if any(isinstance(case.record(key, "mesh"), Mesh) for key in making):
        return not lacking
    leaves = [leaf for key in making if (leaf := case.facts(StackFacts)[key].native_leaf)]
    if any("c10d::" in leaf for leaf in leaves):
        return False
    return True if any("waitUntilConnected" in leaf for leaf in leaves) else None


def _format_addresses(case: Case, facts: Mapping[Key, MeshFacts], unseen: Sequence[UnseenRank]) -> tuple[str, ...]:
    """The address of each rank, faulty ones first, at most MAX_LINES."""
    lines: list[tuple[bool, int, str]] = []
    for key, one in facts.items():
        rank = case.ranks[key].target.rank
        if one.advertised and rank is not None and (one.makes or one.fault):
            on = f", on {one.interface}" if one.interface else ""
            verb = "would have advertised" if one.foreseen else "advertises" if one.makes else "advertised"
            way = f"; {one.leads} ({one.leads_address}) reaches the other hosts" if one.fault and one.leads else ""
            lines.append((not one.fault, rank, f"rank {rank} on {one.host} {verb} {one.advertised}{on}{way}"))
    lines += [
        (not one.fault, one.rank, f"rank {one.rank} on {one.host or 'another host'} advertises {one.advertised}")
        for one in unseen
    ]
    return tuple(text for _, _, text in sorted(lines)[:MAX_LINES])


def _exports(facts: Mapping[Key, MeshFacts]) -> tuple[str, ...]:
    """The GLOO_SOCKET_IFNAME to set on each host."""
    hosts: dict[str, set[str]] = {}
    for one in facts.values():
        if one.leads and one.host:
            hosts.setdefault(one.leads, set()).add(one.host)
    return tuple(f"export {GLOO}={name} on {fold_hosts(each)}" for name, each in sorted(hosts.items()))


# --- peers and the store --------------------------------------------------------------------------


def mesh_wait_s(case: Case, key: Key) -> float | None:
    """How long a rank has been creating a gloo group (s), at least; None: it is not."""
    if case.ranks[key].alive is False or case.facts(StackFacts)[key].phase != "startup":
        return None
    frame, process = making_group(case.record(key, "stacks")), case.record(key, "cpu")
    if frame is None or not isinstance(process, Process):
        return None
    backend = next((one.text for one in frame.variables or () if one.name == "backend" and one.kind != "none"), "")
    if not any(thread.comm.startswith(GLOO_THREAD) for thread in process.threads) or "nccl" in backend:
        return None
    return case.facts(ProgressFacts)[key].standing_s or 0.0


def store_entries(case: Case) -> tuple[dict[int, Advertised], tuple[int, ...]]:
    """The entries in the store, and the ranks without one."""
    records = [record for key in case.ranks if isinstance(record := case.record(key, "mesh"), Mesh)]
    entries = {one.rank: one for record in records for one in record.advertised}
    return entries, tuple(sorted({rank for record in records for rank in record.missing} - entries.keys()))


def unseen_addresses(case: Case, entries: Mapping[int, Advertised]) -> dict[int, RankAddress]:
    """The addresses of ranks known only from the store. Their hosts are unknown."""
    seen = {rank.target.rank for rank in case.ranks.values()}
    return {
        number: RankAddress(("", -1 - number), None, None, one.address, one.port)
        for number, one in entries.items()
        if number not in seen
    }


def may_span_hosts(case: Case, places: Mapping[Key, RankAddress]) -> bool:
    """True if the location of some ranks is unknown, and they may be on other hosts."""
    size = case.job(WorldJob).size or 0
    known = sum(place.location is not None for place in places.values())
    return known < size and not any(_on_one_host(case, key, size) for key in case.ranks)


def _on_one_host(case: Case, key: Key, size: int) -> bool:
    """True if the job is on one host: the store is on loopback, or one launcher started all ranks."""
    environ = case.record(key, "environ")
    started = environ.variables.get("LOCAL_WORLD_SIZE") if isinstance(environ, Environ) else None
    return on_loopback(case.ranks[key].target.master) or started == str(size)


def unanswered_peers(case: Case, key: Key, endpoints: Mapping[tuple[str, int], int]) -> dict[str, float]:
    """Unanswered connection attempts of a rank to peers, with their age (s) by observation or by retransmissions."""
    master = parse_endpoint(case.ranks[key].target.master or "")
    series = [(at, one) for at, one in case.series(key, "sockets") if isinstance(one, Sockets)]
    newest = [
        one
        for one in (series[-1][1].connections if series else ())
        if one.state == "syn_sent" and (master is None or one.remote_port != master[1])
    ]
    if not newest:
        return {}
    return {_format_peer(one, endpoints): max(_observed_s(one, series), syn_age_s(one)) for one in newest}


def rank_by_endpoint(
    case: Case, places: Mapping[Key, RankAddress], entries: Mapping[int, Advertised]
) -> dict[tuple[str, int], int]:
    """The rank that advertises each address and port."""
    endpoints = {(one.address, one.port): rank for rank, one in entries.items()}
    for key, place in places.items():
        rank = case.ranks[key].target.rank
        if place.address and place.port and rank is not None:
            endpoints[place.address, place.port] = rank
    return endpoints


def _observed_s(one: Connection, series: Sequence[tuple[float, Sockets]]) -> float:
    wanted = identity(one)
    first = next(at for at, record in series if any(identity(other) == wanted for other in record.connections))
    return series[-1][0] - first


def _format_peer(one: Connection, endpoints: Mapping[tuple[str, int], int]) -> str:
    rank = endpoints.get((one.remote, one.remote_port))
    return endpoint(one.remote, one.remote_port) + (f" (rank {rank})" if rank is not None else "")


ANALYSIS = MeshDetector()
