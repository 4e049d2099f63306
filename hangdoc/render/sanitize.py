"""Text from a target is hostile: `clean` makes it safe for a terminal."""

from __future__ import annotations

import re

LIMIT = 2000  # characters; values are shortened earlier, this only bounds hostile ones

_ANSI = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI: colours, cursor, erase
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # OSC, DCS etc.: title, links
    r"|\x1b[ -/]*[0-~]?"  # any other escape
)


def clean(text: str, limit: int = LIMIT) -> str:
    """`text` on one line, without terminal escapes, control, invisible or bidirectional-override characters."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    if text.isprintable():
        return text
    shown = re.sub(r"[^\S ]+", " ", _ANSI.sub("", text))
    return "".join(c for c in shown if c.isprintable())
