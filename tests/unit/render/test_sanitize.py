from __future__ import annotations

import pytest

from hangdoc.render.sanitize import LIMIT, clean


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("train (train.py:24)", "train (train.py:24)"),
        ("größe 模型 é", "größe 模型 é"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07a", "a"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b2Ja\x9d0;t\x9cb", "ab"),
        ("\x1bPq#0\x1b\\a", "a"),
        ("a\x1b", "a"),
        ("a\x1b[", "a"),
        ("a\r\nb\tc", "a b c"),
        ("a\x00\x07\x08\x7fb", "ab"),
        ("abc\u202egnp\u200b", "abcgnp"),
        ("\ud800x", "x"),
        ("a\u2028b\xa0c", "a b c"),
        ("  indented  ", "  indented  "),
    ],
)
def test_clean(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_clean_is_idempotent_when_an_escape_hides_in_an_escape() -> None:
    nested = "\x1b\x1b[31m[31mx"
    assert clean(clean(nested)) == clean(nested)
    assert "\x1b" not in clean(nested)


def test_clean_bounds_the_length() -> None:
    assert len(clean("x" * 10 * LIMIT)) == LIMIT
