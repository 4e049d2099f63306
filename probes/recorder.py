"""Probe `recorder`: the newest entries of the Flight Recorder of each rank, where the job itself offers them.

A job that called torch.distributed.debug.start_debug_server (torch 2.13) has threads named `pt_workerserver`; the
port of each rank's server stands in the job's store. Such a server is asked only where the user says so (`--ask
recorder`): it is a thread of the job that answers. No rank is paused. The store is read where the kernel shows the rank
connected to it or serving it, the server where the kernel shows this very rank listening; nothing else that a target
says decides where a byte goes. No redirect is followed.
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
MOST_BYTES = 16 << 20  # of an answer; 2,000 entries, torch's default, have 2 MiB
MOST_ENTRY_BYTES = 1 << 16
LONGEST = 4000  # characters of a text in it
MOST_TENSORS = 64  # whose types are kept, of one collective
AT_ONCE = 8  # ranks asked side by side
_URL = re.compile(rb"http://[^\s/]{1,300}:([0-9]{1,5})")  # of the host only the port is used


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
            why = "its Flight Recorder was not read: that asks the job's own debug server; `--ask recorder` does"
            return Observation({}, unseen=tuple(Unseen(self.name, why, t.rank, t.pid, t.host) for t in serving))
        found: dict[int, FlightRecorder] = {}
        unseen: list[Unseen] = []
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for target, answer in zip(serving, pool.map(_ask, serving), strict=True):
                try:
                    if isinstance(answer, Exception):
                        raise answer
                    found[target.pid] = parse(answer)
                except Exception as error:  # whatever a server of a stranger's comes up with
                    why = f"its debug server gave no Flight Recorder ({str(error)[:200]}); nothing depends on it"
                    unseen.append(Unseen(self.name, why, target.rank, target.pid, target.host))
        return Observation(found, unseen=tuple(unseen))


def _serves(records: Mapping[int, Mapping[str, Any]] | None, pid: int) -> bool:
    process = (records or {}).get(pid, {}).get("cpu")
    return isinstance(process, Process) and any(thread.comm == SERVER_THREAD for thread in process.threads)


def _ask(target: Target) -> bytes | Exception:
    """What the debug server of one rank answers, or why there is no answer."""
    try:
        place = parse_endpoint(target.master or "")
        store = place and (connected_endpoint(target.pid, place[1]) or listening_endpoint(target.pid, place[1]))
        if not store:
            raise OSError("it is not connected to the job's store")
        port = call_inside(target.pid, lambda: _port(store, target.rank), timeout_s=3 * TIMEOUT_S)
        server = listening_endpoint(target.pid, port)
        if server is None:
            raise OSError(f"it does not listen on port {port} itself, where the store says it does")
        return call_inside(target.pid, lambda: _fetch(server), timeout_s=2 * TIMEOUT_S)
    except Exception as error:  # handed to the caller, which knows what to make of it
        return error


def _port(store_at: Endpoint, rank: int | None) -> int:
    """The port of the rank's debug server, as the store has it; raises OSError or ValueError."""
    with StoreReader(store_at, TIMEOUT_S) as store:
        address = store.get(f"debug_server/rank{rank}")
    found = _URL.fullmatch(address or b"")
    if found is None or not 0 < int(found[1]) < 1 << 16:
        raise ValueError("its address is not in the store" if address is None else "the store holds no http address")
    return int(found[1])


def _fetch(server: Endpoint) -> bytes:
    """The answer of a debug server, complete within TIMEOUT_S; raises OSError, HTTPException or ValueError."""
    link = http.client.HTTPConnection(server.address, server.port)  # follows no redirect, knows no proxy
    link.sock = connect(server, TIMEOUT_S)
    with _cut_after(TIMEOUT_S, link.sock):  # a server may send a byte at a time, for ever
        try:
            link.request("POST", "/handler/fr_trace_json", b"", {"Connection": "close"})
            answer = link.getresponse()
            if answer.status != http.client.OK:
                raise ValueError(f"it answers {answer.status}")
            raw = answer.read(MOST_BYTES + 1)
        finally:
            link.close()
    if len(raw) > MOST_BYTES:
        raise ValueError(f"it answers with more than {MOST_BYTES >> 20} MiB")
    return raw


@contextmanager
def _cut_after(seconds: float, link: socket) -> Iterator[None]:
    """End the connection after so long: whoever reads from it reads its end. Raises TimeoutError then."""
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
    finally:
        timer.cancel()
    if late.is_set():
        raise TimeoutError(f"its answer is not complete in {seconds:g} s")


_NULL = msgspec.Raw(b"null")


class _Trace(msgspec.Struct):
    """The parts of a trace, each left as it is until it is known to be small."""

    version: msgspec.Raw
    entries: list[msgspec.Raw]
    pg_status: msgspec.Raw = _NULL


def parse(raw: bytes) -> FlightRecorder:
    """A Flight Recorder trace in JSON (versions 2.x); raises ValueError, KeyError, ... where it is none."""
    try:
        trace = msgspec.json.decode(raw, type=_Trace)
    except msgspec.MsgspecError as error:  # a ValueError itself only since msgspec 0.21
        raise ValueError(str(error)) from None
    entries = [_plain(entry) for entry in trace.entries[-NEWEST:]]
    status = _plain(trace.pg_status) or {}
    return FlightRecorder(
        version=_text(_plain(trace.version)),
        entries=tuple(_entry(entry) for entry in entries),
        enqueued={_text(group): _number(told["last_enqueued_collective"]) for group, told in status.items()},
        completed={_text(group): _number(told["last_completed_collective"]) for group, told in status.items()},
    )


def _plain(part: msgspec.Raw) -> Any:
    if len(part) > MOST_ENTRY_BYTES:
        raise ValueError(f"a part of its trace has {len(part)} bytes")
    return json.loads(bytes(part))


def _entry(entry: Mapping[str, Any]) -> RecordedCall:
    group: Sequence[Any] = entry["process_group"]
    return RecordedCall(
        group=_text(group[0]),
        sequence=_number(entry["p2p_seq_id" if entry["is_p2p"] else "collective_seq_id"]),
        op=_text(entry["profiling_name"]).rpartition(":")[2],
        sizes=_text(entry.get("input_sizes") or ""),
        dtypes=tuple(_text(kind) for kind in (entry.get("input_dtypes") or ())[:MOST_TENSORS]),
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
