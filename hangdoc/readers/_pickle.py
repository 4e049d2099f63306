"""Pickles of which nothing is believed: plain builtins are built, everything else is refused, nothing is run.

C's unpickler does the work with every door shut: no class, no extension, no persistent object. What is plain can still
be a bomb, so its memory is bounded by the kernel; and as a tuple is hashed by recursion where it is a key, in C and
unchecked, a pickle with many tuples is loaded on a stack that is deep enough for all of them within one another.
"""

from __future__ import annotations

import io
import pickle
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

MEMORY = 512 << 20  # bytes that any pickle may take
MEMORY_TIMES = 24  # and a large one, as many times its own size
SMALL = 1 << 20  # bytes that a head may have
SAFE_TUPLES = 10_000  # within one another, on the stack of any thread
FRAME_BYTES = 256  # of stack for one tuple, generously
MOST_STACK = 4 << 30  # bytes, reserved and not used
_TUPLES = (b"t", b"\x85", b"\x86", b"\x87")


class Refused(ValueError):
    """Why a pickle was not read, as the end of a sentence: "it names the class os.system; ..."."""


class _Plain(pickle.Unpickler):
    """Of builtins without code."""

    def find_class(self, module: str, name: str) -> NoReturn:
        named = "".join(c if c.isprintable() else "?" for c in f"{module[:80]}.{name[:80]}")
        raise Refused(f"it names {named}, and a pickle of a dump holds plain values only: nothing was run")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise Refused("it refers to objects outside of it, and a pickle of a dump holds plain values only")


def head(data: bytes) -> tuple[Any, dict[int, Any]] | None:
    """The value of a small pickle, and all that it numbered; None where it is not sound."""
    if len(data) > SMALL:
        return None
    reader = _Plain(io.BytesIO(data))
    try:
        with _bounded(MEMORY):
            value = reader.load()
    except Exception:
        return None
    return value, reader.memo.copy()


def load(data: bytes) -> Any:
    """The value; raises Refused, whatever is wrong with it."""
    tuples = sum(map(data.count, _TUPLES))
    stack = tuples * FRAME_BYTES if tuples > SAFE_TUPLES else 0
    if stack > MOST_STACK:
        raise Refused("it is too large")
    with _bounded(MEMORY + MEMORY_TIMES * len(data) + stack):
        return _on_deep_stack(data, stack) if stack else _load(data)


def _load(data: bytes) -> Any:
    try:
        return _Plain(io.BytesIO(data)).load()
    except Refused:
        raise
    except MemoryError:
        raise Refused("it asks for more memory than a dump of its size can need") from None
    except EOFError:
        raise Refused("it ends in the middle") from None
    except Exception as error:
        if "truncated" in str(error):
            raise Refused("it ends in the middle") from None
        raise Refused(f"it is no sound pickle of plain values ({type(error).__name__}); nothing was run") from None


def _on_deep_stack(data: bytes, size: int) -> Any:
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(_load(data))
        except Refused as refused:
            found.append(refused)

    before = threading.stack_size(max(16 << 20, -(-size // (1 << 20)) << 20))
    try:
        thread = threading.Thread(target=work)
        thread.start()
    except (RuntimeError, MemoryError):
        raise Refused("it is nested more deeply than there is memory for") from None
    finally:
        threading.stack_size(before)
    thread.join()
    if isinstance(found[0], Refused):
        raise found[0]
    return found[0]


@contextmanager
def _bounded(more: int) -> Iterator[None]:
    """No more than so many bytes of memory on top of what this process has now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    limit = now + more
    if soft != resource.RLIM_INFINITY:
        limit = min(limit, soft)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
