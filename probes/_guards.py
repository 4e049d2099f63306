"""What the source says a line acquires, and what was acquired before it and not given back: only parsed, never run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_GETS = ("acquire", "__enter__", "acquire_lock", "lock")
_GIVES = ("release", "__exit__", "release_lock", "unlock")


@dataclass(frozen=True, slots=True)
class Guards:
    """Expressions like `self.lock`, of `with` statements and of calls of `acquire`, in the order of their lines."""

    acquires: tuple[str, ...]  # by the line itself
    inside: tuple[str, ...]  # before it, in the same function


def guards(tree: ast.Module, line: int) -> Guards:
    """Of the innermost function around `line`."""
    nodes = list(_own(_function(tree, line)))
    here: list[str] = []
    before: list[tuple[int, str]] = []
    for node in nodes:
        if isinstance(node, (ast.With, ast.AsyncWith)) and node.lineno <= line <= (node.end_lineno or node.lineno):
            entered = [name for item in node.items if (name := _dotted(item.context_expr))]
            if line < node.body[0].lineno or line == node.lineno:  # the latter: its body stands on the same line
                here += entered
            else:
                before += [(node.lineno, name) for name in entered]
        elif isinstance(node, ast.Call) and (name := _receiver(node, _GETS)):
            if node.lineno <= line <= (node.end_lineno or node.lineno):
                here.append(name)
            elif node.lineno < line and not _given_back(nodes, name, node.lineno, line):
                before.append((node.lineno, name))
    return Guards(tuple(dict.fromkeys(here)), tuple(dict.fromkeys(name for _, name in sorted(before))))


def _given_back(nodes: list[ast.AST], name: str, after: int, line: int) -> bool:
    return any(
        isinstance(node, ast.Call) and _receiver(node, _GIVES) == name and after < node.lineno < line for node in nodes
    )


def _function(tree: ast.Module, line: int) -> ast.AST:
    around = [n for n in ast.walk(tree) if isinstance(n, _FUNCTIONS) and n.lineno < line <= (n.end_lineno or n.lineno)]
    return max(around, key=lambda node: node.lineno, default=tree)


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function or module without those of functions and classes within it."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, (*_FUNCTIONS, ast.ClassDef)):
            yield child
            yield from _own(child)


def _receiver(call: ast.Call, names: tuple[str, ...]) -> str | None:
    """`self.lock` of `self.lock.acquire()`."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in names:
        return _dotted(call.func.value)
    return None


def _dotted(node: ast.expr) -> str | None:
    """The text of `self.lock`, `LOCKS[key]` and the like: what starts at a variable and calls nothing."""
    root = node
    while isinstance(root, (ast.Attribute, ast.Subscript)):
        root = root.value
    calls = any(isinstance(part, ast.Call) for part in ast.walk(node))
    return ast.unparse(node) if isinstance(root, ast.Name) and not calls else None
