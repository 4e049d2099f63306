"""Whom the bad links of a job have in common."""

from __future__ import annotations

import pytest

from hangdoc.analysis.network.blame import blamed


@pytest.mark.parametrize(
    ("bad", "good", "expected"),
    [
        ("", "", ""),
        ("ab", "", "ab"),  # two hosts alone
        ("ab ba", "", "ab"),
        ("ab bc", "ca", "b"),  # a ring
        ("ab bc", "", "b"),
        ("ab", "ca", "ab"),  # in the other direction: tells nothing
        ("ab", "ac", "b"),  # the sender does well with another
        ("ab", "cb", "a"),  # so does the receiver
        ("ab", "ac cb", "ab"),  # only the two together: the way between them
        ("ab ba", "ac ca", "b"),
        ("ab ba", "ac", "ab"),  # cleared in one direction only
        ("ab cb db", "", "b"),
        ("ab cd", "", "abcd"),
        ("ab cd", "ad cb", "abcd"),
        ("ab bc ca", "", "abc"),
    ],
)
def test_blamed(bad: str, good: str, expected: str) -> None:
    def pairs(text: str) -> list[tuple[str, str]]:
        return [(one[0], one[1]) for one in text.split()]

    assert blamed(pairs(bad), pairs(good)) == set(expected)
