"""What the kernel's log (/dev/kmsg) says of processes that died: out-of-memory kills, segmentation faults."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterator

from hangdoc.evidence import Target
from hangdoc.redaction.text import redact_text
from hangdoc.system import procfs

_FIRST_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO: the kernel logs PIDs as they are there
_TELLS = re.compile(r"[Kk]illed process|segfault|traps:|general protection|unhandled|trap |Machine Check", re.ASCII)
_MOST = 4  # lines kept
_WIDEST = 240  # characters of a line


def about(pids: Collection[int], target: Target) -> tuple[str, ...]:
    """Lines about any of these PIDs or TIDs since the target started; empty also without the right to read them."""
    if procfs.link("/proc/self/ns/pid") != _FIRST_NAMESPACE:
        return ()
    named = re.compile(rf"(?:process |\[)(?:{'|'.join(map(str, sorted(pids)))})\b")
    since_s = time.monotonic() - procfs.age_s(target.start_ticks) - 1
    found = [
        redact_text(line)[:_WIDEST]
        for at_s, line in _lines()
        if at_s >= since_s and _TELLS.search(line) and named.search(line)
    ]
    return tuple(found[-_MOST:])


def _lines() -> Iterator[tuple[float, str]]:
    """Every line that the kernel still has, with its time (s since boot)."""
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        while True:
            try:
                record = os.read(fd, 8192)
            except BrokenPipeError:  # overwritten meanwhile: the next one is still there
                continue
            head, _, text = record.decode(errors="replace").partition(";")
            yield int(head.split(",")[2]) / 1e6, text.partition("\n")[0]
    except (OSError, ValueError, IndexError):
        return  # BlockingIOError: that was the last
    finally:
        os.close(fd)
