"""Source text as the interpreter reads it: decoded as it says itself, and cut into the lines that frames count."""

from __future__ import annotations

import ast
import io
import tokenize

LONGEST = 480  # characters of a text: whoever asked masks it as a whole, then shortens it


def parsed(data: bytes) -> tuple[ast.Module, list[str]]:
    """The tree and the lines of a file. Raises SyntaxError, ValueError, RecursionError, MemoryError."""
    tree = ast.parse(data)
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    text = data.decode(encoding, "replace")
    return tree, text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
