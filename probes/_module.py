"""A parsed source file: which loops and branches enclose a line, what it calls, and what its function hands on."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hangdoc.evidence import Branch, Handed, Loop, Place
from probes._redact import redact_source

MAX_CALLS = 60  # of a function
WIDTH = 120
SAME_SIZE = frozenset({"all_reduce", "broadcast", "reduce"})  # every rank hands a tensor of one size and type
RANGES = frozenset({"range", "trange", "itertools.count", "count"})
LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


@dataclass(slots=True)
class Module:
    """A parsed source file; places are computed when asked for."""

    tree: ast.Module
    text: list[str]
    known: dict[int, Place | None] = field(default_factory=dict)
    functions: dict[int, tuple[tuple[str, ...], tuple[Handed, ...]]] = field(default_factory=dict)  # by first line

    @classmethod
    def parse(cls, path: str) -> Module | None:
        """None where the file cannot be read or is not Python this interpreter understands."""
        try:
            source = Path(path).read_bytes().decode("utf-8", "replace")
            return cls(ast.parse(source), source.splitlines())
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    def place(self, line: int) -> Place | None:
        if line not in self.known:
            self.known[line] = self._find(line)
        return self.known[line]

    def _find(self, line: int) -> Place | None:
        scope: ast.AST = self.tree
        loops: list[Loop] = []
        branches: list[Branch] = []
        statements: list[ast.stmt] = []
        body: list[ast.stmt] = self.tree.body
        passed: list[Loop] = []
        while True:
            passed += [self._loop(s) for s in body if isinstance(s, _LOOPS) and _last(s) < line]
            around = [s for s in body if s.lineno <= line <= _last(s) or _decorated(s, line)]
            if not around:
                break
            statements, inside = around, around[0]
            if isinstance(inside, (ast.FunctionDef, ast.AsyncFunctionDef)) and line > inside.lineno:
                scope, loops, branches, passed = inside, [], [], []
            elif isinstance(inside, ast.ClassDef):
                pass
            elif isinstance(inside, _LOOPS) and line <= _body_last(inside):
                loops.append(self._loop(inside))
            elif isinstance(inside, (ast.If, ast.Try)):
                arm, part = _arm(inside, line)
                if part:
                    test = self._text(inside.test) if isinstance(inside, ast.If) else ""
                    branches.append(Branch(inside.lineno, arm, test, isinstance(part[-1], LEAVES)))
            body = next(
                (part for part in _bodies(inside) if part and part[0].lineno <= line <= _last(part[-1])),
                [],
            )
            if not body:
                break
        if not statements:
            return None
        first = getattr(scope, "lineno", 0)
        calls, hands = self._around(scope)
        return Place(
            text=_short(self.text[line - 1]) if 0 < line <= len(self.text) else "",
            loops=tuple(loops),
            branches=tuple(branches),
            calls=tuple(dict.fromkeys(name for s in statements for name in _calls(s)))[:8],
            around=calls,
            hands=hands,
            function_first=first,
            function_last=_last(scope) if isinstance(scope, ast.stmt) else len(self.text),
            passed=tuple(passed),
        )

    def _around(self, scope: ast.AST) -> tuple[tuple[str, ...], tuple[Handed, ...]]:
        """What is called in a function, and what it hands to collectives."""
        first = getattr(scope, "lineno", 0)
        if first not in self.functions:
            nodes = list(_own_nodes(scope))
            calls = (_short(ast.unparse(node.func)) for node in nodes if isinstance(node, ast.Call))
            self.functions[first] = tuple(dict.fromkeys(calls))[:MAX_CALLS], tuple(_handed(nodes))
        return self.functions[first]

    def _loop(self, loop: ast.For | ast.AsyncFor | ast.While) -> Loop:
        return Loop(
            loop.lineno,
            _body_last(loop),
            _short(self.text[loop.lineno - 1]),
            tuple(sorted(_counters(loop))),
        )

    def _text(self, node: ast.expr) -> str:
        return _short(ast.unparse(node))


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function or module without those of functions and classes within it."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield child
            yield from _own_nodes(child)


def _handed(nodes: list[ast.AST]) -> Iterator[Handed]:
    """Collectives of the default group whose first argument is a variable with one meaning in the function."""
    given = Counter(name.id for node in nodes if isinstance(node, ast.Assign) for name in _stored(*node.targets))
    looped = {name.id for node in nodes if isinstance(node, (ast.For, ast.AsyncFor)) for name in _stored(node.target)}
    for node in nodes:
        if not isinstance(node, ast.Call) or not node.args or any(word.arg == "group" for word in node.keywords):
            continue
        op, what = ast.unparse(node.func).rpartition(".")[2], node.args[0]
        if op in SAME_SIZE and isinstance(what, ast.Name) and given[what.id] <= 1 and what.id not in looped:
            yield Handed(op, what.id, node.lineno)


def _stored(*targets: ast.expr) -> Iterator[ast.Name]:
    for target in targets:
        yield from (n for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))


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
    """Which arm of an `if` or `try` encloses the line, and its body; an empty one for the test itself."""
    parts: list[tuple[str, list[ast.stmt]]] = [("body", statement.body), ("else", statement.orelse)]
    if isinstance(statement, ast.Try):
        parts += [("except", handler.body) for handler in statement.handlers] + [("finally", statement.finalbody)]
    around = ((name, part) for name, part in parts if part and part[0].lineno <= line <= _last(part[-1]))
    return next(around, ("", []))


def _counters(loop: ast.For | ast.AsyncFor | ast.While) -> set[str]:
    """Names that count this loop's iterations: the index of `enumerate`, the target of `range`, `name += 1`."""
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


def _same_loop(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """The nodes of a loop's body without those of loops and functions within it."""
    for statement in body:
        yield statement
        if not isinstance(statement, (*_LOOPS, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for part in _bodies(statement):
                yield from _same_loop(part)


def _calls(statement: ast.stmt) -> list[str]:
    """Dotted names called in a simple statement, or in the header of a compound one."""
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
    """Dotted names called in an expression, in the order in which they are called: arguments first."""
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child)
    if isinstance(node, ast.Call):
        yield _short(ast.unparse(node.func))


def _short(text: str) -> str:
    text = redact_source(" ".join(text.split()))
    return text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."
