"""Tokens in process names, by which agents on the same kernel can see each other.

An agent that claims a process of another host proves nothing by it. The other host proves it by showing that agent: the
agent's token is its process name, visible to every process in the same or an outer PID namespace.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from contextlib import suppress

from hangdoc.system import procfs
from hangdoc.system.account import account

ISSUED = re.compile(r"[0-9a-f]{12}")
_MARK = "hd:"  # 15 characters with a token: the longest name of a process
_ROOT = ("0", "0 in a namespace of root")


def show_token(token: str) -> None:
    """Set the name of this process to its token."""
    # On failure, no host can confirm this agent.
    with suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as file:
        file.write(_MARK + token)


def visible_tokens(tokens: Collection[str]) -> tuple[str, ...]:
    """The tokens with an agent on this kernel that runs as root or as our user.

    A process of another user may have any name.
    """
    wanted = {_MARK + token: token for token in tokens}
    ours = (*_ROOT, account(os.getpid()))
    found = (stat for pid in procfs.numbers("/proc") if (stat := procfs.stat(pid)) and stat.comm in wanted)
    return tuple(sorted({wanted[stat.comm] for stat in found if account(stat.pid) in ours}))
