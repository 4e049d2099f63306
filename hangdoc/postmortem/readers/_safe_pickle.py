"""Pickles of which nothing is believed: plain builtins are built, everything else is refused, nothing is run.

C's unpickler does the work with every door shut: no class, no extension, no persistent object. What is plain can still
be a bomb: it asks for memory, or it has tuples as keys, which CPython (before 3.14) hashes by recursion in C, unchecked
and again at every place that they stand in: 90 bytes overflow the stack, or take years, and no signal is looked at
meanwhile. So a child process loads each pickle first, under limits of the kernel: what it survives is loaded here.
"""

from __future__ import annotations

import io
import pickle
import struct
import subprocess
import sys
import weakref
from functools import cache
from typing import IO, Any, NoReturn

from hangdoc.system import input_limits

SMALL = 1 << 20  # bytes that a head may have
CPU_S, CPU_BYTES_S = 2, 20 << 20  # seconds that loading may take, and one more for each so many bytes
_PLACE = struct.Struct("<QQQ")  # of a pickle in the child's input: its bytes, memory (bytes) and CPU time (s) for it

# Answers each pickle whose loading ends, well or not, with a byte. Its stack is smaller than that of any main thread:
# what does not overflow it does not overflow ours.
_TASTER = """
import io, pickle, resource, struct, sys, threading
class Plain(pickle.Unpickler):
    def find_class(self, module, name):
        raise ValueError
def work():
    while place := sys.stdin.buffer.read(24):
        size, memory, cpu_s = struct.unpack("<QQQ", place)
        data = sys.stdin.buffer.read(size)
        pages = int(open("/proc/self/statm").read().split()[0])
        usage = resource.getrusage(resource.RUSAGE_SELF)
        used_s = int(usage.ru_utime + usage.ru_stime)
        resource.setrlimit(resource.RLIMIT_CPU, (used_s + cpu_s + 1, resource.RLIM_INFINITY))
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + memory, resource.RLIM_INFINITY))
        try:
            Plain(io.BytesIO(data)).load()
        except Exception:
            pass
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        del data
        sys.stdout.buffer.write(b".")
        sys.stdout.buffer.flush()
threading.stack_size(2 << 20)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


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
    if len(data) > SMALL or not _taster().survives(data, input_limits.MEMORY):
        return None
    reader = _Plain(io.BytesIO(data))
    try:
        with input_limits.limited_memory(input_limits.MEMORY):
            value = reader.load()
    except Exception:
        return None
    return value, reader.memo.copy()


def load(data: bytes, packed: int | None = None) -> Any:
    """The value; raises Refused, whatever is wrong with it. `packed`: bytes of the file that it came of, if fewer."""
    most = input_limits.most_memory(len(data) if packed is None else packed, len(data))
    if not _taster().survives(data, most):
        raise Refused("it takes longer to load, or is nested more deeply, than a dump of its size can need")
    try:
        with input_limits.limited_memory(most):
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


class _Taster:
    """A process of our own that loads pickles before we do; one that it does not survive costs another process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def survives(self, data: bytes, memory: int) -> bool:
        """Whether loading comes to an end, well or not, within so many bytes of memory and a time that is in order."""
        process = self._process or self._start()
        pipe, answer = _pipes(process)
        try:
            pipe.write(_PLACE.pack(len(data), memory, CPU_S + len(data) // CPU_BYTES_S))
            pipe.write(data)
            pipe.flush()
            if answer.read(1):
                return True
        except OSError:  # it died while it read
            pass
        self._process = None
        _end(process)
        return False

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-I", "-S", "-c", _TASTER]
        pipe = subprocess.PIPE
        self._process = process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, start_new_session=True
        )
        weakref.finalize(self, _end, process)
        return process


@cache
def _taster() -> _Taster:
    return _Taster()


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in _pipes(process):
        try:
            pipe.close()
        except OSError:  # what was not yet written is not wanted any more
            continue
    process.wait()
