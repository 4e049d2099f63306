"""Analysis `mesh`: the ranks of a gloo group on their way to one another: who advertises what, who gets nowhere.

Every rank of a group leaves its address in the job's store, and of each pair one connects to the other. That takes a
moment. A rank whose connection is refused ends at once, its peers wait on: for minutes, or for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hangdoc.analysis import Case, Key
from hangdoc.analysis.network.tcp_counters import identity, syn_age_s
from hangdoc.analysis.startup.advertised_addresses import (
    ELSEWHERE,
    GLOO,
    LOOPBACK,
    Place,
    Surroundings,
    fault,
    place_in,
    plain,
    unknown_to_gloo,
)
from hangdoc.discovery.environment import on_loopback
from hangdoc.evidence import Connection, Environ, Process, Sockets
from hangdoc.evidence.network import Firewall, InterfaceAddresses
from hangdoc.evidence.rendezvous import Advertised, Mesh
from hangdoc.evidence.stacks import making_group
from hangdoc.evidence.target import parse_endpoint
from hangdoc.formatting import endpoint, fold_hosts

STANDS_S = 5.0  # the group of a thousand ranks is made sooner
UNANSWERED_S = 3.0
MOST_LINES = 8


@dataclass(frozen=True, slots=True)
class MeshFacts:
    """One rank that is being made a member of a gloo group, or that ended on its way; None: it is not, or not known."""

    makes: bool = False  # it stands there
    waited_s: float | None = None  # at least
    host: str | None = None  # what its host calls itself
    advertised: str | None = None  # ip:port, or where it never got so far the address
    foreseen: bool = False  # it has not been seen to advertise that, but would have
    interface: str | None = None  # that holds it
    leads: str | None = None  # interface by which it reaches the other hosts
    leads_address: str | None = None
    setting: str | None = None  # "GLOO_SOCKET_IFNAME=docker0"; None: not set when it was started
    named: str | None = None  # the line of the hosts file by which its host's name is that address
    fault: str | None = None  # of the address: loopback | elsewhere
    lacks: tuple[str, ...] = ()  # interfaces that it was told to use and its host has not
    exists: tuple[str, ...] = ()  # those that the host has: "eth0 (10.0.0.1)"
    untold: bool | None = None  # others were told an interface, it was not
    tried: tuple[str, ...] = ()  # addresses of other ranks that do not answer: "10.0.0.1:4711 (rank 0)"
    tried_s: float | None = None  # since when, at least
    ended: bool = False  # by a fault
    answers: bool | None = None  # one that it tries is there, and listens
    rules: tuple[str, ...] = ()  # of its host's firewall, that have kept packets back
    refuses: bool | None = None  # one of them answers that nobody listens
    stuck: bool | None = None


@dataclass(frozen=True, slots=True)
class Unseen:
    """A rank of which only what it left in the store is known."""

    rank: int
    pid: int | None
    host: str | None
    advertised: str
    fault: str | None


@dataclass(frozen=True, slots=True)
class MeshJob:
    """The group as a whole."""

    making: int = 0  # ranks that stand there
    pending: bool = False  # and not for long enough to say that it is in vain
    met: bool | None = None  # they have one another's addresses; None: not known
    far: bool = False  # the ranks are on several hosts
    lacking: tuple[int, ...] = ()  # ranks that have left no address
    one_sided: bool = False  # where an address is wrong, no interface was told; elsewhere one was
    loopback: tuple[Unseen, ...] = ()  # ranks seen in the store alone, by what is wrong with their addresses
    elsewhere: tuple[Unseen, ...] = ()
    advertised: tuple[str, ...] = ()  # "rank 0 on node-a advertises 172.17.0.1:4711 (docker0)", what is wrong first
    exports: tuple[str, ...] = ()  # "GLOO_SOCKET_IFNAME=eth0 on node-[a-b]"


@dataclass(slots=True)
class MeshAnalysis:
    name: str = "mesh"
    order: int = 43  # before startup, which asks whether it is still too early to say
    rank_facts: type | None = MeshFacts
    job_facts: type | None = MeshJob

    def derive(self, case: Case) -> tuple[dict[Key, MeshFacts], MeshJob]:
        making = {key: since for key in case.ranks if (since := makes(case, key)) is not None}
        ended = {
            key
            for key, one in case.rank_facts["exit"].items()
            if one.first and one.kind == "failed" and not _joined(case, key)
        }
        if not making and not ended:
            return dict.fromkeys(case.ranks, MeshFacts()), MeshJob()
        left, lacking = in_store(case)
        places = {key: place_in(case, key, left) for key in case.ranks}
        others = strangers(case, left)
        around = Surroundings.of([*places.values(), *others.values()], bool(others) or incomplete(case, places))
        faults = {key: fault(places[key], around) for key in (*making, *ended)}
        whose = whose_addresses(case, places, left)
        dialled = {key: tried(case, key, whose) for key in making}
        hopeless = any(age >= UNANSWERED_S for every in dialled.values() for age in every.values())
        met = _met(case, making, dialled, lacking)
        in_vain = hopeless or bool(ended) or (any(faults.values()) and not lacking and met is not False)
        told = {place.told for place in places.values()}
        present = {case.ranks[key].target.rank for key in making}
        facts = {}
        for key, place in places.items():
            one = _facts(case, key, place, making.get(key))
            facts[key] = replace(
                one,
                fault=faults.get(key),
                untold=place.told is None and len(told) > 1,
                tried=tuple(dialled.get(key, ())),
                tried_s=max(dialled[key].values(), default=None) if key in dialled else None,
                answers=any(f"(rank {rank})" in one for rank in present for one in dialled[key])
                if key in dialled
                else None,
                ended=key in ended,
                stuck=True if in_vain and key in making and (making[key] >= STANDS_S) else None,
            )
        return facts, _job(case, facts, others, around, left, lacking, met)


# --- what is said of each -------------------------------------------------------------------------


def _facts(case: Case, key: Key, place: Place, since: float | None) -> MeshFacts:
    """What is known of one rank alone."""
    held, firewall = place.held, case.record(key, "firewall")
    names = [one.name for one in held.interfaces] if held else []
    own, leads = place.interface, place.leads
    line = held.line if held and held.line and place.told is None and place.address in (held.named or ()) else None
    return MeshFacts(
        makes=since is not None,
        waited_s=since,
        host=_host(case, key, place),
        advertised=_address(place),
        foreseen=place.foreseen,
        interface=own.name if own else None,
        leads=leads.name if leads else None,
        leads_address=place.meets or (plain(leads.addresses[0]) if leads and leads.addresses else None),
        setting=f"{GLOO}={place.told}" if place.told else None,
        named=line,
        lacks=unknown_to_gloo(place.told, names) if place.told and names and not _joined(case, key) else (),
        exists=tuple(_held(one) for one in held.interfaces) if held else (),
        rules=tuple(f"{rule.text} ({rule.packets} packets)" for rule in firewall.rules)
        if isinstance(firewall, Firewall)
        else (),
        refuses=any(rule.refuses for rule in firewall.rules) if isinstance(firewall, Firewall) else None,
    )


def _joined(case: Case, key: Key) -> bool:
    """It is a member of a group: gloo has found what it was told to look for."""
    return bool(getattr(case.record(key, "groups"), "groups", ()))


def _held(one: InterfaceAddresses) -> str:
    addresses = [plain(text) for text in one.addresses if not text.lower().startswith("fe80:")]
    return one.name + (f" ({', '.join(addresses)})" if addresses else " (no address)") + ("" if one.up else ", down")


def _host(case: Case, key: Key, place: Place) -> str:
    return (place.held.hostname if place.held else None) or case.ranks[key].target.host


def _address(place: Place) -> str | None:
    if place.address is None or place.port is None:
        return place.address
    return endpoint(place.address, place.port)


# --- and of the group -----------------------------------------------------------------------------


def _job(
    case: Case,
    facts: Mapping[Key, MeshFacts],
    others: Mapping[int, Place],
    around: Surroundings,
    left: Mapping[int, Advertised],
    lacking: tuple[int, ...],
    met: bool | None,
) -> MeshJob:
    making = [key for key, one in facts.items() if one.makes]
    unseen = [
        Unseen(rank, None, left[rank].hostname, _address(place) or "", fault(place, around))
        for rank, place in others.items()
    ]
    return MeshJob(
        making=len(making),
        pending=bool(making) and not any(one.stuck for one in facts.values()),
        met=met,
        far=around.far,
        lacking=lacking,
        one_sided=any(one.fault for one in facts.values()) and all(one.untold for one in facts.values() if one.fault),
        loopback=tuple(one for one in unseen if one.fault == LOOPBACK),
        elsewhere=tuple(one for one in unseen if one.fault == ELSEWHERE),
        advertised=_lines(case, facts, unseen),
        exports=_exports(facts),
    )


def _met(
    case: Case, making: Iterable[Key], dialled: Mapping[Key, Mapping[str, float]], lacking: tuple[int, ...]
) -> bool | None:
    """Whether the ranks have one another's addresses; None: not known.

    They have where one tries to connect, or where the store lacks none. Where the store was not read, native frames say
    whether they wait for an address there (c10d) or for a peer (gloo).
    """
    if any(dialled.values()):
        return True
    if any(isinstance(case.record(key, "mesh"), Mesh) for key in making):
        return not lacking
    leaves = [leaf for key in making if (leaf := case.rank_facts["stack"][key].native_leaf)]
    if any("c10d::" in leaf for leaf in leaves):
        return False
    return True if any("waitUntilConnected" in leaf for leaf in leaves) else None


def _lines(case: Case, facts: Mapping[Key, MeshFacts], unseen: Sequence[Unseen]) -> tuple[str, ...]:
    """What each rank advertises, what is wrong first; at most so many that they can be read."""
    told: list[tuple[bool, int, str]] = []
    for key, one in facts.items():
        rank = case.ranks[key].target.rank
        if one.advertised and rank is not None and (one.makes or one.fault):
            on = f", on {one.interface}" if one.interface else ""
            verb = "would have advertised" if one.foreseen else "advertises" if one.makes else "advertised"
            way = f"; {one.leads} ({one.leads_address}) leads to the others" if one.fault and one.leads else ""
            told.append((not one.fault, rank, f"rank {rank} on {one.host} {verb} {one.advertised}{on}{way}"))
    told += [
        (not one.fault, one.rank, f"rank {one.rank} on {one.host or 'another host'} advertises {one.advertised}")
        for one in unseen
    ]
    return tuple(text for _, _, text in sorted(told)[:MOST_LINES])


def _exports(facts: Mapping[Key, MeshFacts]) -> tuple[str, ...]:
    """What to tell the ranks of each host."""
    hosts: dict[str, set[str]] = {}
    for one in facts.values():
        if one.leads and one.host:
            hosts.setdefault(one.leads, set()).add(one.host)
    return tuple(f"export {GLOO}={name} on {fold_hosts(each)}" for name, each in sorted(hosts.items()))


GLOO_THREAD = "gloo"


def makes(case: Case, key: Key) -> float | None:
    """For how long, at least, a rank has stood in the making of a gloo group (s)."""
    if case.ranks[key].alive is False or case.rank_facts["stack"][key].phase != "startup":
        return None
    frame, process = making_group(case.record(key, "stacks")), case.record(key, "cpu")
    if frame is None or not isinstance(process, Process):
        return None
    backend = next((one.text for one in frame.variables or () if one.name == "backend" and one.kind != "none"), "")
    if not any(thread.comm.startswith(GLOO_THREAD) for thread in process.threads) or "nccl" in backend:
        return None
    return case.rank_facts["progress"][key].standing_s or 0.0


def in_store(case: Case) -> tuple[dict[int, Advertised], tuple[int, ...]]:
    """What the store holds, and the ranks of which it holds nothing."""
    records = [record for key in case.ranks if isinstance(record := case.record(key, "mesh"), Mesh)]
    left = {one.rank: one for record in records for one in record.advertised}
    return left, tuple(sorted({rank for record in records for rank in record.missing} - left.keys()))


def strangers(case: Case, left: Mapping[int, Advertised]) -> dict[int, Place]:
    """The places of ranks that only the store knows of; that of a host is not known."""
    seen = {rank.target.rank for rank in case.ranks.values()}
    return {
        number: Place(("", -1 - number), None, None, one.address, one.port)
        for number, one in left.items()
        if number not in seen
    }


def incomplete(case: Case, places: Mapping[Key, Place]) -> bool:
    """Of some ranks it is not known where they are, and they may be on other hosts."""
    size = case.job_facts["world"].size or 0
    known = sum(place.where is not None for place in places.values())
    return known < size and not any(_alone(case, key, size) for key in case.ranks)


def _alone(case: Case, key: Key, size: int) -> bool:
    """Its job is on one host: the store is on loopback, or all ranks were started by one launcher."""
    environ = case.record(key, "environ")
    started = environ.variables.get("LOCAL_WORLD_SIZE") if isinstance(environ, Environ) else None
    return on_loopback(case.ranks[key].target.master) or started == str(size)


def tried(case: Case, key: Key, whose: Mapping[tuple[str, int], int]) -> dict[str, float]:
    """The connections of a rank to others that nobody answers, and since when (s), as watched or as repeated."""
    master = parse_endpoint(case.ranks[key].target.master or "")
    series = [(at, one) for at, one in case.series(key, "sockets") if isinstance(one, Sockets)]
    newest = [
        one
        for one in (series[-1][1].connections if series else ())
        if one.state == "syn_sent" and (master is None or one.remote_port != master[1])
    ]
    if not newest:
        return {}
    return {_named(one, whose): max(_watched(one, series), syn_age_s(one)) for one in newest}


def whose_addresses(
    case: Case, places: Mapping[Key, Place], left: Mapping[int, Advertised]
) -> dict[tuple[str, int], int]:
    """The rank that advertises an address and port."""
    whose = {(one.address, one.port): rank for rank, one in left.items()}
    for key, place in places.items():
        rank = case.ranks[key].target.rank
        if place.address and place.port and rank is not None:
            whose[place.address, place.port] = rank
    return whose


def _watched(one: Connection, series: Sequence[tuple[float, Sockets]]) -> float:
    wanted = identity(one)
    first = next(at for at, record in series if any(identity(other) == wanted for other in record.connections))
    return series[-1][0] - first


def _named(one: Connection, whose: Mapping[tuple[str, int], int]) -> str:
    rank = whose.get((one.remote, one.remote_port))
    return endpoint(one.remote, one.remote_port) + (f" (rank {rank})" if rank is not None else "")


ANALYSIS = MeshAnalysis()
