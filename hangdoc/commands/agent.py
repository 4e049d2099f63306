"""`hangdoc agent` (hidden): `hangdoc watch --nodes` starts it on every host."""

from __future__ import annotations

import sys


def command() -> int:
    """Sample the ranks of this host: commands on stdin, JSON lines on stdout.

    \b
    echo '{"do":"look","id":1}' | hangdoc agent
    """
    from hangdoc.watch.agent import serve

    serve(sys.stdin.fileno(), sys.stdout.buffer)
    return 0
