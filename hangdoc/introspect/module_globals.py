"""Module-level variables of the training script (`__main__`), which py-spy does not show, read from memory.

Nothing runs in the process. None: not verified.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from hangdoc.evidence import Variable
from hangdoc.introspect import local_variables
from hangdoc.introspect.interpreter import Interpreter, find, main_entry, modules_path, read_dict
from hangdoc.introspect.memory import Memory, Unreadable
from hangdoc.introspect.objects import Objects
from hangdoc.introspect.tensors import read_tensors

MAX_VARIABLES = 60  # kept: the last ones defined, which come after the imports
_LAST_NAMES, _FIRST_NAMES = 1024, 16  # of a module, to be read; `__name__` is among the first
MODULE_DICT = 16  # offset of md_dict in PyModuleObject
_SCRIPT = ("__main__", "__mp_main__")  # the second in a process spawned by multiprocessing
_ATTEMPTS = 3  # failures before a process is given up: it may still be starting
_BUILDS = 64  # of interpreters: each container image has its own

Process = tuple[int, int]  # PID and start time


@dataclass(frozen=True, slots=True)
class Place:
    """Path to `sys.modules` in one process, and the address of its key `__main__`."""

    interpreter: Interpreter
    path: tuple[int, ...]
    key: int

    def modules(self, memory: Memory) -> int:
        """The address of `sys.modules`. Raises Unreadable."""
        return _follow(memory, self.interpreter, self.path)


class Places:
    """Finds `sys.modules` of processes; caches by interpreter build and by process."""

    def __init__(self) -> None:
        self._paths: dict[tuple[str, int], tuple[int, ...]] = {}  # by build
        self._places: dict[Process, Place] = {}
        self._failures: Counter[Process] = Counter()

    def hopeless(self, process: Process) -> bool:
        """True if it has failed too often for another attempt."""
        return self._failures[process] >= _ATTEMPTS

    def keep(self, processes: Collection[Process]) -> None:
        """Forget all other processes."""
        self._places = {process: place for process, place in self._places.items() if process in processes}
        self._failures = Counter({process: n for process, n in self._failures.items() if process in processes})

    def find(self, process: Process, memory: Memory) -> Place | None:
        """The place; None: unknown interpreter. Raises Unreadable."""
        return self._places.get(process) or self._search(memory)

    def of(self, process: Process, memory: Memory) -> Place | None:
        """The place, recorded; None: unknown interpreter, or it has failed too often. Raises Unreadable."""
        if self.hopeless(process):
            return None
        place = self.find(process, memory)
        self.note(process, place)
        return place

    def note(self, process: Process, place: Place | None) -> None:
        """Record a verified place; None: a failed attempt."""
        if place is None:
            self._places.pop(process, None)
            self._failures[process] += 1
        else:
            self._places[process] = place
            self._failures.pop(process, None)

    def _search(self, memory: Memory) -> Place | None:
        interpreter = find(memory)
        if interpreter is None:
            return None
        path = self._paths.get(interpreter.build) or modules_path(memory, interpreter)
        entry = main_entry(memory, interpreter, _follow(memory, interpreter, path)) if path is not None else None
        if path is None or entry is None:
            return None
        if len(self._paths) >= _BUILDS:
            self._paths.clear()
        self._paths[interpreter.build] = path
        return Place(interpreter, path, entry[0])


class Globals:
    """Reads the globals of `__main__`."""

    def __init__(self) -> None:
        self._places = Places()

    def keep(self, processes: Collection[Process]) -> None:
        """Forget all other processes."""
        self._places.keep(processes)

    def read(self, pid: int, start_ticks: int) -> tuple[str | None, tuple[Variable, ...] | None]:
        """Version of the interpreter ("3.11.7") and the variables; None: unknown. Never raises."""
        process, memory = (pid, start_ticks), Memory(pid)
        if self._places.hopeless(process):
            return None, None
        place = variables = None
        with suppress(Unreadable):
            place = self._places.find(process, memory)
            variables = _read(memory, place) if place is not None else None
        self._places.note(process, place if variables is not None else None)
        return (place.interpreter.text if place is not None else None), variables


def script_objects(memory: Memory, place: Place) -> list[tuple[int, int]]:
    """Addresses of names and values of the last globals of `__main__`. Raises Unreadable."""
    entries = _script_entries(memory, place) or []
    return entries[-_LAST_NAMES:]


def is_group(type_name: str) -> bool:
    """True for the type name of torch's ProcessGroup."""
    return type_name.rpartition(".")[2] == "ProcessGroup"


def _follow(memory: Memory, interpreter: Interpreter, path: Sequence[int]) -> int:
    """The address of `sys.modules`."""
    address = interpreter.runtime
    for offset in path:
        address = memory.word(address + offset)
    return address


def _script_entries(memory: Memory, place: Place) -> list[tuple[int, int]] | None:
    """Keys and values of the dict of `__main__`; None: no such module. Raises Unreadable."""
    interpreter = place.interpreter
    module = dict(read_dict(memory, interpreter, place.modules(memory)) or ()).get(place.key)
    return None if module is None else read_dict(memory, interpreter, memory.word(module + MODULE_DICT)) or []


def script_globals(memory: Memory, place: Place) -> dict[int, str]:
    """The objects in globals of `__main__`, by address, with the name of one variable each. Raises Unreadable."""
    entries = script_objects(memory, place)
    names = Objects(memory, place.interpreter.version).describe(key for key, _ in entries)
    return {value: name for key, value in entries if key in names and (name := names[key].text)}


def _read(memory: Memory, place: Place) -> tuple[Variable, ...] | None:
    """The variables; None: the dict is not that of `__main__`. Raises Unreadable."""
    entries = _script_entries(memory, place)
    if entries is None:
        return None
    objects = Objects(memory, place.interpreter.version)
    seen = objects.describe(
        address for entry in (*entries[:_FIRST_NAMES], *entries[-_LAST_NAMES:]) for address in entry
    )
    named = [
        (name, value, seen[value])
        for key, value in dict(entries).items()
        if key in seen and value in seen and (name := seen[key].text) is not None and seen[key].kind == "str"
    ]
    if not any(name == "__name__" and item.text in _SCRIPT for name, _, item in named):
        return None
    tensors = read_tensors(memory, {value: item for _, value, item in named})
    kept = [
        (name, value, item)
        for name, value, item in named
        if not local_variables.is_dunder(name)
        and (item.kind != "object" or item.length is not None or value in tensors or is_group(item.type.name))
    ]
    return tuple(
        local_variables.from_object(name, value, item, tensors.get(value))
        for name, value, item in kept[-MAX_VARIABLES:]
    )
