"""`hangdoc agent` (hidden): what `hangdoc watch --nodes` starts on every host."""

from __future__ import annotations

import sys


def command() -> int:
    """Sample this host's ranks as told on stdin, and write JSON lines to stdout.

    \b
    echo '{"do":"look","id":1}' | hangdoc agent
    """
    from hangdoc.watch.agent import serve

    serve(sys.stdin.fileno(), sys.stdout.buffer)
    return 0
