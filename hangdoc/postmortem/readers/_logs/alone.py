"""Processes that each start as a job of their own: lines that say so, one after the other, in a log of several.

A script without a launcher, or with `srun python`, runs once per task, and every copy prints that it is the only
process. One process may say so twice, and a restarted one again: so lines count that nothing but a start separates.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_GAP = 12  # lines between two of them
LEAST = 3  # processes, if no launcher shows how many were started
MAX_TASKS = 100_000

# accelerate/state.py; transformers/training_args.py; lightning/fabric/utilities/distributed.py; timm train.py;
# megatron/training/initialize.py and others that print a world size
_ALONE = re.compile(
    r"\bDistributed environment: (?:DistributedType\.)?NO\b|\bdistributed training: False\b"
    r"|\bGLOBAL_RANK: 0, MEMBER: 1/1(?!\d)|\bTraining with a single process on 1 (?:GPU|device)"
    r"|\bworld[_ ]?size\W{1,3}1\b(?!\.)"
)
# A launcher that starts so many processes: `srun --ntasks=4`, `#SBATCH -n 8`, `mpirun -np 4`
_TASKS = re.compile(
    r"\b(?:srun|sbatch|SBATCH|mpirun|mpiexec)\b(?:(?!python|bash )[^\n|;&]){0,400}?"
    r"\s(?:--ntasks(?:-per-node)?|-n|-np)[= ]{0,2}(\d{1,6})(?=\s|$)"
)
_NODES = re.compile(r"\s(?:--nodes|-N)[= ]{0,2}(\d{1,6})(?=\s|$)")
_GOES_ON = re.compile(  # a process trains, fails, or is started again
    r"Traceback|\w(?:Error|Exception)\b|\bloss\b\W{1,4}\d|\d%\||restart|\battempt\b|\b(?:step|iter(?:ation)?)\W{1,4}\d",
    re.IGNORECASE,
)


@dataclass(slots=True)
class AloneLines:
    """Counts them, line by line."""

    processes: int = 0  # the most that started together
    tasks: int = 0  # that a launcher starts; 0: none is shown
    text: str = ""
    line: int = 0
    _run: int = 0
    _last: int = 0

    def feed(self, text: str, number: int) -> None:
        text = text[:2000]
        if launched := _TASKS.search(text):
            per_node = "per-node" in launched[0]
            nodes = _NODES.search(text) if per_node else None
            self.tasks = max(self.tasks, int(launched[1]) * (int(nodes[1]) if nodes else 1)) % MAX_TASKS
        if _ALONE.search(text):
            self._run = self._run + 1 if self._run and number - self._last <= MAX_GAP else 1
            self._last = number
            if self._run > self.processes:
                self.processes, self.text, self.line = self._run, text, number
        elif _GOES_ON.search(text):
            self._run = 0

    @property
    def proved(self) -> bool:
        """True if as many started as the launcher shows, or several if there is none."""
        if self.tasks:
            return 1 < self.processes == self.tasks or LEAST <= self.processes < self.tasks
        return self.processes >= LEAST
