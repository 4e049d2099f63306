"""Probe `store`: the rendezvous address of a rank, and who listens there.

Sends nothing to that address. A host name is resolved from the rank's hosts file or from the rank's own connections to
that port; DNS is asked only with `--ask dns`. A LOOK covers only ranks in init_process_group or in a launcher's
rendezvous, an EXAMINE all ranks.
"""

from __future__ import annotations

import ipaddress
import os
import re
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from hangdoc.discovery.job_processes import JobProcesses
from hangdoc.evidence import Rendezvous, Sockets, Stacks, Target, Unseen
from hangdoc.evidence.target import parse_endpoint
from hangdoc.introspect.memory import Memory, Unreadable
from hangdoc.system.netns import HOSTS, MAX_HOSTS_BYTES, call_inside, hosts_entries, namespace
from hangdoc.system.process_sockets import SocketHolders
from hangdoc.system.sockdiag import Fields, SockDiag, read_proc_tables
from hangdoc.system.target_files import TargetFiles
from probes import DNS, Observation, Request, Tier

FILES = re.compile(r"torch/distributed/(?:rendezvous\.py$|elastic/(?:rendezvous|agent)/)")
ASSEMBLES = re.compile(r"^(?:init_process_group|_rendezvous|_create_tcp_store|TCPStore)$")
CACHE_S = 30.0  # for resolved names and the addresses of a namespace
RESOLVE_S = 2.0
_TIMEDELTA = struct.Struct("=3i")  # days, seconds, microseconds of CPython 3.10 to 3.14's PyDateTime_Delta
_TIMEDELTA_AT = 24  # after the object's header and the hash


class StoreProbe:
    name = "store"
    scope = "rank"
    tier = Tier.LOOK
    needs = "nothing"
    record = Rendezvous
    order = 25  # after stacks: they show who is in a rendezvous
    steady = False

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[float, tuple[str, ...] | None]] = {}
        self._holders = SocketHolders()
        self._job_processes = JobProcesses()

    def observe(self, request: Request) -> Observation:
        records: dict[int, Rendezvous] = {}
        unseen: list[Unseen] = []
        here = {target.pid: target for target in request.targets}
        asked = [target for target in request.targets if target.master and self._is_due(target, request)]
        if asked:
            self._job_processes.refresh()
        for target in asked:
            place = parse_endpoint(target.master or "")
            if place is None:
                continue
            try:
                found = records[target.pid] = self._rendezvous(target, *place, request, here)
                if found.resolved is None and DNS not in request.ask:
                    why = (
                        f"the address of {place[0]} is unknown: its hosts file does not list it, and it has "
                        "no connection there; `--ask dns` asks the name service"
                    )
                    unseen.append(Unseen(self.name, why, target.rank, target.pid, target.host))
            except OSError as error:
                why = f"its rendezvous address could not be inspected ({error.strerror or error}); run hangdoc as root"
                unseen.append(Unseen(self.name, why, target.rank, target.pid, target.host))
        return Observation(records, unseen=tuple(unseen))

    def _is_due(self, target: Target, request: Request) -> bool:
        return request.tier >= Tier.EXAMINE or is_assembling(_stacks(target, request))

    def _rendezvous(
        self, target: Target, address: str, port: int, request: Request, here: dict[int, Target]
    ) -> Rendezvous:
        resolved = self._resolved(target.pid, address, DNS in request.ask)
        resolved = resolved if resolved is not None else _connected_addresses(target, port, request)
        own = self._own_addresses(target.pid)
        local = None if resolved is None or own is None else any(_is_local(candidate, own) for candidate in resolved)
        found = Rendezvous(address, port, resolved, local, timeout_s=_timeout(target, _stacks(target, request)))
        found = replace(found, kin=self._job_processes.of(target, here))
        if not local:
            return found
        sockets = _sockets_at_port(target.pid, port)
        listening = [row for row in sockets if row["state"] == "listen" and _accepts(row["local"], resolved or ())]
        if not listening:
            return found
        holder = self._holders.find(target, listening[0])
        kin = self._job_processes.belongs(holder.pid, target, here) if holder.pid else None
        talking = sum(row["state"] in ("established", "close_wait") for row in sockets)
        return replace(found, holder=replace(holder, kin=kin), clients=talking)

    def _resolved(self, pid: int, address: str, ask: bool) -> tuple[str, ...] | None:
        return self._cached((_mount(pid), address), lambda: resolve(pid, address, ask))

    def _own_addresses(self, pid: int) -> tuple[str, ...] | None:
        return self._cached((str(namespace(pid)), ""), lambda: call_inside(pid, _addresses))

    def _cached(self, key: tuple[str, str], ask: Callable[[], tuple[str, ...] | None]) -> tuple[str, ...] | None:
        at, value = self._known.get(key, (0.0, None))
        if key not in self._known or time.monotonic() - at > CACHE_S:
            value, now_s = ask(), time.monotonic()
            self._known = {name: entry for name, entry in self._known.items() if now_s - entry[0] <= CACHE_S}
            self._known[key] = now_s, value
        return value


def is_assembling(stacks: object) -> bool:
    """True if a thread is in init_process_group or in a launcher's rendezvous."""
    return isinstance(stacks, Stacks) and any(
        FILES.search(frame.file) or (ASSEMBLES.search(frame.function) and "torch/distributed/" in frame.file)
        for thread in stacks.threads
        for frame in thread.frames
        if not frame.native
    )


# --- addresses ------------------------------------------------------------------------------------


def resolve(pid: int, name: str, ask: bool = False) -> tuple[str, ...] | None:
    """Addresses of a host name as `pid` resolves it; empty: it does not resolve; None: unknown.

    Asks the name service only with `ask`.
    """
    with suppress(ValueError):
        return (str(ipaddress.ip_address(name)),)
    hosts = _file(pid, HOSTS)
    if hosts is None:
        return None
    found = tuple(dict.fromkeys(address for address, _, _ in hosts_entries(hosts, name)))
    if found or name == "localhost":
        return found or ("127.0.0.1", "::1")
    if not ask or not _same_resolver(pid):
        return None
    try:
        return call_inside(pid, lambda: _ask(name), timeout_s=RESOLVE_S)
    except OSError:
        return None  # no answer in time


def _connected_addresses(target: Target, port: int, request: Request) -> tuple[str, ...] | None:
    """Remote addresses of the rank's connections to that port, established or not: how the rank resolved the name."""
    sockets = (request.records or {}).get(target.pid, {}).get("sockets")
    ends = sockets.connections if isinstance(sockets, Sockets) else ()
    return (
        tuple(
            dict.fromkeys(
                connection.remote
                for connection in ends
                if connection.remote_port == port and connection.state != "listen"
            )
        )
        or None
    )


def _ask(name: str) -> tuple[str, ...] | None:
    import socket

    try:
        return tuple(dict.fromkeys(str(entry[4][0]) for entry in socket.getaddrinfo(name, None)))
    except socket.gaierror as error:
        known = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", None), socket.EAI_AGAIN)
        return () if error.errno in known else None
    except UnicodeError:  # not a valid host name
        return ()


def _same_resolver(pid: int) -> bool:
    """True if its resolver configuration is ours; that of a container may differ."""
    files = ("/etc/resolv.conf", "/etc/nsswitch.conf")
    return all((text := _file(pid, path)) is not None and text == _file(os.getpid(), path) for path in files)


def _file(pid: int, path: str) -> str | None:
    """Text of a file, up to a limit; empty: no such file; None: could not be read."""
    try:
        return TargetFiles(pid).read(path, MAX_HOSTS_BYTES).data.decode(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError:
        return None


def _mount(pid: int | str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return ""


def _addresses() -> tuple[str, ...]:
    """All addresses of the calling thread's network namespace."""
    import psutil

    return tuple({held.address.split("%")[0] for every in psutil.net_if_addrs().values() for held in every})


def _is_local(address: str, own: Sequence[str]) -> bool:
    return address in own or address.startswith("127.") or address == "::1"


def _accepts(bound: str, wanted: Iterable[str]) -> bool:
    return bound in ("0.0.0.0", "::") or bound in wanted


def _sockets_at_port(pid: int, port: int) -> list[Fields]:
    """Sockets at that port in the process's network namespace."""
    try:
        diag = call_inside(pid, SockDiag)
    except OSError:
        return [row for row in read_proc_tables(pid, _AllInodes()) if row["local_port"] == port]
    try:
        return list(diag.at_port(port))
    except OSError:
        return [row for row in read_proc_tables(pid, _AllInodes()) if row["local_port"] == port]
    finally:
        diag.close()


class _AllInodes:
    def __contains__(self, inode: object) -> bool:
        return True


# --- timeout --------------------------------------------------------------------------------------


def _stacks(target: Target, request: Request) -> object:
    return (request.records or {}).get(target.pid, {}).get("stacks")


def _timeout(target: Target, stacks: object) -> float | None:
    """Seconds of the `timeout` variable in the frames that create the group: a timedelta, read from memory."""
    if not isinstance(stacks, Stacks):
        return None
    for frame in (frame for thread in stacks.threads for frame in thread.frames):
        if "torch/distributed/" not in frame.file:
            continue
        for variable in frame.variables or ():
            if variable.name == "timeout" and "timedelta" in variable.text and variable.address:
                return _timedelta(target.pid, variable.address)
    return None


def _timedelta(pid: int, address: int) -> float | None:
    try:
        days, seconds, micro = _TIMEDELTA.unpack(Memory(pid).read(address + _TIMEDELTA_AT, _TIMEDELTA.size))
    except Unreadable:
        return None
    valid = 0 <= seconds < 86400 and 0 <= micro < 1_000_000 and 0 <= days < 36500
    return float(days * 86400 + seconds) + micro / 1e6 if valid else None


PROBE = StoreProbe()

__all__ = ["PROBE", "StoreProbe", "is_assembling", "parse_endpoint", "resolve"]
