"""With whom the sends and receives on a stack are, by the script's own arithmetic on the rank: `recv(x, src=rank - 1)`.

A traceback has no variables. What a name stands for is followed through the source while it is assigned just once, down
to the rank and the number of ranks; anything else is not known. The source is read, never run.
"""

from __future__ import annotations

import ast
import operator
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from hangdoc.analysis.story import is_library
from hangdoc.evidence import Frame, Stack, Stacks, Variable

C10D = "torch/distributed/distributed_c10d.py"
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


@dataclass(frozen=True, slots=True)
class Script:
    """A parsed script, and what is assigned in it."""

    tree: ast.Module
    assigned: Mapping[str, list[ast.expr | None]]  # by name, or attribute with a dot before it; None: not one value
    sized: bool  # somewhere `size` is a parameter beside `rank`

    @classmethod
    def of(cls, tree: ast.Module) -> Script:
        assigned: dict[str, list[ast.expr | None]] = defaultdict(list)
        sized = False
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    _assign(assigned, target, node.value)
            elif isinstance(node, (ast.AugAssign, ast.For, ast.NamedExpr)):
                _assign(assigned, node.target, None)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                _assign(assigned, node.target, node.value)
            elif isinstance(node, ast.arguments):
                names = {one.arg for one in (*node.posonlyargs, *node.args, *node.kwonlyargs)}
                sized |= {"rank", "size"} <= names
                for name in names - {"rank", "size"}:
                    assigned[name].append(None)
        return cls(tree, assigned, sized)


def _assign(assigned: dict[str, list[ast.expr | None]], target: ast.expr, value: ast.expr | None) -> None:
    if isinstance(target, (ast.Tuple, ast.List)):
        values = value.elts if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts) else ()
        for i, one in enumerate(target.elts):
            _assign(assigned, one, values[i] if values else None)
    elif isinstance(target, ast.Name):
        assigned[target.id].append(value)
    elif isinstance(target, ast.Attribute):
        assigned[f".{target.attr}"].append(value)


def with_partners(stacks: Stacks, scripts: Mapping[str, Script], rank: int, size: int) -> Stacks:
    """The stacks, with the other rank as a variable of each send and receive of which the source tells it."""
    threads = tuple(_told(stack, scripts, rank, size) for stack in stacks.threads)
    return stacks if threads == stacks.threads else replace(stacks, threads=threads)


def _told(stack: Stack, scripts: Mapping[str, Script], rank: int, size: int) -> Stack:
    frames = list(stack.frames)
    for i, frame in enumerate(frames):
        if frame.file.endswith(C10D) and frame.function in ARGUMENTS and not frame.variables:
            own = next((one for one in frames[i + 1 :] if not is_library(one.file)), None)
            script = scripts.get(own.file) if own is not None else None
            peer = partner(script, own, frame.function, rank, size) if script is not None and own is not None else None
            if peer is not None:
                told = Variable(ARGUMENTS[frame.function], str(peer), argument=True, number=float(peer), kind="int")
                frames[i] = replace(frame, variables=(told,))
                return replace(stack, frames=tuple(frames))
    return stack


def partner(script: Script, own: Frame, function: str, rank: int, size: int) -> int | None:
    """The other rank of the one send or receive on a line; None where it is not known."""
    calls = [
        node
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Call)
        and _last(node.func) == function
        and node.lineno <= (own.line or 0) <= (node.end_lineno or node.lineno)
    ]
    if len(calls) != 1:
        return None
    named = {word.arg: word.value for word in calls[0].keywords}
    told = named.get(ARGUMENTS[function], calls[0].args[1] if len(calls[0].args) > 1 else None)
    try:
        found = _Reckoning(script, rank, size).value(told, 0) if told is not None else None
    except (Unknown, ArithmeticError):
        return None
    return found if found is not None and 0 <= found < size and found != rank else None


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


@dataclass(frozen=True, slots=True)
class _Reckoning:
    """The values of expressions on one rank."""

    script: Script
    rank: int
    size: int

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
