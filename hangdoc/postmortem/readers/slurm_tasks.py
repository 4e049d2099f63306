"""How many tasks Slurm started for a job: `SLURM_NTASKS=1`, `NumTasks=1` (scontrol), `--ntasks=1`, NTasks of sstat,
or `--ntasks-per-node=4` and the number of nodes (`--nodes=1`, squeue, sacct, scontrol).

Lightning waits for as many members as the job has ranks, and under Slurm starts none itself. A text that names a
launcher of several processes (torchrun, mpirun) says nothing: one task of it is many ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._pasted_text import text_lines
from hangdoc.redaction.text import redact_text

KIND = "tasks_counted"
MAX_TEXT = 2**20  # characters of a text in which somebody shows them
MAX_LINE = 400
MAX_CELLS = 32
_STATED = re.compile(
    r"\bSLURM_(?:STEP_NUM_TASKS|STEP_NTASKS|NTASKS|NPROCS)[=:]\s?[\"']?(\d{1,6})\b|\bNumTasks=(\d{1,6})\b"
    r"|(?:^\s{0,8}#SBATCH|\b(?:srun|sbatch))\s(?:\S{1,80}\s){0,8}?(?:--ntasks(?:=|\s)|-n\s?)(\d{1,6})(?!\S)"
)
_PER_NODE = re.compile(
    r"(?:^\s{0,8}#SBATCH|\b(?:srun|sbatch))\s(?:\S{1,80}\s){0,8}?--ntasks-per-node(?:=|\s)(\d{1,4})(?!\S)"
)
_NODES = re.compile(
    r"\bSLURM_(?:JOB_NUM_NODES|NNODES)[=:]\s?[\"']?(\d{1,5})\b|\bNumNodes=(\d{1,5})\b"
    r"|(?:^\s{0,8}#SBATCH|\bsbatch)\s(?:\S{1,80}\s){0,8}?(?:--nodes(?:=|\s)|-N\s?)(\d{1,5})(?!\S)"
)
_LAUNCHES = re.compile(
    r"\btorchrun\b|torch[./]distributed[./](?:run|launch)\b|\baccelerate[. ](?:commands\.)?launch|\bdeepspeed\b"
    r"|\bspawn\b|\bmpi(?:run|exec)\b|\bhorovodrun\b|\bray\b",
    re.IGNORECASE,
)
_STEP = re.compile(r"\d{1,12}(?:_\d{1,9})?\.\d{1,6}")
_JOB = re.compile(r"\d{1,12}(?:_\d{1,9})?")


class SlurmTaskReader:
    name = "number of tasks of a Slurm job"
    order = 66
    marks = ("SLURM_NTASKS", "SLURM_NPROCS", "NumTasks=", "--ntasks", "NTasks")
    help = "`scontrol show job JOB`, `sstat -j JOB --format=JobID,NTasks`, and the head of the batch script"

    def recognises(self, source: Source) -> bool:
        text = source.head_text[:MAX_TEXT]
        return not _LAUNCHES.search(text) and any(_counts(text.split("\n")))

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        found = list(_counts(text_lines(source, context)))
        if len({tasks for tasks, *_ in found}) == 1:
            tasks, number, text = found[0]
            event = LogEvent(KIND, redact_text(text)[:MAX_LINE], source.name, number, None, {"tasks": str(tasks)})
            yield Piece(ProcessRef(), "logs", Logs((event,)))


@dataclass(slots=True)
class _Column:
    """A column of numbers in the tables of squeue, sacct and sstat."""

    row: re.Pattern[str]  # the first cell of a row
    names: tuple[str, ...]
    jobs: set[str] = field(default_factory=set)  # of the rows, of several the first two
    _place: int = -1

    def feed(self, text: str) -> int | None:
        """The number in a row; None: the line is none."""
        cells = text.split()[:MAX_CELLS]
        if cells and cells[0].upper() == "JOBID":
            self._place = next((cells.index(name) for name in self.names if name in cells), -1)
        elif self._place > 0 and self._place < len(cells) and self.row.fullmatch(cells[0]):
            cell = cells[self._place]
            if len(self.jobs) < 2:
                self.jobs.add(cells[0])
            return int(cell) if cell.isdecimal() and len(cell) < 7 else None
        elif not cells:
            self._place = -1
        return None


def _counts(lines: Iterable[str]) -> Iterator[tuple[int, int, str]]:
    """The tasks that a line states, its number and the line; else those that several lines state together."""
    of_steps, of_jobs = _Column(_STEP, ("NTasks",)), _Column(_JOB, ("NODES", "NNodes"))
    stated = False
    per_node: dict[int, tuple[int, str]] = {}  # tasks -> number of the line, the line
    nodes: set[int] = set()
    listed: set[int] = set()  # nodes of a job in a table
    for number, line in enumerate(lines, 1):
        text = line[:MAX_LINE]
        for tasks in (of_steps.feed(text), *_numbers(_STATED, text)):
            if tasks is not None:
                stated = True
                yield tasks, number, text.strip()
        per_node |= {tasks: (number, text.strip()) for tasks in _numbers(_PER_NODE, text)}
        nodes.update(_numbers(_NODES, text))
        if (count := of_jobs.feed(text)) is not None:
            listed.add(count)
    if not nodes and len(of_jobs.jobs) == 1:
        nodes = listed
    if not stated and len(per_node) == len(nodes) == 1:
        (count,) = nodes
        for tasks, (number, text) in per_node.items():
            yield tasks * count, number, f"{text} on {count} {'node' if count == 1 else 'nodes'}"


def _numbers(pattern: re.Pattern[str], text: str) -> Iterator[int]:
    """The numbers that the groups of a pattern find in a line."""
    for found in pattern.finditer(text):
        yield int(next(filter(None, found.groups())))


READER = SlurmTaskReader()
