"""How many tasks Slurm started for a job: `SLURM_NTASKS=1`, `NumTasks=1` (scontrol), `--ntasks=1`, NTasks of sstat.

Lightning waits for as many members as the job has ranks, and under Slurm starts none itself. A text that names a
launcher of several processes (torchrun, mpirun) says nothing: one task of it is many ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

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
    r"\bSLURM_(?:STEP_NUM_TASKS|STEP_NTASKS|NTASKS|NPROCS)[=:]\s?[\"']?(?P<env>\d{1,6})\b|\bNumTasks=(?P<job>\d{1,6})\b"
    r"|(?:^\s{0,8}#SBATCH\s|\b(?:srun|sbatch)\s(?:\S{1,80}\s){0,8}?)(?:--ntasks(?:=|\s)|-n\s?)(?P<asked>\d{1,6})(?!\S)"
)
_LAUNCHES = re.compile(
    r"\btorchrun\b|torch[./]distributed[./](?:run|launch)\b|\baccelerate[. ](?:commands\.)?launch|\bdeepspeed\b"
    r"|\bspawn\b|\bmpi(?:run|exec)\b|\bhorovodrun\b|\bray\b",
    re.IGNORECASE,
)
_HEAD = re.compile(r"\bNTasks\b")
_STEP = re.compile(r"\d{1,12}(?:_\d{1,9})?\.\d{1,6}")


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


def _counts(lines: Iterable[str]) -> Iterator[tuple[int, int, str]]:
    """The tasks that a line states, its number and the line."""
    column = -1
    for number, line in enumerate(lines, 1):
        text = line[:MAX_LINE]
        cells = text.split()[:MAX_CELLS]
        if _HEAD.search(text) and "JobID" in text:
            column = cells.index("NTasks") if "NTasks" in cells else -1
        elif column > 0 and cells and _STEP.fullmatch(cells[0]):
            if column < len(cells) and cells[column].isdecimal() and len(cells[column]) < 7:
                yield int(cells[column]), number, text.strip()
        elif not cells:
            column = -1
        for found in _STATED.finditer(text):
            yield int(found["env"] or found["job"] or found["asked"]), number, text.strip()


READER = SlurmTaskReader()
