"""What mail, chats, tickets, terminals, grep and CI systems do to a text on its way to an engineer."""

from __future__ import annotations

import html
import json
import random
import textwrap
from collections.abc import Callable

Wrapping = Callable[[str], bytes]


def _lines(change: Callable[[int, str], str]) -> Wrapping:
    return lambda text: "".join(
        change(number, line) + "\n" for number, line in enumerate(text.splitlines(), 1)
    ).encode()


def _hard(width: int) -> Wrapping:
    def wrap(text: str) -> bytes:
        rows = [line[at : at + width] for line in text.splitlines() for at in range(0, max(1, len(line)), width)]
        return ("\n".join(rows) + "\n").encode()

    return wrap


def _soft(width: int) -> Wrapping:
    def wrap(text: str) -> bytes:
        rows = [
            row
            for line in text.splitlines()
            for row in textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""]
        ]
        return ("\n".join(rows) + "\n").encode()

    return wrap


def _chat(text: str) -> bytes:
    """Broken anywhere, in the middle of a word too."""
    draw = random.Random(7)
    rows: list[str] = []
    for line in text.splitlines():
        while len(line) > 90:
            at = draw.randrange(60, 90)
            rows.append(line[:at])
            line = line[at:]
        rows.append(line)
    return ("\n".join(rows) + "\n").encode()


def _ticket(text: str) -> bytes:
    return f"Hi,\n\nthis is from our job. Could somebody look?\n\n```text\n{text}\n```\n\nThanks, Kim\n".encode()


# One line stays one line.
WHOLE: dict[str, Wrapping] = {
    "quoted": _lines(lambda _, line: f"> {line}".rstrip()),
    "quoted twice": _lines(lambda _, line: f"> > {line}"),
    "ticket": _ticket,
    "indented": _lines(lambda _, line: f"    {line}"),
    "grep -n": _lines(lambda number, line: f"{number + 811}:{line}"),
    "cat -n": _lines(lambda number, line: f"{number:6}\t{line}"),
    "bold": _lines(lambda _, line: f"**{line}**" if line.strip() else line),
    "backticks": _lines(lambda _, line: f"`{line}`" if line.strip() and "`" not in line else line),
    "windows": lambda text: text.replace("\n", "\r\n").encode(),
    "UTF-16": lambda text: text.encode("utf-16"),
    "no-break spaces": lambda text: "\u200b".join(text.replace(" ", "\u00a0").split("zz")).encode(),
    "HTML": lambda text: html.escape(text).encode(),
    "colours": _lines(lambda _, line: f"\x1b[36m{line}\x1b[0m"),
    "GitHub Actions": _lines(lambda number, line: f"2026-11-20T10:11:{number % 60:02}.1234567Z {line}"),
    "gh run view": _lines(lambda number, line: f"train\tRun\t2026-11-20T10:11:{number % 60:02}.1234567Z {line}"),
    "GitLab": _lines(lambda number, line: f"2026-11-20T10:11:{number % 60:02}.123456Z 01O {line}"),
    "Jenkins": _lines(lambda number, line: f"10:11:{number % 60:02}  {line}"),
    "json-file": _lines(
        lambda number, line: json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-11-20T10:11:12.123456Z"})
    ),
}  # fmt: skip
# A long line becomes several.
BROKEN: dict[str, Wrapping] = {
    "wrapped at 80": _hard(80),
    "wrapped at 120": _hard(120),
    "wrapped at words": _soft(100),
    "chat": _chat,
    "chat, quoted": lambda text: WHOLE["quoted"](_chat(text).decode()),
}
