"""Which exceptions another rank caused."""

from __future__ import annotations

import pytest

from hangdoc.analysis.logs.log_events import caused_by_peer
from hangdoc.evidence.logs import LogEvent


@pytest.mark.parametrize(
    ("message", "by_peer"),
    [
        ("Detected mismatch between collectives on ranks. Rank 5", True),  # the message was cut
        ("Connection closed by peer [10.0.0.4]:38712", True),
        ("shape mismatch: value tensor of shape [4] cannot be broadcast", False),
    ],
)
def test_exceptions_that_a_peer_caused(message: str, by_peer: bool) -> None:
    fields = {"type": "RuntimeError", "message": message}
    assert caused_by_peer(LogEvent("exception", f"RuntimeError: {message}", "g.log", 1, None, fields)) is by_peer
