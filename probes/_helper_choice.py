"""Which helpers of a rank (dataloader and pool workers) are worth a dump of their stacks in this round."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from hangdoc.evidence import Helper, Io, Process, Stacks, Target
from hangdoc.system import procfs
from probes import Request, Tier

_LOOKED = 4  # helpers of a rank in an ordinary look: each costs 10 ms of CPU
# "file:function" of frames that say that a rank waits for the work of its helpers.
_WAITS = re.compile(
    r"torch/utils/data/|/multiprocess(ing)?/((pool|queues|connection|synchronize|managers)\.py:|process\.py:join$)"
    r"|concurrent/futures/|/joblib/|/loky/|/datasets/|/webdataset/|subprocess\.py:"
)
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*[a-z]?")
_SERVANT = re.compile(r"resource_tracker|semaphore_tracker|forkserver")
_ORDER = {"lock": 1, "semaphore": 3, "poll": 4, "file": 2, "time": 2}  # by what they sleep in, the telling ones first


def worth_a_look(target: Target, request: Request, most: int) -> Sequence[int]:
    """PIDs of helpers that run Python; none in an ordinary look unless the rank was seen waiting for them."""
    if request.tier < Tier.EXAMINE and not _waited(target.pid, request):
        return ()
    records = (request.records or {}).get(target.pid, {})
    process, io = records.get("cpu"), records.get("io")
    children = (
        [c.pid for c in process.children if c.state not in "ZX" and not _SERVANT.search(" ".join(c.command))]
        if (isinstance(process, Process))
        else target.children
    )
    helpers = {helper.pid: helper for helper in io.helpers} if isinstance(io, Io) else {}
    chosen = sorted((pid for pid in children if _is_python(pid)), key=lambda pid: (_order(helpers.get(pid)), pid))
    return chosen[: most if request.tier >= Tier.EXAMINE else _LOOKED]


def at_file(target: Target, request: Request) -> bool:
    """A thread of the rank waits for storage: it cannot be paused before the storage answers."""
    io = (request.records or {}).get(target.pid, {}).get("io")
    calls = io.calls if isinstance(io, Io) else ()
    return any(call.pid == target.pid and (call.state == "D" or call.kind in ("file", "unknown")) for call in calls)


def _waited(pid: int, request: Request) -> bool:
    """Whether the look before saw the rank's main thread in its dataloader, or at the end of a pool."""
    ranks = getattr(request.previous, "ranks", ())
    stacks = next((rank.records.get("stacks") for rank in ranks if rank.target.pid == pid), None)
    if not isinstance(stacks, Stacks) or not stacks.threads:
        return False
    main = next((stack for stack in stacks.threads if stack.name == "MainThread"), stacks.threads[0])
    return any(_WAITS.search(f"{frame.file}:{frame.function}") for frame in main.frames if not frame.native)


def _order(helper: Helper | None) -> int:
    if helper is None:
        return 5
    if helper.locked or helper.state in "TtD":
        return 0
    return 1 if helper.state == "R" else _ORDER.get(helper.sleeps or "", 4)


def _is_python(pid: int) -> bool:
    return bool(_PYTHON.fullmatch(os.path.basename(procfs.link(f"/proc/{pid}/exe") or "")))
