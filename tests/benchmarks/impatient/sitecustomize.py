"""On the PYTHONPATH of a job: its groups wait at most HANGDOC_PATIENCE_S, and each rank leaves a dump when it ends.

Read by every Python process of the job; all else of it is as it was. Into HANGDOC_KEEP each rank writes its Flight
Recorder, as NCCL would, and at SIGTERM its stacks, as `faulthandler.register(SIGTERM, chain=True)` in the script would;
and there goes its output, as with `srun --output`, where torchrun does not keep it.
"""

from __future__ import annotations

import faulthandler
import functools
import importlib.abc
import importlib.machinery
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from types import ModuleType
from typing import Any

TARGET = "torch.distributed.distributed_c10d"
kept: dict[object, Any] = {}  # what must live as long as the process


class Finder(importlib.abc.MetaPathFinder):
    """Finds the one module, and has it altered when it has been loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != TARGET:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            alter(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def alter(c10d: Any) -> None:
    patience = timedelta(seconds=float(os.environ["HANGDOC_PATIENCE_S"]))
    begin, more = c10d.init_process_group, c10d.new_group

    @functools.wraps(begin)
    def init_process_group(*args: Any, **named: Any) -> Any:
        named["timeout"] = min(named.get("timeout") or patience, patience)
        if os.getpid() not in kept:
            kept[os.getpid()] = watched(c10d)
        return begin(*args, **named)

    @functools.wraps(more)
    def new_group(*args: Any, **named: Any) -> Any:
        named["timeout"] = min(named.get("timeout") or patience, patience)
        return more(*args, **named)

    c10d.init_process_group, c10d.new_group = init_process_group, new_group


def watched(c10d: Any) -> tuple[object, ...]:
    """Have this process write what it knows when it ends; by itself, or by a SIGTERM that finds no handler."""
    from multiprocessing.util import Finalize

    folder = os.environ["HANGDOC_KEEP"]

    def dump() -> None:
        from torch._C._distributed_c10d import _dump_fr_trace  # type: ignore[attr-defined]

        if c10d.is_initialized() and "dumped" not in kept:
            kept["dumped"] = True
            with open(f"{folder}/comm_lib_trace_rank_{c10d.get_rank()}", "wb") as file:
                file.write(_dump_fr_trace())

    def end() -> None:
        dump()
        if len(kept[os.getpid()]) > 1:  # too late now for what follows
            undo()

    ends = (Finalize(None, end, exitpriority=0),)
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return ends
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def wait() -> None:
        while os.read(reader, 1) != bytes([signal.SIGTERM]):
            continue
        with suppress(Exception):
            dump()
        import ctypes

        ctypes.CDLL(None).signal(signal.SIGTERM, 0)  # Python lets only the main thread do so, which may be stuck
        os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=wait, daemon=True).start()
    stacks = open(f"{folder}/stacks/rank_{os.environ.get('RANK', os.getpid())}.txt", "w")  # noqa: SIM115
    faulthandler.register(signal.SIGTERM, file=stacks, all_threads=True, chain=True)
    os.register_at_fork(after_in_child=undo)  # a helper is no rank
    return *ends, stacks, writer


def undo() -> None:
    with suppress(ValueError):
        faulthandler.unregister(signal.SIGTERM)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def keep_output() -> None:
    """What a rank that no torchrun started writes, or a host's torchrun with its rank: in a file of its own as well."""
    if "PET_LOG_DIR" in os.environ or "HANGDOC_APART" in os.environ:
        return  # torchrun does it; or its output goes where its parent's goes
    rank, words = os.environ.get("RANK"), sys.orig_argv
    node = words[words.index("--node-rank") + 1] if "--node-rank" in words else None
    if rank is None and node is None:
        return
    os.environ["HANGDOC_APART"] = "1"
    file = f"{os.environ['HANGDOC_KEEP']}/logs/{f'rank_{rank}' if rank is not None else f'node_{node}'}.log"
    os.makedirs(os.path.dirname(file), exist_ok=True)
    tee = kept["tee"] = subprocess.Popen(["tee", "-i", "-a", file], stdin=subprocess.PIPE, start_new_session=True)
    assert tee.stdin is not None
    for number in (1, 2):
        os.dup2(tee.stdin.fileno(), number)


keep_output()
sys.meta_path.insert(0, Finder())
