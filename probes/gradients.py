"""Probe `gradients`: the DDP models of a rank, and which of their parameters have a gradient, read from its memory.

Nothing runs in the process, and nothing pauses. The models are found from the variables on its stacks and the globals
of its script, in an EXAMINE alone: the gradients of a job that runs change all the time.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from hangdoc.evidence import Stacks, Target, Unseen
from hangdoc.evidence.parameters import Gradients
from hangdoc.introspect.gradients import replicated_models
from hangdoc.introspect.memory import Memory, Unreadable
from hangdoc.introspect.module_globals import Places, script_globals
from probes import Observation, Request, Tier


class GradientsProbe:
    name = "gradients"
    scope = "rank"
    tier = Tier.EXAMINE
    needs = "ptrace"
    record = Gradients
    order = 36
    steady = False

    def __init__(self) -> None:
        self._places = Places()

    def observe(self, request: Request) -> Observation:
        by_pid: dict[int, Gradients] = {}
        unseen: list[Unseen] = []
        self._places.keep({(target.pid, target.start_ticks) for target in request.targets})
        for target in request.targets:
            stacks = (request.records or {}).get(target.pid, {}).get("stacks")
            if not isinstance(stacks, Stacks):
                continue
            try:
                found = self._read(target, _objects(stacks))
            except (Unreadable, struct.error) as error:
                why = f"its gradients could not be read this time ({error})"
                unseen.append(Unseen(self.name, why, rank=target.rank, pid=target.pid, host=target.host))
            else:
                if found is not None:
                    by_pid[target.pid] = found
        return Observation(by_pid, unseen=tuple(unseen))

    def _read(self, target: Target, variables: Mapping[int, str]) -> Gradients | None:
        """The record of one process; None: unknown interpreter. Raises Unreadable."""
        memory = Memory(target.pid)
        place = self._places.of((target.pid, target.start_ticks), memory)
        if place is None:
            return None
        return Gradients(replicated_models(memory, place.interpreter, {**variables, **script_globals(memory, place)}))


def _objects(stacks: Stacks) -> dict[int, str]:
    """Objects in the variables of the stacks, by address, and the innermost variable of each."""
    variables = (v for stack in stacks.threads for frame in stack.frames for v in frame.variables or ())
    found: dict[int, str] = {}
    for variable in variables:
        if variable.kind == "object" and variable.address:
            found.setdefault(variable.address, variable.name)
    return found


PROBE = GradientsProbe()
