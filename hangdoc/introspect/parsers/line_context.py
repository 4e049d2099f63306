"""Loops and branches around a line, its calls, and the collectives of its function.

Answers are plain lists, in the field order of `hangdoc.evidence.Place` and its parts.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from hangdoc.introspect.parsers.source_text import parsed, short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_CALLS = 60  # of a function, and as many collectives
MAX_LOOPS = 100  # that end before a line: the last ones
MAX_GUARDS = 20  # before a line: the last ones
MAX_COUNTERS = 8  # of a loop
MAX_EXITS = 4  # of a loop
NEAR = 100  # lines before and after, in the same function, answered as well: the next round may need them
SAME_SIZE = frozenset({"all_reduce", "broadcast", "reduce"})  # all ranks must pass tensors of one size and dtype
RANGES = frozenset({"range", "trange", "itertools.count", "count"})
LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def places(data: bytes, lines: list[int]) -> dict[str, Any]:
    """Places of lines and of nearby lines in the same function; None: the line is in no statement.

    `functions`: [first line, last line, calls, collective arguments] by first line; `places`: [function, text, loops,
    branches, calls, passed, guards] by line. Raises as `parsed`.
    """
    return places_in(*parsed(data), lines, NEAR)


def places_in(tree: ast.Module, text: list[str], lines: list[int], near: int) -> dict[str, Any]:
    """As `places`, for a parsed file, with `near` lines before and after each."""
    module = Module(tree, text)
    found: dict[int, list[Any] | None] = {}
    for line in lines:
        found[line] = module.place(line)
    for line, place in list(found.items()):
        if place is not None:
            first, last = module.functions[place[0]][:2]
            for beside in range(max(first, line - near, 1), min(last, line + near) + 1):
                if beside not in found and (nearby := module.place(beside)) is not None and nearby[0] == first:
                    found[beside] = nearby
    used = {place[0] for place in found.values() if place is not None}
    return {"functions": [module.functions[first] for first in used], "places": found}


class Module:
    """A parsed source file."""

    def __init__(self, tree: ast.Module, text: list[str]) -> None:
        self.tree, self.text = tree, text
        self.functions: dict[int, list[Any]] = {}  # by first line, 0: the module
        self._loops: dict[ast.stmt, list[Any]] = {}
        self._tests: dict[ast.stmt, str] = {}

    def place(self, line: int) -> list[Any] | None:
        scope: ast.AST = self.tree
        loops: list[Any] = []
        branches: list[Any] = []
        statements: list[ast.stmt] = []
        body: list[ast.stmt] = self.tree.body
        passed: list[Any] = []
        guards: list[Any] = []
        while True:
            guards += [[s.lineno, "else", self._test(s), False] for s in body if _last(s) < line and _is_guard(s)]
            passed += [self._loop(s) for s in body if isinstance(s, _LOOPS) and _last(s) < line]
            around = [s for s in body if s.lineno <= line <= _last(s) or _decorated(s, line)]
            if not around:
                break
            statements, inside = around, around[0]
            if isinstance(inside, (ast.FunctionDef, ast.AsyncFunctionDef)) and line > inside.lineno:
                scope, loops, branches, passed, guards = inside, [], [], [], []
            elif isinstance(inside, ast.ClassDef):
                pass
            elif isinstance(inside, _LOOPS) and line <= _body_last(inside):
                loops.append(self._loop(inside))
            elif isinstance(inside, (ast.If, ast.Try)):
                arm, part = _arm(inside, line)
                if part:
                    branches.append([inside.lineno, arm, self._test(inside), isinstance(part[-1], LEAVES)])
            body = next(
                (part for part in _bodies(inside) if part and part[0].lineno <= line <= _last(part[-1])),
                [],
            )
            if not body:
                break
        if not statements:
            return None
        text = short(self.text[line - 1]) if 0 < line <= len(self.text) else ""
        calls = list(dict.fromkeys(name for s in statements for name in _calls(s)))[:8]
        return [self._function(scope), text, loops, branches, calls, passed[-MAX_LOOPS:], guards[-MAX_GUARDS:]]

    def _function(self, scope: ast.AST) -> int:
        """First line of a function, 0 for the module; adds it to `functions`."""
        first: int = getattr(scope, "lineno", 0)
        if first not in self.functions:
            nodes = list(_own_nodes(scope))
            calls = (short(ast.unparse(node.func)) for node in nodes if isinstance(node, ast.Call))
            last = _last(scope) if isinstance(scope, ast.stmt) else len(self.text)
            self.functions[first] = [
                first,
                last,
                list(dict.fromkeys(calls))[:MAX_CALLS],
                list(_collective_arguments(nodes))[:MAX_CALLS],
            ]
        return first

    def _loop(self, loop: ast.For | ast.AsyncFor | ast.While) -> list[Any]:
        if loop not in self._loops:
            header = short(self.text[loop.lineno - 1])
            counters = [short(name) for name in sorted(_counters(loop))[:MAX_COUNTERS]]
            tests = list(_exits(loop.body))
            exits = list(dict.fromkeys(short(ast.unparse(test)) for test in tests if test))[:MAX_EXITS]
            self._loops[loop] = [loop.lineno, _body_last(loop), header, counters, exits, None in tests]
        return self._loops[loop]

    def _test(self, statement: ast.stmt) -> str:
        if statement not in self._tests:
            test = short(ast.unparse(statement.test)) if isinstance(statement, ast.If) else ""
            self._tests[statement] = test
        return self._tests[statement]


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a function or module, without nested functions and classes."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield child
            yield from _own_nodes(child)


def _collective_arguments(nodes: list[ast.AST]) -> Iterator[list[Any]]:
    """Collectives of the default group with a variable, assigned at most once, as first argument."""
    given = Counter(name.id for node in nodes if isinstance(node, ast.Assign) for name in _stored(*node.targets))
    looped = {name.id for node in nodes if isinstance(node, (ast.For, ast.AsyncFor)) for name in _stored(node.target)}
    for node in nodes:
        if not isinstance(node, ast.Call) or not node.args or any(word.arg == "group" for word in node.keywords):
            continue
        op, what = ast.unparse(node.func).rpartition(".")[2], node.args[0]
        if op in SAME_SIZE and isinstance(what, ast.Name) and given[what.id] <= 1 and what.id not in looped:
            yield [op, short(what.id), node.lineno]


def _stored(*targets: ast.expr) -> Iterator[ast.Name]:
    for target in targets:
        yield from (n for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))


def _is_guard(statement: ast.stmt) -> bool:
    """True of an `if` without `else` that returns or continues: what follows runs where its condition is false."""
    return (
        isinstance(statement, ast.If)
        and not statement.orelse
        and isinstance(statement.body[-1], (ast.Return, ast.Continue))
    )


def _last(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _body_last(loop: ast.For | ast.AsyncFor | ast.While) -> int:
    return _last(loop.body[-1])


def _decorated(statement: ast.stmt, line: int) -> bool:
    decorators = getattr(statement, "decorator_list", [])
    return bool(decorators) and decorators[0].lineno <= line <= _last(statement)


def _bodies(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        part = getattr(statement, name, None)
        if isinstance(part, list):
            yield part
    for handler in getattr(statement, "handlers", []):
        yield handler.body
    for case in getattr(statement, "cases", []):
        yield case.body


def _arm(statement: ast.If | ast.Try, line: int) -> tuple[str, list[ast.stmt]]:
    """The arm of an `if` or `try` around the line, and its body; empty for the test itself."""
    parts: list[tuple[str, list[ast.stmt]]] = [("body", statement.body), ("else", statement.orelse)]
    if isinstance(statement, ast.Try):
        parts += [("except", handler.body) for handler in statement.handlers] + [("finally", statement.finalbody)]
    around = ((name, part) for name, part in parts if part and part[0].lineno <= line <= _last(part[-1]))
    return next(around, ("", []))


def _counters(loop: ast.For | ast.AsyncFor | ast.While) -> set[str]:
    """Iteration counters of a loop: the index of `enumerate`, the target of `range`, `name += 1`."""
    names: set[str] = set()
    if not isinstance(loop, ast.While):
        called = {ast.unparse(node.func) for node in ast.walk(loop.iter) if isinstance(node, ast.Call)}
        if "enumerate" in called and isinstance(loop.target, ast.Tuple) and isinstance(loop.target.elts[0], ast.Name):
            names.add(loop.target.elts[0].id)
        elif called & RANGES and isinstance(loop.target, ast.Name) and "rank" not in ast.unparse(loop.iter):
            names.add(loop.target.id)  # a range that starts at the rank is each rank's own slice
    for node in _same_loop(loop.body):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and ast.unparse(node.value) == "1":
            names.add(node.target.id)
    return names


def _exits(body: list[ast.stmt], test: ast.expr | None = None, nested: bool = False) -> Iterator[ast.expr | None]:
    """Innermost conditions around each `break` and `return` of a loop's body; those of nested loops only `return`.

    None: one without a condition, in a handler of an exception.
    """
    for statement in body:
        if isinstance(statement, ast.Return) or (isinstance(statement, ast.Break) and not nested):
            yield test
        elif not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inner = nested or isinstance(statement, _LOOPS)
            for part in _bodies(statement):
                yield from _exits(part, statement.test if isinstance(statement, ast.If) else test, inner)


def _same_loop(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Nodes of a loop's body, without nested loops and functions."""
    for statement in body:
        yield statement
        if not isinstance(statement, (*_LOOPS, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for part in _bodies(statement):
                yield from _same_loop(part)


def _calls(statement: ast.stmt) -> list[str]:
    """Dotted names called in a simple statement or in the header of a compound one."""
    nodes: list[ast.AST] = [statement]
    if isinstance(statement, (ast.If, ast.While)):
        nodes = [statement.test]
    elif isinstance(statement, (ast.For, ast.AsyncFor)):
        nodes = [statement.iter]
    elif isinstance(statement, (ast.With, ast.AsyncWith)):
        nodes = [item.context_expr for item in statement.items]
    elif any(True for _ in _bodies(statement)):
        nodes = []
    return [name for node in nodes for name in _in_order(node)]


def _in_order(node: ast.AST) -> Iterator[str]:
    """Dotted names called in an expression, in order of execution: arguments first."""
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child)
    if isinstance(node, ast.Call):
        yield short(ast.unparse(node.func))
