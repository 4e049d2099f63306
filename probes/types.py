"""Probe `types`: the lines of a rank's own scripts that name a reduced compute type: who chose bfloat16, and where.

The files of the frames on its stacks are read as the target sees them and only parsed. What a configuration file or a
command line chose is not in them: the variables show that.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hangdoc.evidence import Stacks
from probes import Observation, Request, Tier

MAX_BYTES = 1_000_000  # a larger file is generated code
MOST = 4  # lines of a file
WIDTH = 120
_NAMES = frozenset({"bfloat16", "bf16"})
_TEXTS = frozenset({"bfloat16", "bf16", "torch.bfloat16", "bf16-mixed", "bf16-true"})


@dataclass(frozen=True, slots=True)
class Types:
    """Lines that name bfloat16 (record of probe `types`): "train.py:31: dtype = torch.bfloat16", decisions first."""

    bf16: tuple[str, ...]


@dataclass(slots=True)
class TypesProbe:
    name: str = "types"
    scope: str = "rank"
    tier: Tier = Tier.LOOK
    needs: str = "ptrace"
    record: type = Types
    order: int = 35
    steady: bool = False
    _known: dict[tuple[str, int, int], tuple[str, ...]] = field(default_factory=dict)  # bounded by files on stacks

    def observe(self, request: Request) -> Observation:
        by_pid: dict[int, Types] = {}
        for target in request.targets:
            stacks = (request.records or {}).get(target.pid, {}).get("stacks")
            if isinstance(stacks, Stacks):
                lines = (line for file in _files(stacks) for line in self._lines(target.pid, file))
                by_pid[target.pid] = Types(tuple(lines))
        return Observation(by_pid)

    def _lines(self, pid: int, file: str) -> tuple[str, ...]:
        path = f"/proc/{pid}/root{file}" if os.path.isabs(file) else f"/proc/{pid}/cwd/{file}"
        try:
            found = os.stat(path)
            key = (file, found.st_ino, found.st_mtime_ns)
            if key not in self._known:
                self._known[key] = tuple(naming(path, file))[:MOST] if found.st_size <= MAX_BYTES else ()
            return self._known[key]
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            return ()


def naming(path: str, name: str) -> Iterator[str]:
    """The lines of a file that name bfloat16 in code, assignments and arguments first. Raises as open and parse do."""
    text = Path(path).read_bytes().decode("utf-8", "replace")
    if not any(word in text for word in _NAMES):
        return
    source, tree = text.splitlines(), ast.parse(text)
    decided = {
        line
        for node in ast.walk(tree)
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.keyword, ast.Call))
        for line in _named(node)
    }
    for line in sorted(_named(tree), key=lambda number: (number not in decided, number)):
        told = " ".join(source[line - 1].split())
        yield f"{os.path.basename(name)}:{line}: {told if len(told) <= WIDTH else told[: WIDTH - 3] + '...'}"


def _named(node: ast.AST) -> set[int]:
    """Lines under a node that hold the type by name or as a text."""
    return {
        inner.lineno
        for inner in ast.walk(node)
        if (isinstance(inner, ast.Attribute) and inner.attr in _NAMES)
        or (isinstance(inner, ast.Constant) and isinstance(inner.value, str) and inner.value in _TEXTS)
    }


def _files(stacks: Stacks) -> dict[str, None]:
    """The user's own files on the stacks, once each."""
    frames = (frame for stack in stacks.threads for frame in stack.frames)
    return {frame.file: None for frame in frames if not frame.native and _own(frame.file)}


def _own(file: str) -> bool:
    library = "/site-packages/" in file or "/dist-packages/" in file or "/lib/python3" in file
    return not library and not file.startswith("<") and "torchinductor" not in file


PROBE = TypesProbe()
