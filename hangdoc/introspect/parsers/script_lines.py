"""What a post-mortem report needs of a script: places of lines, their definitions, peers of sends and receives."""

from __future__ import annotations

import ast

from hangdoc.introspect.parsers.line_context import places_in
from hangdoc.introspect.parsers.lock_calls import table_of
from hangdoc.introspect.parsers.p2p_peers import Script, peers
from hangdoc.introspect.parsers.source_text import parsed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def places_and_peers(data: bytes, asked: dict[str, Any]) -> dict[str, Any]:
    """For `asked["lines"]`: places as in `line_context`, and `around`: the innermost definition, [first, last, name].

    `locks`: as `lock_calls.table`; empty where that raises ValueError.

    For `asked["calls"]`, each [line, function, ranks, world size]: `partners`, a list of peers. Raises as `parsed`.
    """
    tree, text = parsed(data)
    spans = [(n.lineno, n.end_lineno or n.lineno, n.name) for n in ast.walk(tree) if isinstance(n, _DEFINITIONS)]
    script = Script(tree) if asked["calls"] else None
    return {
        **places_in(tree, text, asked["lines"], near=0),
        "around": {
            line: max((span for span in spans if span[0] <= line <= span[1]), default=None) for line in asked["lines"]
        },
        "locks": _locks(tree, text),
        "partners": [peers(script, *call) for call in asked["calls"]] if script is not None else [],
    }


def _locks(tree: ast.Module, text: list[str]) -> list[Any]:
    try:
        return table_of(tree, text)
    except ValueError:
        return []
