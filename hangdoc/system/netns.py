"""Network namespaces of observed processes, and the names that their hosts files resolve.

A new thread enters the namespace and ends there, so the namespace of every other thread stays the same.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from hangdoc.redaction.text import redact_text

T = TypeVar("T")

HOSTS = "/etc/hosts"
MAX_HOSTS_BYTES = 1 << 20  # read of a hosts file, whose content the target controls
_LONGEST_LINE = 160  # characters kept of a line


def namespace(pid: int | str, kind: str = "net") -> int:
    """Inode of a namespace of `pid` (or "self"), from /proc/PID/ns. Raises OSError: gone or not permitted."""
    return os.stat(f"/proc/{pid}/ns/{kind}").st_ino


def call_inside(pid: int, function: Callable[[], T], kinds: Sequence[str] = ("net",), timeout_s: float = 2.0) -> T:
    """Run `function` in namespaces of `pid` and return its result.

    Enters only namespaces that differ from ours. Raises OSError (PermissionError without CAP_SYS_ADMIN, TimeoutError
    after `timeout_s`) and everything that `function` raises.
    """
    outcome: list[T] = []
    failure: list[BaseException] = []

    def inside() -> None:
        try:
            for kind in kinds:
                if namespace(pid, kind) != namespace("self", kind):
                    _enter(pid, kind)
            outcome.append(function())
        except BaseException as error:  # re-raised in the caller
            failure.append(error)

    # A daemon, so that a name service or mount that never answers cannot keep hangdoc alive.
    thread = threading.Thread(target=inside, name=f"netns-{pid}", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if failure:
        raise failure[0]
    if not outcome:
        raise TimeoutError(f"no answer from the namespaces of {pid} in {timeout_s:g} s")
    return outcome[0]


def _enter(pid: int, kind: str) -> None:
    """setns(2) for the calling thread (os.setns needs Python 3.12)."""
    descriptor = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, 0) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(descriptor)


def hosts_entries(text: str, name: str) -> Iterator[tuple[str, int, str]]:
    """Address, line number and redacted line of each entry for `name` in the text of a hosts file."""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if name.lower() in (word.lower() for word in words[1:]):
            try:
                address = str(ipaddress.ip_address(words[0].split("%")[0]))
            except ValueError:
                continue
            yield address, number, redact_text(" ".join(words))[:_LONGEST_LINE]
