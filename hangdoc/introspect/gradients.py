"""DDP models of another process, and which of their parameters have a gradient; nothing runs in the process.

A DDP object holds its options in its `__dict__`, a module its parts in `_modules` and `_parameters`. DDP expects a
gradient of each parameter that is not frozen when the model is wrapped: it makes a gradient accumulator for each. A
model that does not fit into the limits is left out: one parameter that was not read could be the one that matters.
Source: torch 2.13, torch/nn/parallel/distributed.py, torch/nn/modules/module.py, torch/csrc/autograd/variable.h,
torch/csrc/distributed/c10d/reducer.cpp.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import PurePath

from hangdoc.evidence.parameters import ReplicatedModel
from hangdoc.introspect.elf import Symbols, images
from hangdoc.introspect.interpreter import Interpreter, read_attributes, read_dict
from hangdoc.introspect.local_variables import shorten
from hangdoc.introspect.memory import Memory
from hangdoc.introspect.objects import HEAP_TYPE, Objects, Type, within
from hangdoc.introspect.tensors import have_gradients

DEADLINE_S = 0.25  # of one process
NAMES = 8  # of parameters without a gradient that are reported
_HOPS = 2  # references followed from a variable to a model: trainer, strategy, model
_ROOTS = 16  # variables followed, the innermost ones
_MODELS = 4
_MODULES, _PARAMETERS = 8192, 16384  # of a model
_TEXT = 96  # characters of a name
_WRAPPER = "DistributedDataParallel"
_LIBRARY, _UNDEFINED = "libc10.so", "_ZN3c1019UndefinedTensorImpl10_singletonE"


class _TooLarge(Exception):
    """Too many modules or parameters, or too little time."""


def replicated_models(
    memory: Memory, interpreter: Interpreter, variables: Mapping[int, str]
) -> tuple[ReplicatedModel, ...]:
    """The DDP models that these variables, by address, lead to. Raises Unreadable.

    Each is read twice, and left out if it changed: the process may run.
    """
    walk = _Walk(memory, interpreter)
    undefined = _undefined(memory)
    found: dict[int, ReplicatedModel | None] = {}
    if undefined is not None:
        for address, kind, name in islice(walk.wrappers(variables), _MODELS):
            if address not in found:
                first, again = (walk.model(address, kind, name, undefined) for _ in range(2))
                found[address] = first if first == again else None
    return tuple(model for model in found.values() if model is not None)


class _Walk:
    """Reads until the deadline."""

    def __init__(self, memory: Memory, interpreter: Interpreter) -> None:
        self.memory, self.interpreter = memory, interpreter
        self.objects = Objects(memory, interpreter.version)
        self.until_s = time.monotonic() + DEADLINE_S

    def wrappers(self, variables: Mapping[int, str]) -> Iterator[tuple[int, Type, str]]:
        """Address and type of DDP objects, with the variable that leads there: variables, else what they refer to."""
        heads = self.objects.heads(variables)
        direct = [(address, kind) for address, (kind, _) in heads.items() if _is_wrapper(kind)]
        yield from ((address, kind, variables[address]) for address, kind in direct)
        for address in [] if direct else [a for a, (kind, _) in heads.items() if kind.flags & HEAP_TYPE][:_ROOTS]:
            for level in within(self.memory, address, _HOPS):
                if self.late():
                    return
                near = self.objects.heads(level)
                yield from ((a, kind, variables[address]) for a, (kind, _) in near.items() if _is_wrapper(kind))

    def model(self, address: int, kind: Type, name: str, undefined: int) -> ReplicatedModel | None:
        """The record of one DDP object; None: too large, or not as expected."""
        own = self.attributes(address, kind)
        names = {seen.text: key for key, seen in self.objects.describe(own).items() if seen.kind == "str"}
        if not {"_modules", "_parameters"} <= names.keys():
            return None
        try:
            found = self.parameters(own[names["_modules"]], names["_modules"], names["_parameters"])
        except _TooLarge:
            return None
        states = have_gradients(self.memory, list(found), undefined)
        without = [found[parameter] for parameter, has in states.items() if not has]
        return ReplicatedModel(
            name=shorten(name, _TEXT),
            expected=len(states),
            missing=len(without),
            without=self.format(without[:NAMES]),
            find_unused=self.truth(own.get(names.get("find_unused_parameters", 0), 0)),
            static_graph=self.truth(own.get(names.get("static_graph", 0), 0)),
        )

    def parameters(self, modules: int, modules_key: int, parameters_key: int) -> dict[int, tuple[int, ...]]:
        """The parameters of the modules in a dict, by address, each with the keys that lead to it.

        Names of attributes are interned: in one process, the same name is the same object. Raises _TooLarge.
        """
        found: dict[int, tuple[int, ...]] = {}
        seen: set[int] = set()
        level: dict[int, tuple[int, ...]] = {
            module: () for _, module in self.entries(modules)
        }  # the wrapped module: names begin below it
        while level:
            seen.update(level)
            if self.late() or len(seen) > _MODULES or len(found) > _PARAMETERS:
                raise _TooLarge
            below: dict[int, tuple[int, ...]] = {}
            for module, (kind, _) in self.objects.heads(level).items():
                own = self.attributes(module, kind)
                for key, parameter in self.entries(own.get(parameters_key, 0)):
                    found.setdefault(parameter, (*level[module], key))
                for key, child in self.entries(own.get(modules_key, 0)):
                    if child not in seen:
                        below.setdefault(child, (*level[module], key))
            level = below
        return found

    def attributes(self, address: int, kind: Type) -> dict[int, int]:
        return dict(read_attributes(self.memory, self.interpreter, address, kind) or ())

    def entries(self, address: int) -> list[tuple[int, int]]:
        return (read_dict(self.memory, self.interpreter, address) or []) if address else []

    def format(self, paths: Sequence[tuple[int, ...]]) -> tuple[str, ...]:
        """The dotted names; a key that cannot be read is "?"."""
        keys = self.objects.describe(key for path in paths for key in path)
        texts = {key: seen.text for key, seen in keys.items() if seen.text and seen.text.isprintable()}
        return tuple(shorten(".".join(texts.get(key, "?") for key in path), _TEXT) for path in paths)

    def truth(self, address: int) -> bool | None:
        seen = self.objects.describe([address]).get(address)
        return seen.text == "True" if seen is not None and seen.kind == "bool" else None

    def late(self) -> bool:
        return time.monotonic() > self.until_s


def _is_wrapper(kind: Type) -> bool:
    return _WRAPPER in (kind.name, *kind.bases)


def _undefined(memory: Memory) -> int | None:
    """Address of the tensor that stands for "no tensor"; None: torch is not there, or of an unknown build."""
    library = next((image for image in images(memory.pid) if PurePath(image.path).name == _LIBRARY), None)
    if library is None:
        return None
    found = Symbols(memory, library.base).find(_UNDEFINED)
    return found[0] if found is not None else None
