"""Probe `recorder`: the newest Flight Recorder entries of each rank, from the job's own debug server.

A job that called torch.distributed.debug.start_debug_server (torch 2.13) has threads named `pt_workerserver`; the job's
store holds the port of each rank's server. The server is a thread of the job, so it is asked only with
`--ask recorder`. No rank is paused. The kernel's socket tables decide where bytes go: to the store that the rank is
connected to or serves, and to a server on which this very rank listens. Redirects are not followed.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from socket import SHUT_RDWR, socket
from threading import Event, Timer
from typing import Any

import msgspec

from hangdoc.evidence import FlightRecorder, Process, RecordedCall, Target, Unseen
from hangdoc.evidence.target import parse_endpoint
from hangdoc.system.netns import call_inside
from hangdoc.system.process_sockets import Endpoint, connect, connected_endpoint, listening_endpoint
from hangdoc.system.tcpstore import StoreReader
from probes import RECORDER, Observation, Request, Tier

SERVER_THREAD = "pt_workerserver"
TIMEOUT_S = 2.0
NEWEST = 32  # entries kept of a rank
MAX_BYTES = 16 << 20  # of an answer; 2,000 entries, torch's default, have 2 MiB
MAX_ENTRY_BYTES = 1 << 16
LONGEST = 4000  # characters of a string in an entry
MAX_TENSORS = 64  # of one collective
WORKERS = 8  # ranks asked in parallel
_URL = re.compile(rb"http://[^\s/]{1,300}:([0-9]{1,5})")  # only the port is used


class RecorderProbe:
    name = "recorder"
    scope = "rank"
    tier = Tier.EXAMINE
    needs = "nothing"
    record = FlightRecorder
    order = 60
    steady = False

    def observe(self, request: Request) -> Observation:
        serving = [t for t in request.targets if t.master and t.rank is not None and _serves(request.records, t.pid)]
        if not serving:
            return Observation({})
        if RECORDER not in request.ask:
            why = "its Flight Recorder was not read; `--ask recorder` reads it from the job's own debug server"
            return Observation({}, unseen=tuple(Unseen(self.name, why, t.rank, t.pid, t.host) for t in serving))
        found: dict[int, FlightRecorder] = {}
        unseen: list[Unseen] = []
        with ThreadPoolExecutor(WORKERS) as pool:
            for target, answer in zip(serving, pool.map(_ask, serving), strict=True):
                try:
                    if isinstance(answer, Exception):
                        raise answer
                    found[target.pid] = parse(answer)
                except Exception as error:  # an untrusted server: anything may fail
                    why = f"its debug server returned no Flight Recorder ({str(error)[:200]}); it is not required"
                    unseen.append(Unseen(self.name, why, target.rank, target.pid, target.host))
        return Observation(found, unseen=tuple(unseen))


def _serves(records: Mapping[int, Mapping[str, Any]] | None, pid: int) -> bool:
    process = (records or {}).get(pid, {}).get("cpu")
    return isinstance(process, Process) and any(thread.comm == SERVER_THREAD for thread in process.threads)


def _ask(target: Target) -> bytes | Exception:
    """Answer of one rank's debug server, or the error."""
    try:
        place = parse_endpoint(target.master or "")
        store = place and (connected_endpoint(target.pid, place[1]) or listening_endpoint(target.pid, place[1]))
        if not store:
            raise OSError("it is not connected to the job's store")
        port = call_inside(target.pid, lambda: _port(store, target.rank), timeout_s=3 * TIMEOUT_S)
        server = listening_endpoint(target.pid, port)
        if server is None:
            raise OSError(f"the store names port {port}, but the rank does not listen on it")
        return call_inside(target.pid, lambda: _fetch(server), timeout_s=2 * TIMEOUT_S)
    except Exception as error:  # reported by the caller
        return error


def _port(store_at: Endpoint, rank: int | None) -> int:
    """Port of the rank's debug server, from the store. Raises OSError or ValueError."""
    with StoreReader(store_at, TIMEOUT_S) as store:
        address = store.get(f"debug_server/rank{rank}")
    found = _URL.fullmatch(address or b"")
    if found is None or not 0 < int(found[1]) < 1 << 16:
        raise ValueError("its address is not in the store" if address is None else "the store holds no http address")
    return int(found[1])


def _fetch(server: Endpoint) -> bytes:
    """The complete answer of a debug server within TIMEOUT_S. Raises OSError, HTTPException or ValueError."""
    link = http.client.HTTPConnection(server.address, server.port)  # no redirects, no proxy
    link.sock = connect(server, TIMEOUT_S)
    with _cut_after(TIMEOUT_S, link.sock):  # a server may send one byte at a time, forever
        try:
            link.request("POST", "/handler/fr_trace_json", b"", {"Connection": "close"})
            answer = link.getresponse()
            if answer.status != http.client.OK:
                raise ValueError(f"it answers with HTTP status {answer.status}")
            raw = answer.read(MAX_BYTES + 1)
        finally:
            link.close()
    if len(raw) > MAX_BYTES:
        raise ValueError(f"its answer exceeds {MAX_BYTES >> 20} MiB")
    return raw


@contextmanager
def _cut_after(seconds: float, link: socket) -> Iterator[None]:
    """Shut the connection down after `seconds`, so that reads end. Raises TimeoutError in that case.

    The read then ends as if the server had closed the connection, or had reset it.
    """
    late = Event()

    def cut() -> None:
        late.set()
        with suppress(OSError):
            link.shutdown(SHUT_RDWR)

    timer = Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, ValueError, http.client.HTTPException):
        if not late.is_set():
            raise
    finally:
        timer.cancel()
    if late.is_set():
        raise TimeoutError(f"its answer was incomplete after {seconds:g} s")


_NULL = msgspec.Raw(b"null")


class _Trace(msgspec.Struct):
    """Parts of a trace, decoded only after a check of their size."""

    version: msgspec.Raw
    entries: list[msgspec.Raw]
    pg_status: msgspec.Raw = _NULL


def parse(raw: bytes) -> FlightRecorder:
    """A Flight Recorder trace in JSON (versions 2.x). Raises ValueError, KeyError, TypeError, ... for anything else."""
    try:
        trace = msgspec.json.decode(raw, type=_Trace)
    except msgspec.MsgspecError as error:  # a ValueError itself only since msgspec 0.21
        raise ValueError(str(error)) from None
    entries = [_plain(entry) for entry in trace.entries[-NEWEST:]]
    status = _plain(trace.pg_status) or {}
    return FlightRecorder(
        version=_text(_plain(trace.version)),
        entries=tuple(_entry(entry) for entry in entries),
        enqueued={_text(group): _number(state["last_enqueued_collective"]) for group, state in status.items()},
        completed={_text(group): _number(state["last_completed_collective"]) for group, state in status.items()},
    )


def _plain(part: msgspec.Raw) -> Any:
    if len(part) > MAX_ENTRY_BYTES:
        raise ValueError(f"a part of its trace has {len(part)} bytes")
    return json.loads(bytes(part))


def _entry(entry: Mapping[str, Any]) -> RecordedCall:
    group: Sequence[Any] = entry["process_group"]
    return RecordedCall(
        group=_text(group[0]),
        sequence=_number(entry["p2p_seq_id" if entry["is_p2p"] else "collective_seq_id"]),
        op=_text(entry["profiling_name"]).rpartition(":")[2],
        sizes=_text(entry.get("input_sizes") or ""),
        dtypes=tuple(_text(kind) for kind in (entry.get("input_dtypes") or ())[:MAX_TENSORS]),
        retired=bool(entry.get("retired")),
        p2p=bool(entry["is_p2p"]),
    )


def _text(value: Any) -> str:
    return str(value)[:LONGEST]


def _number(value: Any) -> int:
    number = int(value)
    if abs(number) >= 1 << 53:
        raise ValueError("a number is too large")
    return number


PROBE = RecorderProbe()
