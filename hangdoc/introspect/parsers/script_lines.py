"""What a report asks of a script that was left: runs confined, imports little."""

from __future__ import annotations

import ast

from hangdoc.introspect.parsers.line_context import told
from hangdoc.introspect.parsers.p2p_peers import Script, partners
from hangdoc.introspect.parsers.source_text import parsed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def places_and_peers(data: bytes, asked: dict[str, Any]) -> dict[str, Any]:
    """Of `asked["lines"]` the places, and the innermost definition around each: [first line, last line, name].

    Of `asked["calls"]`, [line, function, ranks, number of ranks], the partner for each of the ranks. Raises as
    `parsed`.
    """
    tree, text = parsed(data)
    spans = [(n.lineno, n.end_lineno or n.lineno, n.name) for n in ast.walk(tree) if isinstance(n, _DEFINITIONS)]
    script = Script(tree) if asked["calls"] else None
    return {
        **told(tree, text, asked["lines"], near=0),
        "around": {
            line: max((span for span in spans if span[0] <= line <= span[1]), default=None) for line in asked["lines"]
        },
        "partners": [partners(script, *call) for call in asked["calls"]] if script is not None else [],
    }
