"""Pickles of which nothing is believed: plain builtins are built, everything else is refused, nothing is run.

C's unpickler does the work with every door shut: no class, no extension, no persistent object. What is plain can still
be a bomb, so its memory is bounded by the kernel; and as a tuple is hashed by recursion where it is a key, in C and
unchecked, a pickle with many tuples is loaded on a stack that is deep enough for all of them within one another.
"""

from __future__ import annotations

import io
import pickle
import threading
from typing import Any, NoReturn

from hangdoc import bounds

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
        with bounds.limited_memory(bounds.MEMORY):
            value = reader.load()
    except Exception:
        return None
    return value, reader.memo.copy()


def load(data: bytes, packed: int | None = None) -> Any:
    """The value; raises Refused, whatever is wrong with it. `packed`: bytes of the file that it came of, if fewer."""
    tuples = sum(map(data.count, _TUPLES))
    stack = tuples * FRAME_BYTES if tuples > SAFE_TUPLES else 0
    most = bounds.most_memory(len(data) if packed is None else packed, len(data))
    if stack > min(most, MOST_STACK):
        raise Refused("it may be nested more deeply than a dump of its size can need")
    with bounds.limited_memory(most + stack):
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
