"""The lines of a hosts file that name a host."""

from __future__ import annotations

import pytest

from hangdoc.system.hosts_file import naming


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("127.0.0.1 localhost\n127.0.1.1 node-a\n", ["127.0.1.1"]),
        ("10.0.0.1 node-a.site node-a # the real one\n::1 node-a", ["10.0.0.1", "::1"]),
        ("10.0.0.1 NODE-A", ["10.0.0.1"]),
        ("# 10.0.0.1 node-a\n10.0.0.2 node-ab\n", []),
        ("[red]evil\x1b[2J node-a\nfe80::1%eth0 node-a", ["fe80::1"]),
        ("", []),
    ],
)
def test_hosts_file(text: str, addresses: list[str]) -> None:
    assert [address for address, _, _ in naming(text, "node-a")] == addresses


def test_the_lines_are_numbered() -> None:
    text = "127.0.0.1 a\nnonsense a\n10.0.0.1 b  a # both\n"
    assert list(naming(text, "a")) == [("127.0.0.1", 1, "127.0.0.1 a"), ("10.0.0.1", 3, "10.0.0.1 b a")]
