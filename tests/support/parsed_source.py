"""A source file as probe `source` tells of it, without the child process in between."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hangdoc.evidence import Place
from hangdoc.introspect.places import places
from probes.source import told


@dataclass
class Module:
    data: bytes
    known: dict[int, Place | None] = field(default_factory=dict)

    @classmethod
    def parse(cls, path: str) -> Module:
        """Raises what `places` raises."""
        data = Path(path).read_bytes()
        places(data, [])
        return cls(data)

    def place(self, line: int) -> Place | None:
        if line not in self.known:
            self.known |= {line: None, **dict(told(places(self.data, [line])))}
        return self.known[line]
