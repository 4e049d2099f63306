"""Lists of hosts that a launcher fills with ranks one host after the other.

`mpirun -H a:4,b:4` (Open MPI, `horovodrun`), `mpiexec -ppn 2 -hosts a,b` (MPICH and Intel MPI), a Slurm
node list with `--ntasks-per-node` (Slurm gives the tasks to the nodes in blocks unless told otherwise).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hangdoc.postmortem.readers._host_names import NAME, hosts_in_set
from hangdoc.postmortem.readers._placement.tokens import may_be_host

MAX_LINE = 2_000  # characters
MAX_HOSTS = 4096
MAX_LISTS = 16
MAX_PER_HOST = 1024

_LAUNCHER = re.compile(r"\b(?:mpirun|mpiexec(?:\.hydra)?|orterun|prterun|horovodrun)\b", re.IGNORECASE)
_TEST = re.compile(
    r"_perf\b|\bosu_|\bib_(?:write|read|send)_|\bIMB-|\bhostname\b"
)  # its ranks are not those of the job
_SLOTTED = re.compile(
    rf"(?:^|(?<=\s))(?:-H|--?hosts?)[ =][\"']?(?P<hosts>{NAME}:\d{{1,4}}(?:,{NAME}:\d{{1,4}}){{1,63}})(?=[\"'\s]|$)"
)
_LISTED = re.compile(rf"(?:^|(?<=\s))(?:-H|--?hosts?)[ =][\"']?(?P<hosts>{NAME}(?:,{NAME}){{1,63}})(?=[\"'\s]|$)")
_PER_HOST = re.compile(r"(?:^|(?<=\s))-(?:ppn|perhost|-ppn|npernode|-npernode|N)[ =](\d{1,4})(?=\s|$)")
_COUNT = re.compile(r"(?:^|(?<=\s))-{1,2}(?:np|n|num-proc)[ =](\d{1,6})(?=\s|$)")
_NODES = re.compile(
    r"(?<![\w-])(?:SLURM_(?:JOB_|STEP_)?NODELIST[\"']?[=:] ?|NodeList=|--nodelist[= ]|#SBATCH -w ?)[\"']?"
    r"(?P<set>[A-Za-z][\w.-]{0,100}(?:\[[\d,-]{1,200}\])?(?:,[A-Za-z][\w.-]{0,100}(?:\[[\d,-]{1,200}\])?){0,31})"
    r"(?=[\"'\s]|$)"
)
_TASKS = re.compile(r"(?:--ntasks-per-node[= ]|SLURM_(?:N)?TASKS_PER_NODE=)(\d{1,4})(?:\(x\d{1,4}\))?(?![\w(])")
_OTHER_ORDER = re.compile(r"--distribution|\b(?:cyclic|arbitrary|plane)\b|#SBATCH -m |srun .{0,80} -m ", re.IGNORECASE)

Hosts = tuple[tuple[str, int], ...]  # and how many ranks each has


@dataclass(slots=True)
class HostLists:
    """Takes the lines of a text in order."""

    _lists: dict[Hosts, None] = field(default_factory=dict)
    _nodes: set[tuple[str, ...]] = field(default_factory=set)  # of Slurm
    _tasks: set[int] = field(default_factory=set)  # on each of them
    _by_launcher: bool = False
    _other: bool = False

    def feed(self, text: str) -> None:
        if len(text) > MAX_LINE:
            return
        self._by_launcher = self._by_launcher or _LAUNCHER.search(text) is not None
        self._other = self._other or _OTHER_ORDER.search(text) is not None
        if not _TEST.search(text) and len(self._lists) < MAX_LISTS and (hosts := _listed(text)):
            self._lists[hosts] = None
        if len(self._nodes) < MAX_LISTS:
            self._nodes.update(filter(None, (hosts_in_set(one["set"], MAX_HOSTS) for one in _NODES.finditer(text))))
        if len(self._tasks) < MAX_LISTS:
            self._tasks.update(int(one[1]) for one in _TASKS.finditer(text))

    @property
    def found(self) -> Iterator[Hosts]:
        """The hosts in the order of their ranks; nothing if the text has lists that contradict each other."""
        if self._by_launcher and not self._other:
            longest = max(self._lists, key=len, default=())
            if all(longest[: len(one)] == one for one in self._lists):
                yield longest
        if len(self._nodes) == len(self._tasks) == 1 and not self._other:
            (nodes,), (tasks,) = self._nodes, self._tasks
            if 1 < tasks <= MAX_PER_HOST and len(nodes) > 1:
                yield tuple((host, tasks) for host in nodes)


def _listed(text: str) -> Hosts:
    """The hosts of a command line that starts as many ranks as they have slots."""
    total = _COUNT.search(text)
    slots: Sequence[tuple[str, int]] = ()
    if slotted := _SLOTTED.search(text):
        pairs = (one.rpartition(":") for one in slotted["hosts"].split(","))
        slots = [(host, int(count)) for host, _, count in pairs]
    elif (named := _LISTED.search(text)) and (size := _PER_HOST.search(text)):
        slots = [(host, int(size[1])) for host in named["hosts"].split(",")]
    known = {host.lower() for host, _ in slots}
    fits = all(may_be_host(host) and 0 < count <= MAX_PER_HOST for host, count in slots)
    if not fits or len(known) != len(slots) or (total and int(total[1]) != sum(count for _, count in slots)):
        return ()
    return tuple(slots)
