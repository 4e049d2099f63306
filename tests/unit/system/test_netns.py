"""Entries of a hosts file."""

from __future__ import annotations

import pytest

from hangdoc.system.netns import hosts_entries


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
def test_addresses_of_a_name(text: str, addresses: list[str]) -> None:
    assert [address for address, _, _ in hosts_entries(text, "node-a")] == addresses


def test_line_numbers() -> None:
    text = "127.0.0.1 a\nnonsense a\n10.0.0.1 b  a # both\n"
    assert list(hosts_entries(text, "a")) == [("127.0.0.1", 1, "127.0.0.1 a"), ("10.0.0.1", 3, "10.0.0.1 b a")]
