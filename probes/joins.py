"""Probe `joins`: where a rank's own scripts create the process group, and under which conditions.

Only for ranks without a process group. The files on their stacks are read through the target's root and parsed in a
sandbox.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hangdoc.evidence import ProcessGroups, Stacks
from hangdoc.evidence.collectives import JoinCall, JoinCalls
from hangdoc.introspect.source_files import Sources, own_files
from hangdoc.introspect.source_records import redacted_source
from probes import Observation, Request, Tier

_PARSER = "hangdoc.introspect.parsers.join_calls:join_calls"
_WORDS = (b"init_process_group", b"init_distributed", b"init_device_mesh")
_Calls = tuple[tuple[int, tuple[str, ...]], ...]


@dataclass(slots=True)
class JoinsProbe:
    name: str = "joins"
    scope: str = "rank"
    tier: Tier = Tier.LOOK
    needs: str = "ptrace"
    record: type = JoinCalls
    order: int = 36
    steady: bool = False
    _sources: Sources[_Calls] = field(default_factory=lambda: Sources(_PARSER, _calls, words=_WORDS))

    def observe(self, request: Request) -> Observation:
        files = {
            target.pid: own_files(stacks)
            for target in request.targets
            if without_group(request, target.pid)
            and isinstance(stacks := (request.records or {})[target.pid].get("stacks"), Stacks)
        }
        found, _ = self._sources.ask({pid: dict.fromkeys(own, (0,)) for pid, own in files.items()})
        return Observation(
            {
                pid: JoinCalls(
                    tuple(
                        JoinCall(f"{os.path.basename(file)}:{line}", conditions)
                        for file in own
                        for line, conditions in found.get((pid, file, 0), ())
                    )
                )
                for pid, own in files.items()
            }
        )


def without_group(request: Request, pid: int) -> bool:
    """True if the rank is known to have no process group."""
    groups = (request.records or {}).get(pid, {}).get("groups")
    return isinstance(groups, ProcessGroups) and groups.exists is False


def _calls(answer: Any) -> Iterator[tuple[int, _Calls]]:
    yield 0, tuple((line, tuple(map(redacted_source, conditions))) for line, conditions in answer)


PROBE = JoinsProbe()
