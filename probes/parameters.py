"""Probe `parameters`: samples of a few parameters of the models that a rank trains, read from its memory.

Replicas hold equal parameters after each step. The ranks of a host are read at almost the same instant, several times
in each look, with torch's count of changes, so that an analysis can compare what belongs to one step. Nothing runs in
the process, and it is never paused: a value may be torn while the optimizer writes it.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b

from hangdoc.evidence import Stacks, Target, Unseen
from hangdoc.evidence.parameters import Parameter, Parameters, Value
from hangdoc.introspect import models
from hangdoc.introspect.memory import Memory, Unreadable
from hangdoc.introspect.models import Found, evenly
from hangdoc.introspect.module_globals import Place, Places, Process, script_objects
from hangdoc.introspect.objects import Objects
from hangdoc.introspect.tensors import FLOATS, Content, locate, locate_gradients, nonfinite
from hangdoc.system import procfs
from probes import Observation, Request, Tier

TRAINABLE, FROZEN = 4, 2  # parameters read of a rank
SAMPLE = 128  # bytes read at the start of a parameter, and as many in its middle
MAX_NAMED = 8  # parameters that a wrapper has not registered
SMALLEST = 16  # bytes of a parameter: a smaller one may be equal by chance
READS, PAUSE_S = 4, 0.001  # in each look: some fall between two steps of the optimizer
# Without a wrapper, in early looks and in those that search: gradients averaged by hand are equal for a part of each
# step. On two busy cores, one read in 40 sees that.
GRADIENT_READS, _OFTEN_READ = 16, 24
_ROOTS = 256  # variables
_LEADING = frozenset({"object", "dict", "list", "tuple", "tensor"})  # kinds of variables that may lead to a model
# A first look may come before the model is wrapped, and a job may go on to another model: it is searched again after
# so many looks. Until one is found, each of the first looks searches.
_SEARCHES, _SEARCH_AGAIN, _EARLY = frozenset({1, 3, 7}), 20, 12
_LIBRARIES = (b"/libtorch",)  # without them there is no model, yet
_MODEL_CODE = "/torch/nn/modules/module.py"  # from here inwards, variables name parts of a model
# Variables of torch itself name parts of a model, too, and change from look to look.
_TORCH = re.compile(r"(?:-packages|/pytorch)/torch/")
_DIGEST = 6  # bytes

_Gradients = list[dict[str, str]]  # digests by name of the parameter, oldest first


@dataclass(slots=True)
class _Known:
    """What is known of one process."""

    torch: bool = False  # it is loaded, or that cannot be seen
    looks: int = 0  # since then
    readable: bool = False  # its interpreter was found
    found: Found = field(default_factory=Found)
    chosen: Mapping[str, int] = field(default_factory=dict)  # parameters to read: objects by name
    unregistered: tuple[str, ...] = ()  # trainable parameters that the wrapper has not registered
    size: int | None = None  # bytes of all trainable parameters

    @property
    def reads(self) -> int:
        """Times to read in this look."""
        often = not self.found.wrapper and (self.looks <= _OFTEN_READ or self.looks % _SEARCH_AGAIN == 0)
        return GRADIENT_READS if often else READS


class ParametersProbe:
    name = "parameters"
    scope = "rank"
    tier = Tier.LOOK
    needs = "ptrace"
    record = Parameters
    order = 40
    steady = False

    def __init__(self) -> None:
        self._places = Places()
        self._known: dict[Process, _Known] = {}

    def observe(self, request: Request) -> Observation:
        watched = {(target.pid, target.start_ticks) for target in request.targets}
        self._known = {process: known for process, known in self._known.items() if process in watched}
        self._places.keep(watched)
        unseen: list[Unseen] = []
        located: dict[int, tuple[Memory, _Known, dict[str, Content], _Gradients]] = {}
        for target in request.targets:
            process, memory = (target.pid, target.start_ticks), Memory(target.pid)
            try:
                known = self._find(process, memory, (request.records or {}).get(target.pid, {}).get("stacks"))
                contents = _contents(memory, known)
                located[target.pid] = memory, known, contents, [_gradients(memory, known, contents)]
            except (Unreadable, struct.error) as error:
                unseen.append(_unseen(target, str(error) or "its memory changed meanwhile"))
        samples: dict[int, list[Mapping[str, tuple[int, bytes]]]] = {pid: [] for pid in located}
        reads = max((known.reads for _, known, contents, _ in located.values() if contents), default=0)
        for read in range(reads):
            time.sleep(PAUSE_S)
            for pid, (memory, known, contents, gradients) in located.items():
                if read < READS:
                    samples[pid].append(_sample(memory, contents))
                if read < known.reads and not known.found.wrapper:
                    with suppress(Unreadable, struct.error):  # located again: `zero_grad` drops them
                        gradients.append(_gradients(memory, known, _contents(memory, known)))
        by_pid: dict[int, Parameters] = {}
        for target in request.targets:
            if target.pid in located:
                _, known, contents, gradients = located[target.pid]
                if why := _obstacle(known, contents):
                    unseen.append(_unseen(target, why))
                else:
                    by_pid[target.pid] = _record(known, contents, gradients, samples[target.pid])
        return Observation(by_pid, unseen=tuple(unseen))

    def _find(self, process: Process, memory: Memory, stacks: object) -> _Known:
        """The parameters of one process, searched when it is due. Raises Unreadable."""
        known = self._known.setdefault(process, _Known())
        if not known.torch:
            known.torch = procfs.maps_any(memory.pid, _LIBRARIES) is not False
        if not known.torch:
            return known
        early = known.looks < _EARLY and not known.found.parameters and not known.found.late
        due = early or known.looks in _SEARCHES or known.looks % _SEARCH_AGAIN == 0
        known.looks += 1
        if not due:
            return known
        place = self._places.of(process, memory)
        known.readable = place is not None
        if place is not None:
            found = models.search(memory, place.interpreter, list(_roots(memory, place, stacks)))
            if found.parameters:
                contents = locate(memory, found.parameters.values())
                known.found, known.chosen = found, _choose(found.parameters, contents)
                added = [
                    name for name, one in found.unregistered.items() if one in contents and contents[one].trainable
                ]
                known.unregistered = tuple(added[:MAX_NAMED])
                known.size = sum(content.size for content in contents.values() if content.trainable)
            elif not known.found.parameters:
                known.found = found
        return known


def _unseen(target: Target, why: str) -> Unseen:
    return Unseen("parameters", f"its parameters are unknown: {why}", target.rank, target.pid, target.host)


def _roots(memory: Memory, place: Place, stacks: object) -> Iterator[tuple[str, int]]:
    """Variables, those of the outermost frames first, then the globals of the script. Raises Unreadable."""
    threads = stacks.threads if isinstance(stacks, Stacks) else ()
    count = 0
    for thread in sorted(threads, key=lambda thread: thread.name != "MainThread"):
        for frame in reversed(thread.frames):
            if frame.file.endswith(_MODEL_CODE):
                break
            for variable in () if _TORCH.search(frame.file) else frame.variables or ():
                if variable.kind in _LEADING and variable.address and count < _ROOTS:
                    count += 1
                    yield variable.name, variable.address
    entries = script_objects(memory, place)
    names = Objects(memory, place.interpreter.version).describe(key for key, _ in entries)
    yield from ((names[key].text or "", value) for key, value in entries if key in names)


def _choose(parameters: Mapping[str, int], contents: Mapping[int, Content]) -> dict[str, int]:
    """The parameters to read: the first, the last and some between, trainable and frozen."""
    large = {
        name: contents[address]
        for name, address in parameters.items()
        if address in contents and (contents[address].size >= SMALLEST or not contents[address].data)
    }
    trainable = [name for name, content in large.items() if content.trainable]
    frozen = [name for name, content in large.items() if not content.trainable]
    chosen = [trainable[i] for i in evenly(len(trainable), TRAINABLE)] + [
        frozen[i] for i in evenly(len(frozen), FROZEN)
    ]
    return {name: parameters[name] for name in chosen}


def _contents(memory: Memory, known: _Known) -> dict[str, Content]:
    """Where the chosen parameters are now, by name. Raises Unreadable."""
    contents = locate(memory, known.chosen.values())
    return {name: contents[address] for name, address in known.chosen.items() if address in contents}


def _obstacle(known: _Known, contents: Mapping[str, Content]) -> str | None:
    """Why the parameters of a model cannot be read; None: they can, or there is no model."""
    if not known.torch:
        return None
    if not known.readable:
        return "it is not CPython 3.10 to 3.14, or its memory may not be read; run hangdoc as that user or as root"
    if known.found.late:
        return "the search for its models took too long"
    if not known.found.parameters or known.found.sharded:
        return None
    if not known.chosen:
        return "hangdoc does not know the tensors of this version of PyTorch; it reads those of 2.13"
    devices = {content.tensor.device for content in contents.values()}
    if devices and all(not content.data for content in contents.values()):
        return f"they are on {', '.join(sorted(devices))}, and hangdoc reads the memory of the host only"
    return None


def _gradients(memory: Memory, known: _Known, contents: Mapping[str, Content]) -> dict[str, str]:
    """Digests of the gradients, by name of the parameter. Raises Unreadable."""
    by_address = {known.chosen[name]: content for name, content in contents.items() if content.trainable}
    held = locate_gradients(memory, by_address)
    names = {name: held[known.chosen[name]] for name in contents if known.chosen[name] in held}
    return {name: _digest(data, names[name].tensor.dtype) for name, (_, data) in _sample(memory, names).items()}


def _others(name: str, first: Mapping[str, str], *later: Mapping[str, str]) -> tuple[str, ...]:
    """Distinct later digests of a gradient."""
    found = dict.fromkeys(one.get(name, "") for one in later)
    return tuple(digest for digest in found if digest not in ("", first.get(name)))


def _sample(memory: Memory, contents: Mapping[str, Content]) -> dict[str, tuple[int, bytes]]:
    """Version and some bytes of each; without those that changed meanwhile, and none if the process has ended."""
    readable = {name: content for name, content in contents.items() if content.data}
    pieces = [piece for content in readable.values() for piece in _pieces(content)]
    try:
        read = memory.read_many(pieces)
    except Unreadable:
        return {}
    found: dict[str, tuple[int, bytes]] = {}
    for name, (before, start, middle, after) in zip(readable, _in_fours(read), strict=True):
        if before is not None and start is not None and middle is not None and before == after:
            found[name] = int.from_bytes(before, "little"), start + middle
    return found


def _pieces(content: Content) -> tuple[tuple[int, int], ...]:
    """What to read: the version, the start, the middle, and the version again."""
    width = FLOATS[content.tensor.dtype]
    middle = content.size // 2 // width * width
    version = (content.version, 4)
    return (
        version,
        (content.data, min(SAMPLE, content.size)),
        (content.data + middle, min(SAMPLE, content.size - middle)),
        version,
    )


def _in_fours(read: Sequence[bytes | None]) -> Iterator[Sequence[bytes | None]]:
    return (read[at : at + 4] for at in range(0, len(read), 4))


def _record(
    known: _Known,
    contents: Mapping[str, Content],
    gradients: _Gradients,
    samples: Sequence[Mapping[str, tuple[int, bytes]]],
) -> Parameters:
    return Parameters(
        tuple(
            Parameter(
                name,
                content.tensor.shape,
                content.tensor.dtype,
                content.tensor.device,
                content.trainable,
                tuple(dict.fromkeys(_values(name, content.tensor.dtype, samples))),
                gradients[0].get(name, ""),
                nonfinite(next((s[name][1] for s in reversed(samples) if name in s), b""), content.tensor.dtype),
                _others(name, *gradients),
            )
            for name, content in contents.items()
        ),
        known.found.wrapper,
        known.found.group,
        known.found.sharded,
        known.unregistered,
        known.size,
    )


def _values(name: str, dtype: str, samples: Sequence[Mapping[str, tuple[int, bytes]]]) -> Iterator[Value]:
    for sample in samples:
        if name in sample:
            version, data = sample[name]
            yield Value(version, _digest(data, dtype))


def _digest(data: bytes, dtype: str) -> str:
    width = FLOATS[dtype]
    if data == data[:width] * (len(data) // width):
        return ""
    return blake2b(data, digest_size=_DIGEST).hexdigest()


PROBE = ParametersProbe()
