from __future__ import annotations

import pytest

from hangdoc.analysis.logs.common_peer import common_peer
from hangdoc.evidence.logs import LogEvent


def reports(text: str) -> list[tuple[str | None, LogEvent]]:
    """Lines `n1>n9`: a host, and the peer that it names."""
    pairs = (part.split(">") for part in text.split())
    return [(host or None, LogEvent("transfer_failed", "", "log", 1, None, {"peer": peer})) for host, peer in pairs]


@pytest.mark.parametrize(
    "text",
    ["n1>n9 n2>n9 n3>n9", "n1>n9 n2>n9.cluster", "n1>n9 n2>n9 n9>n1 n9>n2", "n1>n9 n2>n9 >n9", "n1>N9 n2>n9 n1>n9"],
)
def test_the_peer_that_all_others_name(text: str) -> None:
    assert common_peer(reports(text))[0].lower().partition(".")[0] == "n9"


@pytest.mark.parametrize(
    "text",
    ["n1>n9", "n1>n2 n2>n1", "n1>n9 n2>n9 n3>n4", "n1>n2 n2>n3 n3>n1", ">n9 >n9", "n1>172.17.0.1 n2>172.17.0.1", ""],
)
def test_no_peer_stands_out(text: str) -> None:
    assert common_peer(reports(text)) == ("", 0)
