"""Loads untrusted pickles of plain builtins; refuses everything else and runs no code.

The C unpickler does the work, without classes, extensions or persistent objects. Plain data can still be a bomb: it may
request memory, or use nested tuples as keys, which CPython before 3.14 hashes by unchecked recursion in C: 90 bytes
overflow the stack or take years, and signals wait meanwhile. So a child process with kernel limits loads each pickle
first; only a pickle that it survives is loaded here.
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

MAX_HEAD_BYTES = 1 << 20  # for load_head
CPU_S, CPU_BYTES_S = 2, 20 << 20  # CPU seconds to load a pickle, plus one per CPU_BYTES_S bytes
_REQUEST_HEADER = struct.Struct("<QQQ")  # of a request to the child: size, memory limit (bytes), CPU limit (s)

# Answers each pickle with a byte once loading has ended, in success or error. Its stack is smaller than any main
# thread's: data that does not overflow it does not overflow ours.
_TRIAL_PROGRAM = """
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


class PickleRefused(ValueError):
    """A pickle was refused; the text completes a sentence: "it names os.system, ..."."""


class _Plain(pickle.Unpickler):
    """Builds plain builtins only."""

    def find_class(self, module: str, name: str) -> NoReturn:
        named = "".join(c if c.isprintable() else "?" for c in f"{module[:80]}.{name[:80]}")
        raise PickleRefused(f"it names {named}, but a dump holds plain values only; nothing was run")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise PickleRefused("it refers to external objects, but a dump holds plain values only")


def load_head(data: bytes) -> tuple[Any, dict[int, Any]] | None:
    """The value of a small pickle and its memo; None: invalid."""
    if len(data) > MAX_HEAD_BYTES or not _trial_process().survives(data, input_limits.MEMORY):
        return None
    reader = _Plain(io.BytesIO(data))
    try:
        with input_limits.limited_memory(input_limits.MEMORY):
            value = reader.load()
    except Exception:
        return None
    return value, reader.memo.copy()


def load_plain(data: bytes, packed: int | None = None) -> Any:
    """The value. Raises PickleRefused on any error. `packed`: size of the compressed file (bytes), if compressed."""
    most = input_limits.most_memory(len(data) if packed is None else packed, len(data))
    if not _trial_process().survives(data, most):
        raise PickleRefused("it takes longer to load, or is nested deeper, than a dump of its size should")
    try:
        with input_limits.limited_memory(most):
            return _Plain(io.BytesIO(data)).load()
    except PickleRefused:
        raise
    except MemoryError:
        raise PickleRefused("it needs more memory than a dump of its size should") from None
    except EOFError:
        raise PickleRefused("it is truncated") from None
    except Exception as error:
        if "truncated" in str(error):
            raise PickleRefused("it is truncated") from None
        raise PickleRefused(
            f"it is no valid pickle of plain values ({type(error).__name__}); nothing was run"
        ) from None


class _TrialProcess:
    """A child process that loads each pickle first; it is replaced if a pickle kills it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def survives(self, data: bytes, memory: int) -> bool:
        """True if loading ends, in success or error, within `memory` bytes and the CPU limit."""
        process = self._process or self._start()
        pipe, answer = pipes(process)
        try:
            pipe.write(_REQUEST_HEADER.pack(len(data), memory, CPU_S + len(data) // CPU_BYTES_S))
            pipe.write(data)
            pipe.flush()
            if answer.read(1):
                return True
        except OSError:  # it died while reading
            pass
        self._process = None
        stop(process)
        return False

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-I", "-S", "-c", _TRIAL_PROGRAM]
        pipe = subprocess.PIPE
        self._process = process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, start_new_session=True
        )
        weakref.finalize(self, stop, process)
        return process


@cache
def _trial_process() -> _TrialProcess:
    return _TrialProcess()


def pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def stop(process: subprocess.Popen[bytes]) -> None:
    """Kill and reap a child process."""
    process.kill()
    for pipe in pipes(process):
        try:
            pipe.close()
        except OSError:  # unwritten data is dropped
            continue
    process.wait()
