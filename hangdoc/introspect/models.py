"""The models of another process: torch's `nn.Module`s and their parameters, found from its variables.

Nothing runs in the process. A module has the dicts `_parameters` and `_modules` among its attributes
(torch/nn/modules/module.py, which asks for `__dict__` and so has CPython make one). A model in a functional style is
no module: its parameters are the trainable tensors of an optimizer, or of the dicts and lists in variables.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hangdoc.introspect.attributes import attributes
from hangdoc.introspect.instance_dicts import instance_dicts, read_dicts
from hangdoc.introspect.interpreter import Interpreter
from hangdoc.introspect.memory import Memory
from hangdoc.introspect.objects import CONTAINER, HEAP_TYPE, Objects, Type, references_of
from hangdoc.introspect.tensors import locate

CPU_S = 0.3  # of one search; it takes 0.006 for a model in a variable, 0.03 for one in an object, on a slow core 0.1
_MODULES = 256  # followed in one search
_REGISTERED = 1 << 16  # parameters of one wrapper
_CHILDREN = 8  # followed of one container: of many equal layers, the first, the last and some between
_CONTAINERS, _ITEMS, _NESTED = 64, 4096, 5  # dicts and lists searched of a level, items of one, and levels
_NAME = 64  # characters of an attribute or class
_PLAIN = re.compile(r"[\w.]+")
_SET_USED = 24  # PySetObject.used, CPython 3.10 to 3.14
_ROOTS = 4  # models of a process
_HOLDERS = 48  # objects searched for a model, in each of _HOPS
_HOPS = 2  # from a variable to a model: trainer.strategy.model
_TENSORS = frozenset({"torch._C.TensorBase", "torch._C._TensorBase"})
WRAPPERS = frozenset({"DistributedDataParallel"})
_SHARDS = frozenset({"FullyShardedDataParallel", "FlatParameter", "DTensor"})

Place = tuple[int, ...]  # indexes on the way to a module; its parameters come first


@dataclass(slots=True)
class Found:
    """What one search has found."""

    parameters: dict[str, int] = field(default_factory=dict)  # object by name, in order of definition
    wrapper: str | None = None
    group: int | None = None  # address of the wrapper's process group
    sharded: str | None = None
    unregistered: dict[str, int] = field(default_factory=dict)  # parameters that the wrapper has not registered
    late: bool = False  # the search was cut off: nothing else is known


class _Late(Exception):
    """It takes too long."""


def search(memory: Memory, interpreter: Interpreter, roots: Sequence[tuple[str, int]]) -> Found:
    """The parameters of the models that these variables lead to; the first variables take precedence.

    Raises Unreadable. What is found is incomplete, and so not returned, if it takes too long.
    """
    walk = _Walk(memory, interpreter, time.thread_time() + CPU_S)
    try:
        for name, address, kind in walk.models(roots):
            walk.follow(name, address, kind)
        if not walk.found.parameters:
            walk.found.parameters = walk.trainable_tensors(roots)
    except _Late:
        return Found(late=True)
    return walk.found


class _Walk:
    def __init__(self, memory: Memory, interpreter: Interpreter, until_s: float) -> None:
        self.memory, self.interpreter, self.until_s = memory, interpreter, until_s
        self.objects = Objects(memory, interpreter.version)
        self.found = Found()
        self.seen: set[int] = set()  # modules
        self.names: dict[int, str] = {}  # of keys; "": not plain
        self.models_found = 0
        self.optimizers: dict[int, tuple[str, Type]] = {}  # seen on the way

    def models(self, roots: Sequence[tuple[str, int]]) -> Iterator[tuple[str, int, Type]]:
        """Name, address and type of models: variables; while these have no parameters, what variables refer to."""
        level = {address: name for name, address in reversed(roots)}
        level = {address: level[address] for _, address in roots}
        known = set(level)
        held_by: dict[int, dict[int, str]] = defaultdict(dict)  # the objects that may lead to another, and their names
        for hop in range(_HOPS + 1):
            kinds = {address: kind for address, (kind, _) in self.objects.heads(level).items()}
            models = [(address, kind) for address, kind in kinds.items() if is_module(kind)]
            level |= self._attribute_names({address: held_by[address] for address, _ in models if address in held_by})
            self.optimizers |= {
                address: (level[address], kind) for address, kind in kinds.items() if _is_optimizer(kind)
            }
            # A wrapper first: the other variables often name parts of it.
            for address, kind in sorted(models, key=lambda model: model[1].name not in WRAPPERS):
                yield level[address], address, kind
            if self.found.parameters or hop == _HOPS:
                return
            self._check()
            holders = sorted(
                ((a, kind) for a, kind in kinds.items() if _may_hold(kind)), key=lambda one: _is_container(one[1])
            )
            near = references_of(self.memory, dict(holders[:_HOLDERS]))
            for holder, targets in near.items():
                for target in targets:
                    held_by[target].setdefault(holder, level[holder])
            parts = self.objects.heads(target for targets in near.values() for target in targets if target not in known)
            level = {
                target: f"{level[holder]}.{parts[target][0].name[:_NAME]}"
                for holder, targets in reversed(near.items())
                for target in targets
                if target in parts and parts[target][0].flags & (HEAP_TYPE | CONTAINER)
            }
            known.update(level)

    def _attribute_names(self, held_by: Mapping[int, Mapping[int, str]]) -> dict[int, str]:
        """Names of these objects by the attributes that hold them: an object may have two models of one class.

        What only seems to refer to an object, since a pointer to it is behind its own end, has no such attribute.
        """
        holders = dict.fromkeys(holder for several in held_by.values() for holder in several)
        held = {holder: attributes(self.memory, self.interpreter, holder) for holder in holders}
        names = {
            address: [
                f"{name}.{own}"
                for holder, name in several.items()
                for own, value in held[holder].items()
                if value == address and len(own) <= _NAME
            ]
            for address, several in held_by.items()
        }
        return {address: several[0] for address, several in names.items() if several}

    def follow(self, name: str, root: int, kind: Type) -> None:
        """Add the parameters of a model, level by level; a part of a model that was followed adds none."""
        if root in self.seen or self.models_found >= _ROOTS:
            return
        found: dict[Place, tuple[str, int]] = {}
        registered: frozenset[int] = frozenset()
        level: dict[int, tuple[Place, str, Type]] = {root: ((), name, kind)}
        while level:
            self._check()
            self.seen.update(level)
            kinds = {module: kind for module, (_, _, kind) in level.items()}
            attributes = self._attributes(kinds)
            if kind.name in WRAPPERS and root in attributes:
                registered = self._registered(attributes[root])
            for module, kind in kinds.items():
                self._note(kind, attributes.get(module, {}))
            held = {m: (some.get("_parameters", 0), some.get("_modules", 0)) for m, some in attributes.items()}
            dicts = read_dicts(self.objects, self.interpreter.version, [a for pair in held.values() for a in pair])
            self._name(key for entries in dicts.values() for key, _ in entries)
            types = self.objects.heads(value for entries in dicts.values() for _, value in entries)
            below: dict[int, tuple[Place, str, Type]] = {}
            for module, (own, parts) in held.items():
                place, path, _ = level[module]
                for index, (key, address) in enumerate(dicts.get(own, ())):
                    if address in types and _is_tensor(types[address][0]) and self.names[key]:
                        self._note(types[address][0], {})
                        own_place = (*place, -1, index)
                        found[own_place] = f"{path}.{self.names[key]}", address
                entries = dicts.get(parts, [])
                for index in evenly(len(entries), _CHILDREN):
                    key, address = entries[index]
                    if address in types and is_module(types[address][0]) and address not in self.seen:
                        below[address] = (*place, index), f"{path}.{self.names[key]}", types[address][0]
            level = dict(list(below.items())[: max(0, _MODULES - len(self.seen))])
        if self._is_meta(address for _, address in found.values()):
            return
        self.models_found += bool(found)
        for place in sorted(found):
            self.found.parameters.setdefault(*found[place])
        if registered:
            self.found.unregistered |= {name: one for name, one in found.values() if one not in registered}

    def _is_meta(self, parameters: Iterable[int]) -> bool:
        """True of a model without values, as torch.func.functional_call is given: others hold its parameters."""
        contents = locate(self.memory, parameters)
        return bool(contents) and all(one.tensor.device == "meta" for one in contents.values())

    def trainable_tensors(self, roots: Sequence[tuple[str, int]]) -> dict[str, int]:
        """Parameters that no module holds, by name: those of the optimizers that were seen, else of the variables."""
        held = references_of(self.memory, {address: kind for address, (_, kind) in self.optimizers.items()})
        kinds = self.objects.heads(target for targets in held.values() for target in targets)
        groups = {
            target: f"{self.optimizers[holder][0]}.param_groups"
            for holder, targets in held.items()
            for target in targets
            if target in kinds and kinds[target][0].name == "list"
        }
        return self._tensors_among(groups) or self._tensors_among({address: name for name, address in reversed(roots)})

    def _tensors_among(self, level: Mapping[int, str]) -> dict[str, int]:
        """The trainable tensors, and those in dicts and lists: `params.encoder.w`, `opt.param_groups.0.params.3`."""
        found: dict[str, int] = {}
        seen = set[int]()
        for _ in range(_NESTED):
            self._check()
            kinds = {address: kind for address, (kind, _) in self.objects.heads(level).items()}
            contents = locate(self.memory, [address for address, kind in kinds.items() if _is_tensor(kind)])
            for address in [address for address, one in contents.items() if one.trainable]:
                self._note(kinds[address], {})
                found.setdefault(level[address], address)
            inner = [address for address, kind in kinds.items() if _is_container(kind) and address not in seen][
                :_CONTAINERS
            ]
            seen.update(inner)
            level = self._parts({address: level[address] for address in inner})
        return found

    def _parts(self, containers: Mapping[int, str]) -> dict[int, str]:
        """What these dicts and lists hold, with names; of many, the first, the last and some between."""
        dicts = read_dicts(self.objects, self.interpreter.version, containers)
        self._name(key for entries in dicts.values() for key, _ in entries)
        found: dict[int, str] = {}
        for address, name in containers.items():
            held = [(self.names[key] or "?", value) for key, value in dicts.get(address, ())]
            held += [(str(index), value) for index, value in enumerate(self.objects.items(address, _ITEMS))]
            for index in evenly(len(held), _CHILDREN):
                found.setdefault(held[index][1], f"{name}.{held[index][0]}")
        return found

    def _registered(self, attributes: Mapping[str, int]) -> frozenset[int]:
        """The parameters that a DistributedDataParallel reduces, as it was made with them; none where it ignores some.

        torch/nn/parallel/distributed.py (2.13): `_module_parameters` is filled by __init__ and never again.
        """
        ignored, listed = attributes.get("parameters_to_ignore"), attributes.get("_module_parameters")
        if not ignored or not listed or self.memory.words(ignored + _SET_USED, 1)[0]:
            return frozenset()
        return frozenset(self.objects.items(listed, _REGISTERED))

    def _attributes(self, kinds: Mapping[int, Type]) -> dict[int, dict[str, int]]:
        """Attributes by name."""
        dicts = instance_dicts(self.objects, self.interpreter.version, kinds)
        entries = read_dicts(self.objects, self.interpreter.version, dicts.values())
        self._name(key for some in entries.values() for key, _ in some)
        return {a: {self.names[key]: value for key, value in entries.get(d, ())} for a, d in dicts.items()}

    def _name(self, keys: Iterable[int]) -> None:
        """Learn the texts of these keys; instances of a class share them."""
        new = [key for key in keys if key not in self.names]
        seen = self.objects.describe(new)
        for key in new:
            text = seen[key].text if key in seen else None
            self.names[key] = text if text and len(text) <= _NAME and _PLAIN.fullmatch(text) else ""

    def _note(self, kind: Type, attributes: Mapping[str, int]) -> None:
        """What the class of a module or parameter says of how ranks share it."""
        if kind.name in _SHARDS or kind.name.startswith("FSDP"):
            self.found.sharded = self.found.sharded or kind.name[:_NAME]
        if kind.name in WRAPPERS and self.found.wrapper is None:
            self.found.wrapper = kind.name
            self.found.group = attributes.get("process_group")

    def _check(self) -> None:
        if time.thread_time() > self.until_s:
            raise _Late


def is_module(kind: Type) -> bool:
    """True for torch's nn.Module and its subclasses."""
    return bool(kind.flags & HEAP_TYPE) and "Module" in kind.bases


def _is_tensor(kind: Type) -> bool:
    return not _TENSORS.isdisjoint((kind.name, *kind.bases))


def _is_optimizer(kind: Type) -> bool:
    """True for torch.optim.Optimizer and its subclasses."""
    return bool(kind.flags & HEAP_TYPE) and "Optimizer" in kind.bases


def _is_container(kind: Type) -> bool:
    """True for dicts, lists and tuples."""
    return bool(kind.flags & CONTAINER)


def _may_hold(kind: Type) -> bool:
    return _is_container(kind) or (bool(kind.flags & HEAP_TYPE) and _TENSORS.isdisjoint(kind.bases))


def evenly(count: int, most: int) -> list[int]:
    """At most `most` indexes below `count`, with the first and the last."""
    if count <= most:
        return list(range(count))
    return [index * (count - 1) // (most - 1) for index in range(most)]
