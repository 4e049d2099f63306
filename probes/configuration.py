"""Probe `configuration`: small values in the configuration objects of a rank, such as `args` or `self.config`.

They are dicts and instances (Namespace, dataclasses) in the variables of its frames and in the globals of its script.
They are read from memory; nothing runs in the process.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from hangdoc.evidence import Stacks, Target, Unseen, Variable
from hangdoc.evidence.software import Configuration
from hangdoc.introspect.attributes import attributes, items
from hangdoc.introspect.interpreter import Interpreter, find
from hangdoc.introspect.local_variables import shorten
from hangdoc.introspect.memory import Memory, Unreadable
from hangdoc.introspect.objects import Objects, Seen
from hangdoc.redaction.text import redact
from probes import Observation, Request, Tier

_OBJECTS, _VALUES = 24, 120  # of a rank
_DEEPEST = 2  # objects within an object: config["optimizer"]["lr"]
_TEXT = 60  # characters of a value
_NAME = re.compile(r"(?:\w+_)?(?:args?|arguments|opts?|options|cfg|configs?|conf|hparams|hps?|params|settings|flags)")
_TYPE = re.compile(r"\w*(?:Namespace|Config|Args|Arguments|Options|Settings|HParams|Hyperparameters|Flags)")
_OBJECT = re.compile(r"<(?:[\w.]*\.)?(\w+) at 0x[0-9a-f]+>")
_SCALARS = frozenset({"int", "float", "bool", "str", "none"})
_LIBRARY = re.compile(r"/(?:site|dist)-packages/torch/|/lib/python3[.\d]*/(?!(?:site|dist)-packages/)|^<")


class ConfigurationProbe:
    name = "configuration"
    scope = "rank"
    tier = Tier.EXAMINE
    needs = "ptrace"
    record = Configuration
    order = 95
    steady = True

    def observe(self, request: Request) -> Observation:
        by_pid: dict[int, Configuration] = {}
        unseen: list[Unseen] = []
        for target in request.targets:
            stacks = (request.records or {}).get(target.pid, {}).get("stacks")
            if not isinstance(stacks, Stacks):
                continue
            try:
                by_pid[target.pid] = _read(target, stacks)
            except (Unreadable, struct.error) as error:
                why = f"its configuration objects could not be read ({error})"
                unseen.append(Unseen(self.name, why, target.rank, target.pid, target.host))
        return Observation(by_pid, unseen=tuple(unseen))


def _read(target: Target, stacks: Stacks) -> Configuration:
    """Raises Unreadable, or struct.error."""
    memory = Memory(target.pid)
    interpreter = find(memory)
    if interpreter is None:
        return Configuration({})
    reader = _Reader(memory, interpreter)
    for variable in _variables(stacks):
        if variable.name in ("self", "cls"):
            reader.owner(variable)
        elif _NAME.fullmatch(variable.name) or _TYPE.fullmatch(_type(variable.text)):
            reader.take(variable.name, variable.address or 0)
    return Configuration(reader.values)


@dataclass(slots=True)
class _Reader:
    """Collects the values of one rank."""

    memory: Memory
    interpreter: Interpreter
    values: dict[str, str] = field(default_factory=dict)  # "args.lr" -> "0.1"
    _taken: set[int] = field(default_factory=set)

    def owner(self, variable: Variable) -> None:
        """The configuration objects among an object's attributes: `self.args`."""
        found = attributes(self.memory, self.interpreter, variable.address or 0) if self._may(variable.address) else {}
        for name, item in self._describe(found).items():
            if _NAME.fullmatch(name) or _TYPE.fullmatch(item.type.name.rpartition(".")[2]):
                self.take(name, found[name])

    def take(self, name: str, address: int, depth: int = 1) -> None:
        """The values of a configuration object, and of those within it."""
        if not self._may(address):
            return
        inside = self._inside(address)
        for key, item in self._describe(inside).items():
            path = f"{name}.{key}"
            if item.kind in _SCALARS and item.text is not None:
                if len(self.values) < _VALUES and not key.startswith("_"):
                    # Redact before shortening: a cut secret would not be recognised.
                    self.values.setdefault(path, shorten(redact(key, item.text), _TEXT))
            elif item.kind in ("dict", "object") and depth < _DEEPEST:
                self.take(path, inside[key], depth + 1)

    def _may(self, address: int | None) -> bool:
        if not address or address in self._taken or len(self._taken) >= _OBJECTS:
            return False
        self._taken.add(address)
        return True

    def _inside(self, address: int) -> dict[str, int]:
        item = Objects(self.memory).describe([address]).get(address)
        if item is None or item.kind not in ("dict", "object"):
            return {}
        return (items if item.kind == "dict" else attributes)(self.memory, self.interpreter, address)

    def _describe(self, found: dict[str, int]) -> dict[str, Seen]:
        seen = Objects(self.memory, self.interpreter.version).describe(found.values())
        return {name: seen[address] for name, address in found.items() if address in seen}


def _variables(stacks: Stacks) -> Iterator[Variable]:
    """Variables of frames outside torch and the standard library, innermost first, then the script's globals."""
    for stack in stacks.threads:
        for frame in stack.frames:
            if not frame.native and not _LIBRARY.search(frame.file):
                yield from frame.variables or ()
    yield from stacks.globals or ()


def _type(text: str) -> str:
    """`Namespace`, of `<Namespace at 0x7f00>`; "" of any other text."""
    found = _OBJECT.fullmatch(text)
    return found[1] if found else ""


PROBE = ConfigurationProbe()
