"""Probe `source`: what the source code says about the lines the ranks stand on.

Which loops and branches enclose a line, and what it calls, decides between "left the loop", "took another branch" and
"is still on its way". Files are read as the target sees them and only parsed, never imported, in a child process that
they cannot harm. A file changed after the process started no longer describes it and is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby

from hangdoc.evidence import Place, Source, Stacks, Target, Unseen
from hangdoc.introspect.source_files import Lack, Sources
from hangdoc.introspect.source_records import places_of
from probes import Observation, Request, Tier

MOST_SAID = 4  # files of one rank that are named where their source is not used


@dataclass(slots=True)
class SourceProbe:
    """Parses a file when one of its functions first stands on a stack; keeps the places of lines and no trees."""

    name: str = "source"
    scope: str = "rank"
    tier: Tier = Tier.LOOK
    needs: str = "ptrace"
    record: type = Source
    order: int = 30
    steady: bool = False
    _sources: Sources[Place] = field(
        default_factory=lambda: Sources("hangdoc.introspect.parsers.line_context:places", places_of)
    )

    def observe(self, request: Request) -> Observation:
        targets = {target.pid: target for target in request.targets}
        stacks = {pid: (request.records or {}).get(pid, {}).get("stacks") for pid in targets}
        wanted = {pid: _lines(one) for pid, one in stacks.items() if isinstance(one, Stacks)}
        places: dict[int, dict[str, Place]] = {pid: {} for pid in wanted}
        found, lacks = self._sources.ask(wanted)
        for (pid, file, line), place in found.items():
            places[pid][f"{file}:{line}"] = place
        unseen = (
            lack
            for pid, own in groupby(sorted(lacks, key=_of_process), _of_process)
            for lack in self._unseen(targets[pid], list(own))
        )
        return Observation({pid: Source(found) for pid, found in places.items()}, None, tuple(unseen))

    def _unseen(self, target: Target, lacks: list[Lack]) -> Iterator[Unseen]:
        texts = [f"{lack.file} {lack.why}; its loops and branches are not used" for lack in lacks[:MOST_SAID]]
        if len(lacks) > MOST_SAID:
            texts.append(f"the source of {len(lacks) - MOST_SAID} more files could not be used either")
        return (Unseen(self.name, text, target.rank, target.pid, target.host) for text in texts)


def _of_process(lack: Lack) -> int:
    return lack.pid


def _lines(stacks: Stacks) -> Mapping[str, Iterable[int]]:
    """The lines of every Python frame outside torch and the standard library, by file."""
    seen: dict[str, dict[int, None]] = {}
    children = (stack for _, threads in stacks.children for stack in threads)
    for stack in (*stacks.threads, *children):
        for frame in stack.frames:
            if frame.line and not frame.native and _worth(frame.file):
                seen.setdefault(frame.file, {})[frame.line] = None
    return seen


def _worth(file: str) -> bool:
    library = "/site-packages/torch/" in file or ("/lib/python3" in file and "/site-packages/" not in file)
    return not library and not file.startswith("<") and "/torchinductor_" not in file  # what torch.compile writes


PROBE = SourceProbe()
