"""Who stands in the making of a gloo group, and what is known of the others: by the store, and by their sockets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hangdoc.analysis import Case, Key
from hangdoc.analysis.network.tcp_counters import asked_s, identity
from hangdoc.analysis.startup.advertised_addresses import Place
from hangdoc.discovery.environment import on_loopback
from hangdoc.evidence import Connection, Environ, Process, Sockets
from hangdoc.evidence.rendezvous import Advertised, Mesh
from hangdoc.evidence.stacks import making_group
from hangdoc.evidence.target import parse_endpoint
from hangdoc.formatting import endpoint

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
    return {_named(one, whose): max(_watched(one, series), asked_s(one)) for one in newest}


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
