"""Lock acquisitions and releases in a source file, by function."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hangdoc.introspect.parsers.source_text import parsed, short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_FUNCTIONS = 4000
MAX_EVENTS = 1000  # of a file
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_ACQUIRE_METHODS = ("acquire", "__enter__", "acquire_lock", "lock")
_RELEASE_METHODS = ("release", "__exit__", "release_lock", "unlock")


def table(data: bytes, _: object = None) -> list[Any]:
    """[first line, last line, events] of the module, then of each multi-line function.

    Events, in the order of the tree: ["with", line, last line, first line of the body, name], ["get", line, last line,
    name], ["give", line, name]. A name is an expression such as `self.lock`. Raises as `parsed`, and ValueError for
    too many functions or events.
    """
    return table_of(*parsed(data))


def table_of(tree: ast.Module, text: list[str]) -> list[Any]:
    """As `table`, for a parsed file."""
    found: list[tuple[int, int, list[Any]]] = [(0, len(text), list(_events(tree)))]
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS) and _last(node) > node.lineno:
            found.append((node.lineno, _last(node), list(_events(node))))
    if len(found) > MAX_FUNCTIONS or sum(len(events) for _, _, events in found) > MAX_EVENTS:
        raise ValueError("more functions or locks than a person writes in one file")
    return found


def _events(scope: ast.AST) -> Iterator[list[Any]]:
    for node in _own(scope):
        if isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                if name := _dotted(item.context_expr):
                    yield ["with", node.lineno, _last(node), node.body[0].lineno, name]
        elif isinstance(node, ast.Call):
            if name := _receiver(node, _ACQUIRE_METHODS):
                yield ["get", node.lineno, _last(node), name]
            if name := _receiver(node, _RELEASE_METHODS):
                yield ["give", node.lineno, name]


def _last(node: ast.stmt | ast.expr) -> int:
    return node.end_lineno or node.lineno


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a function or module, without nested functions and classes."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, (*_FUNCTIONS, ast.ClassDef)):
            yield child
            yield from _own(child)


def _receiver(call: ast.Call, names: tuple[str, ...]) -> str | None:
    """`self.lock` in `self.lock.acquire()`."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in names:
        return _dotted(call.func.value)
    return None


def _dotted(node: ast.expr) -> str | None:
    """Text of an expression such as `self.lock` or `LOCKS[key]`: starts at a variable, calls nothing."""
    root = node
    while isinstance(root, (ast.Attribute, ast.Subscript)):
        root = root.value
    calls = any(isinstance(part, ast.Call) for part in ast.walk(node))
    return short(ast.unparse(node)) if isinstance(root, ast.Name) and not calls else None
