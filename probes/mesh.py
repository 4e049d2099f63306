"""Probe `mesh`: the address that each rank of a gloo group published in the job's store.

Reads the store only with `--ask store`: torch's legacy store resolves each client's name in its only thread, so a read
may delay every rank. Without it, the analysis uses the listening sockets of the ranks that hangdoc watches.

Reads only while a rank creates a group, only at the store that the kernel shows this rank connected to, key by key and
without waiting for missing keys. Keys and values are those of torch 2.13 (PrefixStore in distributed_c10d.py, gloo's
context.cc); unknown formats are left out.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hangdoc.evidence import Frame, Sockets, Target, Unseen, Variable
from hangdoc.evidence.limits import MAX_RANKS
from hangdoc.evidence.rendezvous import Advertised, Mesh
from hangdoc.evidence.software import Versions
from hangdoc.evidence.stacks import making_group
from hangdoc.evidence.target import parse_endpoint
from hangdoc.system.netns import call_inside
from hangdoc.system.process_sockets import Endpoint, connected_endpoint
from hangdoc.system.tcpstore import StoreReader
from probes import STORE, Observation, Request, Tier

DEVICES = ("cpu", "cuda")  # the first one that the backend serves
PREFIXES = ("default_pg/", "")  # no prefix if the script created the store itself
MAX_ASKED = 256  # ranks
LIMIT_S = 1.5  # for all ranks
_ANSWER_S = 1.0  # for one key
_OLDEST = (2, 1)  # torch version; an older store takes the first message of a client for a write
_UNASKED = (
    "the job's store was not read, so the addresses published by ranks on other hosts are unknown; "
    "`--ask store` reads them"
)
_NAME = re.compile(r"[\w:.-]{1,80}")
_WORD = re.compile(r"[\w.-]{1,253}")
_LENGTH = struct.Struct("<Q")
_FAMILY = struct.Struct("<H")  # gloo publishes a struct sockaddr_storage of little-endian Linux
_PORT = struct.Struct(">H")


@dataclass(frozen=True, slots=True)
class Group:
    """A process group under construction, from the variables of the frame that creates it."""

    prefix: str  # of its keys, after one of PREFIXES
    ranks: Sequence[int]  # global, by their rank in the group


class MeshProbe:
    """Reads each group once; one of its ranks gets the record."""

    name = "mesh"
    scope = "rank"
    tier = Tier.EXAMINE
    needs = "nothing"
    record = Mesh
    order = 95  # after versions: not every store may be read
    steady = False

    def observe(self, request: Request) -> Observation:
        records: dict[int, Mesh] = {}
        unseen: list[Unseen] = []
        asked: set[tuple[str | None, str]] = set()
        for target in request.targets:
            group = _askable(target, (request.records or {}).get(target.pid, {}))
            if group is None or (target.master, group.prefix) in asked:
                continue
            asked.add((target.master, group.prefix))
            if STORE not in request.ask:
                here = {other_target.rank for other_target in request.targets if other_target.master == target.master}
                if any(rank not in here for rank in group.ranks):
                    unseen.append(Unseen(self.name, _UNASKED, target.rank, target.pid, target.host))
                continue
            try:
                records[target.pid] = _ask(target, group)
            except OSError as error:
                why = f"the job's store did not answer ({error}); the addresses of ranks on other hosts are unknown"
                unseen.append(Unseen(self.name, why, target.rank, target.pid, target.host))
        return Observation(records, unseen=tuple(unseen))


def group_of(frame: Frame, world_size: int | None) -> Group | None:
    """The group that `frame` creates; None: its variables do not show it."""
    variables = {variable.name: variable for variable in frame.variables or ()}
    size = _whole(variables["group_size"]) if "group_size" in variables else world_size or 0
    name = variables["group_name"].text.strip("'\"") if "group_name" in variables else "0"
    listed = variables["global_ranks_in_group"].text if "global_ranks_in_group" in variables else ""
    listed_ranks = [int(number) for number in re.findall(r"\d+", listed)]
    ranks = listed_ranks if len(listed_ranks) == size else None if listed_ranks else range(size)
    if not size or ranks is None or not _NAME.fullmatch(name):
        return None
    return Group("0//" + ("" if name == "0" else f"{name}//"), ranks)


def _whole(variable: Variable) -> int:
    """A number of ranks; 0: the variable is not one."""
    number = variable.number
    return int(number) if number is not None and 0 < number <= MAX_RANKS else 0


def _askable(target: Target, records: Mapping[str, Any]) -> Group | None:
    """The group to read, if the rank is connected to a store that may be read."""
    frame, place, versions = (
        making_group(records.get("stacks")),
        parse_endpoint(target.master or ""),
        records.get("versions"),
    )
    sockets = records.get("sockets")
    if frame is None or place is None or not isinstance(versions, Versions) or not isinstance(sockets, Sockets):
        return None
    number = re.match(r"(\d+)\.(\d+)", versions.torch or "")
    if number is None or (int(number[1]), int(number[2])) < _OLDEST:
        return None
    connected = any(
        connection.state == "established" and connection.remote_port == place[1] for connection in sockets.connections
    )
    return group_of(frame, target.world_size) if connected else None


def _ask(target: Target, group: Group) -> Mesh:
    place = parse_endpoint(target.master or "")
    end = connected_endpoint(target.pid, place[1]) if place else None
    if end is None:
        raise OSError("the rank is no longer connected to it")
    limit = LIMIT_S + 3 * _ANSWER_S
    return call_inside(target.pid, lambda: read(end, group), timeout_s=limit)


def read(store_at: Endpoint, group: Group) -> Mesh:
    """Published and missing addresses of the group. Raises OSError if the store does not answer."""
    found: list[Advertised] = []
    missing: list[int] = []
    end = time.monotonic() + LIMIT_S
    with StoreReader(store_at, timeout_s=_ANSWER_S) as store:
        for number, rank in enumerate(group.ranks[:MAX_ASKED]):
            if time.monotonic() > end:
                break
            keys = (f"{start}{group.prefix}{device}//0/{number}" for start in PREFIXES for device in DEVICES)
            value = next((raw for key in keys if (raw := store.get(key)) is not None), None)
            advertised = address_in(value, rank) if value else None
            if advertised:
                found.append(advertised)
            elif value is None:
                missing.append(rank)
    return Mesh(tuple(found), tuple(missing))


def address_in(value: bytes, rank: int) -> Advertised | None:
    """A published address: host name and sockaddr, each prefixed with its length. None: another format."""
    name, rest = _chunk(value)
    raw, _ = _chunk(rest)
    if name is None or raw is None or len(raw) < 28:
        return None
    hostname = name.decode("ascii", "replace")
    (family,), (port,) = _FAMILY.unpack_from(raw), _PORT.unpack_from(raw, 2)
    if family == socket.AF_INET:
        address = socket.inet_ntop(family, raw[4:8])
    elif family == socket.AF_INET6:
        plain = ipaddress.IPv6Address(raw[8:24])
        address = str(plain.ipv4_mapped or plain)
    else:
        return None
    return Advertised(rank, address, port, hostname if _WORD.fullmatch(hostname) else None)


def _chunk(raw: bytes) -> tuple[bytes | None, bytes]:
    if len(raw) < _LENGTH.size:
        return None, b""
    length = _LENGTH.unpack_from(raw)[0]
    end = _LENGTH.size + length
    return (raw[_LENGTH.size : end], raw[end:]) if end <= len(raw) else (None, b"")


PROBE = MeshProbe()
