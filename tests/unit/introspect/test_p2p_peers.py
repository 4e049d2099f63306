"""Peers of sends and receives, from the script's own arithmetic; nothing is guessed."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from hangdoc.introspect.parsers.p2p_peers import Script, peers


def found(source: str, rank: int, size: int = 4, function: str = "recv") -> int | None:
    """The partner of the call on the last line."""
    text = dedent(source).strip()
    return peers(Script(ast.parse(text)), text.count("\n") + 1, function, [rank], size)[0]


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("dist.recv(x, src=rank - 1)", [None, 0, 1, 2]),
        ("dist.recv(x, (rank + 1) % world_size)", [1, 2, 3, 0]),
        ("dist.recv(x, src=dist.get_rank() ^ 1)", [1, 0, 3, 2]),
        ("peer = 0 if rank > 1 else 3\ndist.recv(x, peer)", [3, 3, 0, 0]),
        ("last = dist.get_world_size() - 1\ndist.recv(x, src=last)", [3, 3, 3, None]),
        (
            """
            def __init__(self, rank, size):
                self.rank, self.size = rank, size
                self.next = rank + 1 if rank < size - 1 else None
            dist.recv(x, src=self.next)
            """,
            [1, 2, 3, None],
        ),
        ("dist.recv(x, src=-1)", [None] * 4),  # no rank
        ("dist.recv(x, src=rank)", [None] * 4),  # itself
        ("dist.recv(x)", [None] * 4),  # from anyone
        ("peer = 1\npeer = 2\ndist.recv(x, peer)", [None] * 4),  # one of two
        ("for peer in peers:\n  dist.recv(x, peer)", [None] * 4),
        ("def f(peer=1): ...\ndist.recv(x, peer)", [None] * 4),  # whoever calls it says
        ("dist.recv(x, src=size - 1)", [None] * 4),  # of what, is not said
        ("a = b\nb = a\ndist.recv(x, src=a)", [None] * 4),
        ("dist.recv(x, src=1 % 0)", [None] * 4),
        ("dist.recv(x, src=choose(rank))", [None] * 4),
        ("dist.recv(x, 1); dist.recv(y, 2)", [None] * 4),  # which of them
    ],
)
def test_the_partner_is_what_the_source_says(source: str, wanted: list[int | None]) -> None:
    assert [found(source, rank) for rank in range(4)] == wanted


def test_a_send_names_its_destination() -> None:
    assert found("dist.send(x, dst=rank + 1)", 0, function="send") == 1
