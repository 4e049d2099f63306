"""The other rank of sends and receives, by a script's own arithmetic on the rank: `recv(x, src=rank - 1)`.

What a name stands for is followed through the source while it is assigned just once, down to the rank and the number of
ranks; anything else is not known. Runs confined; the source is read, never run.
"""

from __future__ import annotations

import ast
import operator
from collections import defaultdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ARGUMENTS = {"send": "dst", "isend": "dst", "recv": "src", "irecv": "src"}  # the second of each
RANK = frozenset({"rank", "global_rank", "world_rank", "get_rank"})
SIZE = frozenset({"world_size", "get_world_size", "WORLD_SIZE"})
DEEPEST = 20  # names after names
_NUMBERS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.BitXor: operator.xor,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_TESTS: Mapping[type, Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
MOST = 10**9


class Unknown(Exception):
    """The source does not say."""


class Script:
    """A parsed script, and what is assigned in it."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        # By name, or attribute with a dot before it; None: not one value.
        self.assigned: dict[str, list[ast.expr | None]] = defaultdict(list)
        self.sized = False  # somewhere `size` is a parameter beside `rank`
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    _assign(self.assigned, target, node.value)
            elif isinstance(node, (ast.AugAssign, ast.For, ast.NamedExpr)):
                _assign(self.assigned, node.target, None)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                _assign(self.assigned, node.target, node.value)
            elif isinstance(node, ast.arguments):
                names = {one.arg for one in (*node.posonlyargs, *node.args, *node.kwonlyargs)}
                self.sized |= {"rank", "size"} <= names
                for name in names - {"rank", "size"}:
                    self.assigned[name].append(None)


def _assign(assigned: dict[str, list[ast.expr | None]], target: ast.expr, value: ast.expr | None) -> None:
    if isinstance(target, (ast.Tuple, ast.List)):
        values = value.elts if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts) else ()
        for i, one in enumerate(target.elts):
            _assign(assigned, one, values[i] if values else None)
    elif isinstance(target, ast.Name):
        assigned[target.id].append(value)
    elif isinstance(target, ast.Attribute):
        assigned[f".{target.attr}"].append(value)


def partners(script: Script, line: int, function: str, ranks: list[int], size: int) -> list[int | None]:
    """The other rank, for each of `ranks`, of the one send or receive on a line; None where it is not known."""
    calls = [
        node
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Call)
        and _last(node.func) == function
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    if len(calls) != 1:
        return [None] * len(ranks)
    named = {word.arg: word.value for word in calls[0].keywords}
    told = named.get(ARGUMENTS[function], calls[0].args[1] if len(calls[0].args) > 1 else None)
    return [_partner(script, told, rank, size) if told is not None else None for rank in ranks]


def _partner(script: Script, told: ast.expr, rank: int, size: int) -> int | None:
    try:
        found = _Reckoning(script, rank, size).value(told, 0)
    except (Unknown, ArithmeticError):
        return None
    return found if found is not None and 0 <= found < size and found != rank else None


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


class _Reckoning:
    """The values of expressions on one rank."""

    def __init__(self, script: Script, rank: int, size: int) -> None:
        self.script, self.rank, self.size = script, rank, size

    def value(self, node: ast.expr, depth: int) -> int | None:
        """A whole number, or None for Python's None; raises Unknown."""
        if depth > DEEPEST:
            raise Unknown
        if isinstance(node, ast.Constant) and (node.value is None or type(node.value) is int):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in _NUMBERS:
            found = _NUMBERS[type(node.op)](self._number(node.left, depth), self._number(node.right, depth))
            if abs(found) < MOST:
                return found
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._number(node.operand, depth)
        if isinstance(node, ast.IfExp):
            return self.value(node.body if self._holds(node.test, depth + 1) else node.orelse, depth + 1)
        if isinstance(node, ast.Call) and not node.args and not node.keywords and isinstance(node.func, ast.Attribute):
            return self._by_name(node.func.attr)
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._named(node, depth + 1)
        raise Unknown

    def _number(self, node: ast.expr, depth: int) -> int:
        found = self.value(node, depth + 1)
        if found is None:
            raise Unknown
        return found

    def _holds(self, node: ast.expr, depth: int) -> bool:
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _TESTS:
            return _TESTS[type(node.ops[0])](self._number(node.left, depth), self._number(node.comparators[0], depth))
        return bool(self._number(node, depth))

    def _by_name(self, name: str) -> int:
        if name in RANK:
            return self.rank
        if name in SIZE or (name == "size" and self.script.sized):
            return self.size
        raise Unknown

    def _named(self, node: ast.Name | ast.Attribute, depth: int) -> int | None:
        try:
            return self._by_name(_last(node))
        except Unknown:
            key = node.id if isinstance(node, ast.Name) else f".{node.attr}"
            values = self.script.assigned.get(key, [])
            if len(values) == 1 and values[0] is not None:
                return self.value(values[0], depth)
            raise
