"""Pipeline schedules of torch.distributed.pipelining in another process, read by the names of their attributes.

Source: torch 2.13, torch/distributed/pipelining/schedules.py and stage.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from hangdoc.evidence.transfers import PipelineSchedule
from hangdoc.introspect.attributes import attributes
from hangdoc.introspect.interpreter import Interpreter
from hangdoc.introspect.memory import Memory
from hangdoc.introspect.module_globals import is_group
from hangdoc.introspect.objects import Objects, Type

_BASE = "_PipelineSchedule"
_SCHEDULES, _STAGES = 4, 64
_LARGEST = 1 << 20  # stages, microbatches


def pipeline_schedules(
    memory: Memory, interpreter: Interpreter, addresses: Iterable[int]
) -> tuple[PipelineSchedule, ...]:
    """The schedules among these objects, each once. Raises Unreadable."""
    heads = Objects(memory, interpreter.version).heads(addresses)
    kinds = {address: kind for address, (kind, _) in heads.items() if _BASE in kind.bases}
    found = (_schedule(memory, interpreter, address, kind) for address, kind in list(kinds.items())[:_SCHEDULES])
    return tuple(schedule for schedule in found if schedule is not None)


def _schedule(memory: Memory, interpreter: Interpreter, address: int, kind: Type) -> PipelineSchedule | None:
    own = attributes(memory, interpreter, address)
    objects = Objects(memory, interpreter.version)
    stages = [own["_stage"]] if "_stage" in own else objects.items(own.get("_stages", 0), _STAGES)
    tables = [attributes(memory, interpreter, stage) for stage in stages]
    count = _number(objects, own.get("_n_microbatches", 0))
    sizes = {_number(objects, table.get("num_stages", 0)) for table in tables}
    numbers = [_number(objects, table.get("stage_index", 0)) for table in tables]
    places = tuple(number for number in numbers if number is not None)
    size = sizes.pop() if len(sizes) == 1 else None
    if not count or size is None or not places or len(places) != len(numbers) or max(places) >= size:
        return None
    group = objects.heads([tables[0].get("group", 0)])
    known = [address for address, (held, _) in group.items() if is_group(held.name)]
    return PipelineSchedule(kind.name.rpartition(".")[2], places, size, count, known[0] if known else None)


def _number(objects: Objects, address: int) -> int | None:
    seen = objects.describe([address]).get(address) if address else None
    number = seen.number if seen is not None and seen.kind == "int" else None
    return int(number) if number is not None and 0 <= number < _LARGEST else None
