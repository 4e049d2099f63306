"""Training scripts given with the evidence; `script_source` uses them for the loops and branches around stack lines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from hangdoc.evidence.pieces import Piece
from hangdoc.postmortem.readers import ReadContext, Source

SCRIPTS = "scripts"  # key of the paths in `ReadContext.shared`
MAX_SCRIPTS = 10_000
_PYTHON = re.compile(rb"^\s*(?:import |from [\w.]+ import |def \w+\(|class \w+|@\w)", re.MULTILINE)


class ScriptReader:
    name = "Python script"
    order = 15
    exclusive = True
    help = "the training script as it ran: `hangdoc report DUMPS train.py` shows loops and branches"

    def recognises(self, source: Source) -> bool:
        return source.path.suffix == ".py" and b"\0" not in source.head and _PYTHON.search(source.head) is not None

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        scripts: dict[Path, None] = context.shared.setdefault(SCRIPTS, {})
        if len(scripts) < MAX_SCRIPTS:
            scripts[source.path] = None
        context.progress(source.size)
        return ()


READER = ScriptReader()
