"""The lines of a source file that name bfloat16; runs confined, imports little."""

from __future__ import annotations

import ast

from hangdoc.introspect.parsers.source_text import parsed, short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST = 4  # lines of a file
NAMES = frozenset({"bfloat16", "bf16"})
_TEXTS = frozenset({"bfloat16", "bf16", "torch.bfloat16", "bf16-mixed", "bf16-true"})


def bf16_lines(data: bytes, _: object = None) -> list[Any]:
    """Number and text of the lines that name it in code, assignments and arguments first. Raises as `parsed`."""
    tree, source = parsed(data)
    decided = {
        line
        for node in ast.walk(tree)
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.keyword, ast.Call))
        for line in _named(node)
    }
    lines = sorted(_named(tree), key=lambda number: (number not in decided, number))
    return [[line, short(source[line - 1])] for line in lines[:MOST]]


def _named(node: ast.AST) -> set[int]:
    """Lines under a node that hold the type by name or as a text."""
    return {
        inner.lineno
        for inner in ast.walk(node)
        if (isinstance(inner, ast.Attribute) and inner.attr in NAMES)
        or (isinstance(inner, ast.Constant) and isinstance(inner.value, str) and inner.value in _TEXTS)
    }
