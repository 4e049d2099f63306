"""Agents of one fleet on one kernel: each shows itself by its name, so that the others can tell that it is there.

That an agent claims a process of another host proves nothing. That the other host shows this very agent does: its token
stands in its name, where every process of the kernel (within the same PID namespace, or an outer one) can read it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from contextlib import suppress

from hangdoc.system import procfs
from hangdoc.system.account import account

ISSUED = re.compile(r"[0-9a-f]{12}")
_MARK = "hd:"  # with a token it has 15 letters, as many as the name of a process may have
_ROOT = ("0", "0 in a namespace of root")


def show(token: str) -> None:
    """Call this process by its token."""
    with suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as file:  # else nobody vouches for it
        file.write(_MARK + token)


def shown(tokens: Collection[str]) -> tuple[str, ...]:
    """Those of the tokens whose agents run on this kernel, as root or as the user that we are.

    A process of another user may call itself what it likes.
    """
    wanted = {_MARK + token: token for token in tokens}
    ours = (*_ROOT, account(os.getpid()))
    found = (stat for pid in procfs.numbers("/proc") if (stat := procfs.stat(pid)) and stat.comm in wanted)
    return tuple(sorted({wanted[stat.comm] for stat in found if account(stat.pid) in ours}))
