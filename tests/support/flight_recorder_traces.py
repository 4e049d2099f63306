"""Build Flight Recorder traces in torch's format."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

C10D = "/opt/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"

Call = Mapping[str, Any]


def call(
    op: str,
    line: int | None = None,
    sizes: Sequence[Sequence[int]] = ((10,),),
    group: str = "0",
    done: bool = True,
    function: str = "train",
    **more: Any,
) -> dict[str, Any]:
    """A call; `line`: of the user's own code, None where no frames are recorded."""
    frames = (
        [(op.split()[0], C10D, 3245), (function, "/job/train.py", line), ("main", "/job/train.py", 900)] if line else []
    )
    sizes = [list(dims) for dims in sizes]
    return {
        "frames": [{"name": name, "filename": file, "line": at} for name, file, at in frames],
        "process_group": (group, "default_pg" if group == "0" else f"group {group}"),
        "profiling_name": f"nccl:{op}",
        "input_sizes": sizes,
        "output_sizes": sizes,
        "input_dtypes": ["Float"],
        "output_dtypes": ["Float"],
        "state": "completed" if done else "started",
        "retired": done,
        "is_p2p": op.startswith(("send", "recv")),
        "timeout_ms": 600000,
        **more,
    }


def trace(
    calls: Sequence[Call],
    groups: Mapping[str, Sequence[int]] | None = None,
    version: str = "2.10",
    **more: Any,
) -> dict[str, Any]:
    """A dump of these calls, numbered; `groups`: the members of each. Tests may damage it, but not the calls."""
    numbers: dict[tuple[str, bool], int] = {}
    entries, over = [], {}
    for number, one in enumerate(calls):
        group, p2p = one["process_group"][0], one["is_p2p"]
        sequence = numbers[group, p2p] = numbers.get((group, p2p), 0) + 1
        if not p2p and one["retired"]:
            over[group] = sequence
        own = {"p2p_seq_id" if p2p else "collective_seq_id": sequence}
        time = {"record_id": number, "pg_id": 0, "time_created_ns": 1795271949893226301 + number * 10**9}
        entries.append({**deepcopy(one), **time, "collective_seq_id": 0, "p2p_seq_id": 0, "op_id": sequence, **own})
    config = {name: {"name": name, "desc": "", "ranks": str(list(ranks))} for name, ranks in (groups or {}).items()}
    status = {
        group: {"last_enqueued_collective": count, "last_completed_collective": over.get(group, 0)}
        for (group, p2p), count in numbers.items()
        if not p2p
    }
    about = {"version": version, "pg_config": config, "comm_lib_version": "2.27.5", "pg_status": status}
    return {**about, "entries": entries, **more}


def write(folder: Path, traces: Mapping[int, Mapping[str, Any]], name: str = "nccl_trace_rank_{}") -> Path:
    """A dump for each rank; JSON where the name says so."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, one in traces.items():
        file = folder / name.format(rank)
        file.write_bytes(json.dumps(one).encode() if file.suffix == ".json" else pickle.dumps(one, protocol=2))
    return folder
