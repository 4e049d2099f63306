"""Probe `mesh`: the address that each rank of a gloo group has left in the job's store for the others to connect to.

The store is read only where the user allows it (`--ask store`): torch's legacy store looks up the name of each client
in its only thread, so that a read may hold every rank. Without it, analysis knows the addresses of the ranks that
hangdoc sees by the sockets on which they listen.

Read only where a rank stands in the making of a group, and only at the other end of the connection that the kernel
shows this rank to have to the store; key by key, and never waited for. Keys and values are those of torch 2.13
(PrefixStore of distributed_c10d.py, gloo's context.cc); what looks otherwise is left out.
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
from hangdoc.evidence.limits import RANKS_MOST
from hangdoc.evidence.rendezvous import Advertised, Mesh
from hangdoc.evidence.software import Versions
from hangdoc.evidence.stacks import making_group
from hangdoc.evidence.target import parse_endpoint
from hangdoc.system.netns import call_inside
from hangdoc.system.process_sockets import Endpoint, connected_endpoint
from hangdoc.system.tcpstore import StoreReader
from probes import STORE, Observation, Request, Tier

DEVICES = ("cpu", "cuda")  # the first of those that the backend serves
PREFIXES = ("default_pg/", "")  # without it where the script has made the store itself
MOST = 256  # ranks that are asked for
LIMIT_S = 1.5  # for all of them
_ANSWER_S = 1.0  # for one
_OLDEST = (2, 1)  # an older store takes what its clients say first for a request to write
_UNASKED = (
    "the job's store was not read: the addresses that ranks on other hosts left there, and which ranks left none, are "
    "not known; `--ask store` reads them"
)
_NAME = re.compile(r"[\w:.-]{1,80}")
_WORD = re.compile(r"[\w.-]{1,253}")
_LENGTH = struct.Struct("<Q")
_FAMILY = struct.Struct("<H")  # gloo leaves a struct sockaddr_storage, of a little-endian Linux
_PORT = struct.Struct(">H")


@dataclass(frozen=True, slots=True)
class Group:
    """A group that is being made, as the frame of it says."""

    prefix: str  # of its keys, behind one of PREFIXES
    ranks: Sequence[int]  # global, by their rank in the group


class MeshProbe:
    """Reads once a group and hands the record to one of its ranks."""

    name = "mesh"
    scope = "rank"
    tier = Tier.EXAMINE
    needs = "nothing"
    record = Mesh
    order = 95  # after versions: not every store may be asked
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
                here = {one.rank for one in request.targets if one.master == target.master}
                if any(rank not in here for rank in group.ranks):
                    unseen.append(Unseen(self.name, _UNASKED, target.rank, target.pid, target.host))
                continue
            try:
                records[target.pid] = _ask(target, group)
            except OSError as error:
                why = f"the job's store gave no answer ({error}): what other hosts' ranks advertise is not known"
                unseen.append(Unseen(self.name, why, target.rank, target.pid, target.host))
        return Observation(records, unseen=tuple(unseen))


def group_of(frame: Frame, world_size: int | None) -> Group | None:
    """The group that `frame` makes; None where its variables do not say."""
    told = {one.name: one for one in frame.variables or ()}
    size = _whole(told["group_size"]) if "group_size" in told else world_size or 0
    name = told["group_name"].text.strip("'\"") if "group_name" in told else "0"
    listed = told["global_ranks_in_group"].text if "global_ranks_in_group" in told else ""  # empty: all of them
    listed_ranks = [int(number) for number in re.findall(r"\d+", listed)]
    ranks = listed_ranks if len(listed_ranks) == size else None if listed_ranks else range(size)
    if not size or ranks is None or not _NAME.fullmatch(name):
        return None
    return Group("0//" + ("" if name == "0" else f"{name}//"), ranks)


def _whole(variable: Variable) -> int:
    """A number of ranks; 0 where the variable is none."""
    number = variable.number
    return int(number) if number is not None and 0 < number <= RANKS_MOST else 0


def _askable(target: Target, records: Mapping[str, Any]) -> Group | None:
    """The group to ask for, where the rank itself is on good terms with the store."""
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
    connected = any(one.state == "established" and one.remote_port == place[1] for one in sockets.connections)
    return group_of(frame, target.world_size) if connected else None


def _ask(target: Target, group: Group) -> Mesh:
    place = parse_endpoint(target.master or "")
    end = connected_endpoint(target.pid, place[1]) if place else None
    if end is None:
        raise OSError("the rank is connected to it no more")
    limit = LIMIT_S + 3 * _ANSWER_S
    return call_inside(target.pid, lambda: read(end, group), timeout_s=limit)


def read(store_at: Endpoint, group: Group) -> Mesh:
    """What the store holds of the group; raises OSError where it does not answer."""
    found: list[Advertised] = []
    missing: list[int] = []
    end = time.monotonic() + LIMIT_S
    with StoreReader(store_at, timeout_s=_ANSWER_S) as store:
        for number, rank in enumerate(group.ranks[:MOST]):
            if time.monotonic() > end:
                break
            keys = (f"{start}{group.prefix}{device}//0/{number}" for start in PREFIXES for device in DEVICES)
            value = next((raw for key in keys if (raw := store.get(key)) is not None), None)
            told = address_in(value, rank) if value else None
            if told:
                found.append(told)
            elif value is None:
                missing.append(rank)
    return Mesh(tuple(found), tuple(missing))


def address_in(value: bytes, rank: int) -> Advertised | None:
    """What a rank has left: its host's name and its address, each with its length before it; None where it is other."""
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
