"""Probe `types`: the lines of a rank's own scripts that name bfloat16: where it was chosen.

The files on its stacks are read through the target's root and parsed in a sandbox. A choice in a configuration file or
on the command line is not in them; the variables show it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hangdoc.evidence import Stacks
from hangdoc.evidence.software import Types
from hangdoc.introspect.source_files import Sources, own_files
from hangdoc.introspect.source_records import redacted_source
from probes import Observation, Request, Tier

_PARSER = "hangdoc.introspect.parsers.bf16_lines:bf16_lines"
_WORDS = (b"bfloat16", b"bf16")
_Lines = tuple[tuple[int, str], ...]


@dataclass(slots=True)
class TypesProbe:
    name: str = "types"
    scope: str = "rank"
    tier: Tier = Tier.LOOK
    needs: str = "ptrace"
    record: type = Types
    order: int = 35
    steady: bool = False
    _sources: Sources[_Lines] = field(
        default_factory=lambda: Sources(_PARSER, _numbered_lines, older=False, words=_WORDS)
    )

    def observe(self, request: Request) -> Observation:
        stacks = {target.pid: (request.records or {}).get(target.pid, {}).get("stacks") for target in request.targets}
        files = {pid: own_files(record) for pid, record in stacks.items() if isinstance(record, Stacks)}
        found, _ = self._sources.ask({pid: dict.fromkeys(own, (0,)) for pid, own in files.items()})
        return Observation(
            {
                pid: Types(
                    tuple(
                        f"{os.path.basename(file)}:{number}: {text}"
                        for file in own
                        for number, text in found.get((pid, file, 0), ())
                    )
                )
                for pid, own in files.items()
            }
        )


def _numbered_lines(answer: Any) -> Iterator[tuple[int, _Lines]]:
    yield 0, tuple((number, redacted_source(text)) for number, text in answer)


PROBE = TypesProbe()
