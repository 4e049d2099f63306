"""Whether a process waits for processes that it has started, as a parent of `torch.multiprocessing.spawn` does."""

from __future__ import annotations

from hangdoc.introspect.py_spy import PySpy, Refused
from hangdoc.system import programs

# `join` in CPython's multiprocessing/process.py and in torch/multiprocessing/spawn.py (torch 2.13).
_JOINS = ("multiprocessing/process.py", "multiprocessing/spawn.py")


def joins_children(pid: int) -> bool:
    """True if its main thread is in the `join` of a process; False also where its stacks cannot be read."""
    binary = programs.py_spy()
    try:
        dump = PySpy(binary).dump(pid) if binary else []
    except (Refused, OSError):
        return False
    return any(
        frame["name"].rpartition(".")[2] == "join" and str(frame["filename"]).endswith(_JOINS)
        for thread in dump
        if thread["thread_name"] == "MainThread"
        for frame in thread["frames"]
    )
