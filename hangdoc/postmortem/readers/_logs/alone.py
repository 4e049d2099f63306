"""Processes that each start as a job of their own: lines that say so, one after the other, in a log of several.

A script without a launcher, or with `srun python`, runs once per task, and every copy prints that it is the only
process. One process may say so twice, in different words, and a restarted one again. So only lines with the same
statement are counted: those that nothing but a start separates, or those of several writers, which a heading, a label
or a prompt names.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

from hangdoc.postmortem.readers._host_names import is_host_name, prompt_of

MAX_GAP = 12  # lines between two of them
MAX_BLOCK = 30  # the same, if they are equal to the letter: every process prints the same list of settings
LEAST = 3  # processes, if no launcher shows how many were started
LEAST_WRITERS = 2  # the same, if their lines name different writers
MAX_WRITERS = 4096
MAX_LINE = 2000  # characters
MAX_TASKS = 100_000

# What the only process of a job prints: accelerate/state.py; transformers/training_args.py; timm train.py;
# lightning/fabric/utilities/distributed.py; megatron/training/initialize.py; examples of Horovod, mpi4py and JAX.
_STATEMENTS = (
    ("environment", r"\bDistributed environment: (?:DistributedType\.)?NO\b"),
    ("training", r"\bdistributed training: False\b"),
    ("member", r"\bGLOBAL_RANK: 0, MEMBER: 1/1(?!\d)"),
    ("registered", r"\bregistered\. Starting with 1 process(?:es)?\b"),
    ("single", r"\b[Tt]raining with a single process on 1 (?:GPU|device)"),
    (
        "world",
        r"(?<!\w)(?:dist_|get_)?[Ww](?:orld|ORLD)[_ ]?(?i:size)(?:\(\))?"
        r"(?:\W{1,3}|[ \t.]{1,24}[:=|][ \t]{0,8}| is | of | was )1\b(?![.,]?\d)|\bWith (?:a )?world[_ ]size of 1\b",
    ),
    ("processes", r"\b(?i:num(?:ber)?[_ ](?:of[_ ])?(?:processes|ranks|replicas))\W{1,3}1\b(?![.,]?\d)"
                  r"|[ ,(]1 replicas?\b"),
    ("of", r"\b(?i:rank|process|proc|task|worker)[ :=#]{0,3}0,? (?:out )?of (?:total )?1\b(?![.,]?\d)"
           r"|\b(?i:rank|process)[ :=#]{0,3}0 ?/ ?1(?=[\])]|:| ?$)"),
    ("size", r"\b(?:hvd|horovod|mpi|comm)[. _]?(?i:world[._ ]?)?(?i:get_)?size(?:\(\))?\W{1,3}1\b(?![.,]?\d)"
             r"|\brank\W{1,2}0,? (?:local[_ ]rank\W{1,2}0,? )?(?:of )?size\W{1,2}1\b(?![.,]?\d)"),
    ("pair", r"\bworld\W{1,2}1,? rank\W{1,2}0\b|\brank\W{1,2}0,? world\W{1,2}1\b(?![.,]?\d)"),
    ("count", r"\bprocess_count(?:\(\))?\W{1,3}1\b(?![.,]?\d)"),
)  # fmt: skip
_ALONE = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _STATEMENTS))
# What each of them has, in any case: one look at a text tells whether it is worth a look at its lines.
_MAYBE_ALONE = re.compile(
    r"environment: (?:distributedtype\.)?no\b|training: false|member: 1/1|1 process|single process|1 replica"
    r"|\bworld\W{1,2}1\b|\b0 ?/ ?1\b"
    r"|0,? (?:out )?of (?:total )?1\b|(?:size|processes|ranks|replicas|count)[^\n\d]{1,26}1\b"
)
# The size of a part of the job, which may well be 1.
_OF_A_PART = re.compile(
    r"\b(?:tensor|pipeline|data|model|context|expert|sequence|parallel|tp|pp|dp|cp|ep|sp|mp|local|node|group|sub|shard)"
    r"[a-z]{0,8}[\s_()-]{1,3}(?:model[ _-])?(?:parallel[ _-])?(?:group[ _-])?$",
    re.IGNORECASE,
)
# A launcher that starts so many processes: `srun --ntasks=4`, `#SBATCH -n 8`, `mpirun -np 4`, `jsrun -n 6`
_TASKS = re.compile(
    r"\b(?:srun|sbatch|SBATCH|mpirun|mpiexec|orterun|horovodrun|jsrun|aprun|flux run)\b"
    r"(?:(?!python|bash )[^\n|;&]){0,200}?"
    r"\s(?:--ntasks(?:-per-node)?|--np|-np|-n)[= ]{0,2}(\d{1,6})(?=\s|$)"
)
_NODES = re.compile(r"[\s`'\"](?:--nodes|-N)[= ]{0,2}(\d{1,6})(?=\s|$)")
# Jobs that are meant to be apart.
_SWEEP = re.compile(
    r"\bwandb (?:agent|sweep)\b|\b(?:optuna|hyperparam\w{0,10}|grid search|sweep(?:s|ing)?|ablations?|folds?|trials?)\b"
    r"|--array[= ]|SLURM_ARRAY|\bjob array\b|slurm-\d{1,12}_\d|--(?:seed|fold)[= ]",
    re.IGNORECASE,
)
_GOES_ON = re.compile(  # a process trains, fails, or is started again
    r"Traceback|\w(?:Error|Exception)\b|\bloss\b\W{1,4}\d|\d%\||restart|\battempt\b|\b(?:step|iter(?:ation)?)\W{1,4}\d",
    re.IGNORECASE,
)
_HEADING = re.compile(
    r"\s{0,4}(?:==> (?P<file>\S{1,200}) <==|[=\-#*~+>]{2,} {0,3}(?P<title>\w[^\n]{0,80}?) {0,3}[=\-#*~+<:]{0,80}"
    r"|(?P<who>(?:(?:on|from) )?(?:task|node|host|rank|gpu|pod|proc(?:ess)?|worker|container)"
    r"[ _#-]{0,2}\w[\w.-]{0,60}):)\s*"
)
_LABEL = re.compile(
    r"\s{0,4}(?:\[?(?P<host>[A-Za-z][\w.-]{1,80})\]?(?:: | {1,8}\| |> )|(?P<file>[\w./-]{1,200}\.(?:log|out|err|txt)):"
    r"|\((?:\w{1,60} )?pid=(?P<pid>\d{1,9})|\[?(?P<task>\d{1,5})\]?(?:: ?|\| |> ))"
)


def may_be_alone(text: str) -> bool:
    """False: no line of the text says that its process is the only one."""
    return _MAYBE_ALONE.search(text.lower()) is not None


def alone(text: str) -> str | None:
    """The name of the statement by which a line says that its process is the only one; None: it does not."""
    found = _ALONE.search(text, 0, MAX_LINE)
    if found is None or _OF_A_PART.search(text[max(found.start() - 40, 0) : found.start()]):
        return None
    return found.lastgroup


@dataclass(slots=True)
class AloneLines:
    """Counts them, line by line."""

    processes: int = 0  # the most that started together
    tasks: int = 0  # that a launcher starts; 0: none is shown
    text: str = ""
    line: int = 0
    _runs: dict[str, tuple[int, int, str]] = field(default_factory=dict)  # statement -> how often, last line, its text
    _writers: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # statement -> by whom
    _heading: str = ""
    _sweep: bool = False

    def feed(self, text: str, number: int) -> bool:
        """True if the line says that its process is alone."""
        text = text[:MAX_LINE]
        if launched := _TASKS.search(text):
            per_node = "per-node" in launched[0]
            nodes = _NODES.search(text) if per_node else None
            self.tasks = max(self.tasks, int(launched[1]) * (int(nodes[1]) if nodes else 1)) % MAX_TASKS
        self._sweep = self._sweep or _SWEEP.search(text) is not None
        if (statement := alone(text)) is None:
            if heading := _heading_of(text):
                self._heading = heading
            elif _GOES_ON.search(text):
                self._runs.clear()
            return False
        count, before, said = self._runs.get(statement, (0, 0, ""))
        near = number - before <= (MAX_BLOCK if said == text else MAX_GAP)
        count = count + 1 if count and near else 1
        self._runs[statement] = count, number, text
        writers = self._writers[statement]
        if len(writers) < MAX_WRITERS and (writer := _label_of(text) or self._heading):
            writers.add(writer)
        if max(count, len(writers)) > self.processes:
            self.processes, self.text, self.line = max(count, len(writers)), text, number
        return True

    @property
    def proved(self) -> bool:
        """True if as many started as the launcher shows, or several if there is none."""
        if self._sweep:
            return False
        if self.tasks:
            return 1 < self.processes == self.tasks or LEAST <= self.processes < self.tasks
        writers = max((len(several) for several in self._writers.values()), default=0)
        return self.processes >= LEAST or writers >= LEAST_WRITERS


def _heading_of(text: str) -> str | None:
    """Whose lines follow."""
    if len(text) > 200:
        return None
    if prompt := prompt_of(text):
        return prompt.host
    found = _HEADING.fullmatch(text)
    return next(filter(None, found.groups()), None) if found else None


def _label_of(text: str) -> str | None:
    """Who wrote a line, by the label in front of it."""
    found = _LABEL.match(text)
    if found is None or (found["host"] and not is_host_name(found["host"])):
        return None
    return next(filter(None, found.groups()), None)
