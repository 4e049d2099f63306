"""Probe `recorder`: the newest entries of the Flight Recorder of each rank, where the job itself offers them.

A job that called torch.distributed.debug.start_debug_server (torch 2.13) has threads named `pt_workerserver`; the
address of each rank's server stands in the job's store. Only then is anything asked, by threads made for it in the job:
no rank is paused, and nothing is missed where there is no such server.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hangdoc.evidence import FlightRecorder, Process, Recorded, Target, Unseen
from probes import Observation, Request, Tier
from probes._netns import call_inside
from probes._tcpstore import StoreReader

SERVER_THREAD = "pt_workerserver"
TIMEOUT_S = 2.0
NEWEST = 32  # entries kept of a rank
MOST_BYTES = 64 << 20
AT_ONCE = 16  # ranks asked side by side


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
        found: dict[int, FlightRecorder] = {}
        unseen: list[Unseen] = []
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for target, answer in zip(serving, pool.map(_ask, serving), strict=True):
                if isinstance(answer, FlightRecorder):
                    found[target.pid] = answer
                else:
                    unseen.append(Unseen(self.name, answer, target.rank, target.pid, target.host))
        return Observation(found, unseen=tuple(unseen))


def _serves(records: Mapping[int, Mapping[str, Any]] | None, pid: int) -> bool:
    process = (records or {}).get(pid, {}).get("cpu")
    return isinstance(process, Process) and any(thread.comm == SERVER_THREAD for thread in process.threads)


def _ask(target: Target) -> FlightRecorder | str:
    """The record of one rank, or one sentence why there is none."""
    try:
        raw = call_inside(target.pid, lambda: _fetch(target), timeout_s=3 * TIMEOUT_S)
        return parse(raw)
    except (OSError, urllib.error.URLError, ValueError, KeyError, TypeError) as error:
        return f"its debug server gave no Flight Recorder ({error}); nothing depends on it"


def _fetch(target: Target) -> bytes:
    host, _, port = (target.master or "").rpartition(":")
    with StoreReader(host, int(port), TIMEOUT_S) as store:
        address = store.get(f"debug_server/rank{target.rank}")
    if address is None:
        raise ValueError("its address is not in the store")
    url = f"{address.decode('ascii')}/handler/fr_trace_json"
    if not url.startswith("http://"):
        raise ValueError("the store holds no http address")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, data=b"", method="POST"), timeout=TIMEOUT_S) as answer:
        raw: bytes = answer.read(MOST_BYTES)
    return raw


def parse(raw: bytes) -> FlightRecorder:
    """A Flight Recorder trace in JSON (versions 2.x); raises ValueError, KeyError or TypeError where it is none."""
    trace = json.loads(raw)
    entries = trace["entries"][-NEWEST:]
    status = trace.get("pg_status") or {}
    return FlightRecorder(
        version=str(trace["version"]),
        entries=tuple(_entry(entry) for entry in entries),
        enqueued={str(group): int(told["last_enqueued_collective"]) for group, told in status.items()},
        completed={str(group): int(told["last_completed_collective"]) for group, told in status.items()},
    )


def _entry(entry: Mapping[str, Any]) -> Recorded:
    group: Sequence[Any] = entry["process_group"]
    return Recorded(
        group=str(group[0]),
        sequence=int(entry["p2p_seq_id" if entry["is_p2p"] else "collective_seq_id"]),
        op=str(entry["profiling_name"]).rpartition(":")[2],
        sizes=str(entry.get("input_sizes") or ""),
        dtypes=tuple(str(kind) for kind in entry.get("input_dtypes") or ()),
        retired=bool(entry.get("retired")),
        p2p=bool(entry["is_p2p"]),
    )


PROBE = RecorderProbe()
