"""Analysis `launches`: settings of one job that its hosts or ranks were launched with, and that do not fit together.

The address of the store, its port, the numbers of hosts and ranks and the id of the rendezvous must be the same
everywhere, and the number of each host or rank its own.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hangdoc.analysis import Case, Detector, Key, Suspect
from hangdoc.analysis.logs.log_events import JobLogs, job_logs, known_host
from hangdoc.analysis.ranks.host_ranks import ranks_per_host
from hangdoc.analysis.thresholds import COMPARABLE_RANKS
from hangdoc.evidence.limits import parse_count

KIND = "launch_setting"
MAX_SUSPECTS = 16
SHARED = ("master_port", "master_addr", "rdzv_endpoint", "world_size", "nnodes", "rdzv_id", "rdzv_backend")
SIZES = ("nnodes", "world_size")
STATIC = "static"  # the rendezvous that uses the number of the host
FIRST_RANK = "rank 0"
ALONE = "1"  # number of hosts or ranks of a job that does not wait for others
_NUMERIC = re.compile(r"[\d.]+|\[?[\da-fA-F:]*:[\da-fA-F:]*\]?")
_LOCAL = re.compile(r"localhost$|127\.|0\.0\.0\.0$|::1$")
_PORT = re.compile(r":\d{1,5}$")

Settings = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LaunchesJob:
    """None or empty: the settings that a text shows fit together, or belong to several jobs."""

    text: str | None = None  # "master_port 29601 on gn3, 29610 on gn1, gn2"
    odd: tuple[Suspect, ...] = ()  # the hosts or ranks with another setting than most; none of two
    clear: bool = False  # most of three or more agree, or none is right
    apart: bool = False  # each looks for the store elsewhere: none is right


class LaunchesDetector(Detector[object, LaunchesJob]):
    job_facts = LaunchesJob

    def derive(self, case: Case) -> tuple[dict[Key, object], LaunchesJob]:
        logs = job_logs(case)
        events = list(logs.all(KIND)) if logs else []
        by_owner = {event.fields["owner"]: event.fields for event in events if "owner" in event.fields}
        if told := _told_apart(logs) if logs else None:
            return {}, LaunchesJob(told)
        if len(by_owner) < 2 or any("ambiguous" in event.fields for event in events):
            return {}, LaunchesJob()
        if len({fields["script"] for fields in by_owner.values() if "script" in fields}) > 1:
            return {}, LaunchesJob()
        if all(one.get("nnodes") == ALONE for one in by_owner.values()) and not _one_store(by_owner):
            return {}, LaunchesJob()  # jobs of one host each
        found = _all_apart(by_owner) or next(_differences(by_owner), None) or _own_numbers(by_owner)
        found = found or _own_store(by_owner) or _strays(by_owner) or _all_local(by_owner, ranks_per_host(case))
        return {}, found or LaunchesJob()


def _told_apart(logs: JobLogs) -> str | None:
    """What NCCL says of the settings of its processes, when the first of them counts the others (src/bootstrap.cc)."""
    for event in logs.all("told_sizes"):
        return f"one process told NCCL of {event.fields['size_a']} ranks, and another of {event.fields['size_b']}"
    for event in logs.all("told_twice"):
        return f"two processes came to NCCL as rank {event.fields['reporter']} of {event.fields['size']}"
    return None


def _all_apart(by_owner: Mapping[str, Settings]) -> LaunchesJob | None:
    """An address or a port of the store that differs on every rank or host of one job: no two of them meet."""
    if len(by_owner) < COMPARABLE_RANKS or not _one_job(by_owner):
        return None
    for name in ("master_port", "master_addr"):
        values = {owner: one[name] for owner, one in by_owner.items() if name in one}
        if len(values) == len(by_owner) and len({_bare(value) for value in values.values()}) == len(values):
            return LaunchesJob(f"each has its own: {_sides(name, values, ())}", (), True, True)
    return None


def _all_local(by_owner: Mapping[str, Settings], per_host: int | None) -> LaunchesJob | None:
    """Ranks or launchers of one job, on several hosts, each of which looks for the store on its own host.

    `per_host`: processes on each host, as the text states it.
    """
    name = "rdzv_endpoint" if all("rdzv_endpoint" in one for one in by_owner.values()) else "master_addr"
    values = {owner: one.get(name, "") for owner, one in by_owner.items()}
    hosts = len({host for one in by_owner.values() if (host := known_host(one.get("host", "")))})
    sizes = {one["nnodes"] for one in by_owner.values() if "nnodes" in one}
    tasks = per_host == 1 and sizes == {str(len(by_owner))}  # of Slurm, for example: one launcher on each host
    apart = tasks or (hosts > 1 and _one_job(by_owner))
    if len(values) < 2 or not apart or not all(_LOCAL.match(_PORT.sub("", value)) for value in values.values()):
        return None
    what = "launchers" if tasks else "ranks"
    text = f"{what} of {hosts or len(values)} hosts use their own host: {_sides(name, values, ())}"
    return LaunchesJob(text, (), True, True)


def _strays(by_owner: Mapping[str, Settings]) -> LaunchesJob | None:
    """Hosts that look for the store on themselves, while two others or more look for it on one of those."""
    values = {
        owner: _PORT.sub("", one.get("master_addr") or one.get("rdzv_endpoint", "")) for owner, one in by_owner.items()
    }
    local = [owner for owner, value in values.items() if _LOCAL.match(value)]
    named = Counter(_bare(value) for owner, value in values.items() if owner not in local)
    if len(named) != 1 or sum(named.values()) < COMPARABLE_RANKS - 1:
        return None
    server = next(iter(named))
    odd = [owner for owner in local if _bare(owner) != server]
    if not odd or server not in map(_bare, by_owner):
        return None
    return LaunchesJob(_sides("master_addr", values, odd), _suspects(odd), True)


def _one_job(by_owner: Mapping[str, Settings]) -> bool:
    """True if the launches have numbers of their own, all below one size; without a size, all numbers from 0."""
    numbers = {number for one in by_owner.values() if (number := parse_count(_number(one))) is not None}
    by_rank = all("rank" in one for one in by_owner.values())
    sizes = {one.get("world_size" if by_rank else "nnodes") for one in by_owner.values()} - {None}
    size = parse_count(next(iter(sizes))) if len(sizes) == 1 else None if sizes else len(by_owner)
    return len(numbers) == len(by_owner) and size is not None and max(numbers) < size


def _bare(value: str) -> str:
    return value.partition(".")[0] if not _NUMERIC.fullmatch(value) else value


def _differences(by_owner: Mapping[str, Settings]) -> Iterator[LaunchesJob]:
    """Settings that must be the same and differ, if the launches have another one in common."""
    alike = [name for name in SHARED if len({one.get(name) for one in by_owner.values()} - {None}) == 1]
    for name in SHARED:
        values = {owner: value for owner, one in by_owner.items() if (value := _value(name, one)) is not None}
        counts = Counter(values.values()).most_common()
        if len(counts) < 2 or not alike or (name in SIZES and ALONE in values.values() and not _one_store(by_owner)):
            continue
        if name == "master_addr" and (server := _server(by_owner)) in values:
            odd = [owner for owner, value in values.items() if value != values[server]]
            yield LaunchesJob(_sides(name, values, odd), _suspects(odd), True)
            continue
        if name == "master_port" and len(values) == 2 and (first := _store_host(by_owner)) in values:
            odd = [owner for owner in values if owner != first]
            yield LaunchesJob(_sides(name, values, odd), _suspects(odd), True)
            continue
        if len(counts) == len(values) > 2:
            continue  # it differs everywhere: each has its own job
        usual, count = counts[0]
        clear = len(values) >= COMPARABLE_RANKS and count > counts[1][1]
        odd = [owner for owner, value in values.items() if clear and value != usual]
        yield LaunchesJob(_sides(name, values, odd), _suspects(odd), clear)


def _value(name: str, settings: Settings) -> str | None:
    """The value, where it can be compared: an address may be local on its own host, and one host has several names."""
    value = settings.get(name)
    if value is None or name not in ("master_addr", "rdzv_endpoint"):
        return value
    port = _PORT.search(value)
    address = value[: port.start()] if port else value
    if _LOCAL.match(address) or _NUMERIC.fullmatch(address):
        return None if _LOCAL.match(address) or name == "rdzv_endpoint" else value
    return address.partition(".")[0] + (port[0] if port else "")


def _one_store(by_owner: Mapping[str, Settings]) -> bool:
    """True if all launches name one address of a store that is not local, and numbers of hosts of their own."""
    addresses = {one.get("master_addr") or one.get("rdzv_endpoint", "") for one in by_owner.values()}
    numbers = [one.get("node_rank") for one in by_owner.values()]
    local = any(not address or _LOCAL.match(address) for address in addresses)
    return len(addresses) == 1 and not local and None not in numbers and len(set(numbers)) == len(numbers)


def _store_host(by_owner: Mapping[str, Settings]) -> str:
    """Node 0, which opens the port that the others connect to (static rendezvous). Empty: not known."""
    static = all(one.get("rdzv_backend", STATIC) == STATIC for one in by_owner.values())
    return _node_0(by_owner) if static and all("node_rank" in one for one in by_owner.values()) else ""


def _node_0(by_owner: Mapping[str, Settings]) -> str:
    """The only launch with node_rank 0. Empty: none, or several."""
    first = [owner for owner, one in by_owner.items() if one.get("node_rank") == "0"]
    return first[0] if len(first) == 1 else ""


def _server(by_owner: Mapping[str, Settings]) -> str:
    """The owner that serves the store: rank 0, or the host that alone is number 0 of several, and whose own address it
    is. Empty: not known.
    """
    if FIRST_RANK in by_owner:  # of a list of ranks: where rank 0 is told to serve it, others must look for it
        return FIRST_RANK
    numbers = Counter(one["node_rank"] for one in by_owner.values() if "node_rank" in one)
    first = _node_0(by_owner)
    if len(numbers) < 2 or max(numbers.values()) > 1 or not first:
        return ""
    return first if _serves(first, by_owner[first]) else ""


def _serves(owner: str, settings: Settings) -> bool:
    """True if the address of the store is that of this host, as far as the text names it."""
    address = settings.get("master_addr") or _PORT.sub("", settings.get("rdzv_endpoint", ""))
    named = not _NUMERIC.fullmatch(address) and address.partition(".")[0] == owner.partition(".")[0]
    return bool(address) and (named or address in (owner, settings.get("address")))


def _twice(name: str, number: str, owners: Sequence[str], by_owner: Mapping[str, Settings]) -> LaunchesJob:
    """Launches with the same number: of the host that serves the store it is right, if it is 0."""
    servers = [owner for owner in owners if _serves(owner, by_owner[owner])]
    text = f"{name} {number} on {' and '.join(owners[:4])}"
    if name != "node_rank" or len(servers) != 1:
        return LaunchesJob(text)
    odd = [owner for owner in owners if (owner in servers) != (number == "0")]
    return LaunchesJob(f"{text}, of which {servers[0]} serves the store", _suspects(odd), True)


def _literal(name: str, size: str, owners: Sequence[str], by_owner: Mapping[str, Settings]) -> bool:
    """True if all launches have one number because somebody typed it on each of several machines.

    A template has it too, and a rendezvous by etcd or c10d ignores it (torch/distributed/run.py).
    """
    launches = [by_owner[owner] for owner in owners]
    several = all((parse_count(one.get(size)) or 0) > 1 for one in launches)
    dynamic = any(one.get("rdzv_backend", STATIC) != STATIC for one in launches)
    return name == "node_rank" and several and not dynamic and all("machine" in one for one in launches)


def _own_numbers(by_owner: Mapping[str, Settings]) -> LaunchesJob | None:
    """The same number of a host or rank twice, or one beyond the size."""
    for name, size in (("node_rank", "nnodes"), ("rank", "world_size")):
        owners: dict[str, list[str]] = defaultdict(list)
        for owner, one in by_owner.items():
            if name in one:
                owners[one[name]].append(owner)
            number, most = parse_count(one.get(name)), parse_count(one.get(size))
            if number is not None and most is not None and number >= most > 1:
                return LaunchesJob(f"{name} {number} on {owner}, of {size} {most}", _suspects([owner]), True)
        twice = next(((number, found) for number, found in owners.items() if len(found) > 1), None)
        # All alike: the lines may be of a template, and the number comes from elsewhere.
        if twice and (len(owners) > 1 or _literal(name, size, twice[1], by_owner)):
            return _twice(name, *twice, by_owner)
    return None


def _own_store(by_owner: Mapping[str, Settings]) -> LaunchesJob | None:
    """A host that looks for the store on itself, while rank 0, which serves it, was launched on another host."""
    name = "master_addr"
    addresses = {owner: one[name] for owner, one in by_owner.items() if name in one and known_host(owner)}
    numbers = {owner: _number(by_owner[owner]) for owner in addresses}
    servers = [owner for owner, number in numbers.items() if number == "0"]
    odd = [
        owner
        for owner, address in addresses.items()
        if _LOCAL.match(address) and numbers[owner] not in (None, "0") and servers and owner not in servers
    ]
    several = all(
        (parse_count(by_owner[owner].get(size)) or 2) > 1 for owner in (*odd, *servers) for size in SIZES
    )  # none of them is a job of its own
    others = {addresses[owner] for owner in servers if not _LOCAL.match(addresses[owner])}
    if not odd or not several or not others or len(servers) > 1:
        return None
    named = tuple(Suspect(parse_count(by_owner[owner].get("rank")), None, owner) for owner in odd)
    return LaunchesJob(_sides(name, addresses, odd), named[:MAX_SUSPECTS], True)


def _number(settings: Settings) -> str | None:
    return settings.get("rank") or settings.get("node_rank")


def _sides(name: str, values: Mapping[str, str], first: Sequence[str]) -> str:
    sides: dict[str, list[str]] = defaultdict(list)
    for owner in sorted(values, key=lambda owner: (owner not in first, owner)):
        sides[values[owner]].append(owner)
    return f"{name} " + ", ".join(f"{value} on {', '.join(owners[:4])}" for value, owners in sides.items())[:300]


def _suspects(owners: Sequence[str]) -> tuple[Suspect, ...]:
    return tuple(_suspect(owner) for owner in owners)[:MAX_SUSPECTS]


def _suspect(owner: str) -> Suspect:
    kind, _, number = owner.partition(" ")
    if kind == "rank" and (rank := parse_count(number)) is not None:
        return Suspect(rank)
    return Suspect(None, None, owner)


ANALYSIS = LaunchesDetector()
