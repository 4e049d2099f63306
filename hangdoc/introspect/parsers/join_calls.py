"""Calls that create a job's process group, with the conditions under which they run."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from hangdoc.introspect.parsers.line_context import LEAVES
from hangdoc.introspect.parsers.source_text import parsed, short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

JOINS = frozenset({"init_process_group", "init_distributed", "init_device_mesh"})  # torch, DeepSpeed
MAX_CALLS = 4  # of a file
MAX_CONDITIONS = 4  # of a call
CALLERS = 2  # functions followed outwards from a call
# Conditions that say nothing: true in a script, or true while there is no group.
_ALWAYS = ("__name__", "is_initialized")

_Where = tuple["ast.FunctionDef | ast.AsyncFunctionDef | None", tuple[str, ...]]  # function, conditions around it


def join_calls(data: bytes, _: object = None) -> list[Any]:
    """Line and conditions of each call, outermost condition first. Raises as `parsed`."""
    tree, _text = parsed(data)
    found: dict[int, _Where] = {}
    calls: dict[str, _Where] = {}  # the first call of each function in this file
    for call, where in _calls(tree.body, None, ()):
        name = ast.unparse(call.func).rpartition(".")[2]
        calls.setdefault(name, where)
        if name in JOINS:
            found.setdefault(call.lineno, where)
    return [[line, _conditions(where, calls)] for line, where in list(found.items())[:MAX_CALLS]]


def _conditions(where: _Where, calls: dict[str, _Where]) -> list[str]:
    """The conditions around a call, and around the calls of the functions that contain it."""
    function, tests = where
    for _ in range(CALLERS):
        if function is None or function.name not in calls:
            break
        function, outer = calls[function.name]
        tests = (*outer, *tests)
    telling = (test for test in tests if not any(word in test for word in _ALWAYS))
    return list(dict.fromkeys(map(short, telling)))[:MAX_CONDITIONS]


def _calls(body: Iterable[ast.stmt], function: Any, tests: tuple[str, ...]) -> Iterator[tuple[ast.Call, _Where]]:
    """Every call in these statements, with its function and the conditions within that function."""
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _calls(statement.body, statement, ())
            continue
        if isinstance(statement, ast.If):
            test, otherwise = ast.unparse(statement.test), ast.unparse(ast.UnaryOp(ast.Not(), statement.test))
            yield from _within([statement.test], function, tests)
            yield from _calls(statement.body, function, (*tests, test))
            yield from _calls(statement.orelse, function, (*tests, otherwise))
            if isinstance(statement.body[-1], LEAVES) and not statement.orelse:
                tests = (*tests, otherwise)  # the rest of the body runs only then
            continue
        inner = [part for name in ("body", "orelse", "finalbody") for part in getattr(statement, name, ())]
        inner += [part for handler in getattr(statement, "handlers", ()) for part in handler.body]
        inner += [part for case in getattr(statement, "cases", ()) for part in case.body]
        yield from _within((n for n in ast.iter_child_nodes(statement) if n not in inner), function, tests)
        yield from _calls(inner, function, tests)


def _within(nodes: Iterable[ast.AST], function: Any, tests: tuple[str, ...]) -> Iterator[tuple[ast.Call, _Where]]:
    for node in nodes:
        if not isinstance(node, (ast.excepthandler, ast.match_case)):
            yield from ((n, (function, tests)) for n in ast.walk(node) if isinstance(n, ast.Call))
