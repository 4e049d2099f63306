"""Figures of CPUs in what tools print: the quota of a cgroup, affinities, load, cores, threads, instruction sets.

cpu.stat: Linux Documentation/admin-guide/cgroup-v2.rst; taskset(1), uptime(1), nproc(1), lscpu(1), ps(1), proc(5).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from hangdoc.evidence.figures import Figure
from hangdoc.postmortem.readers._owner_hints import OwnerHints

MAX_FIGURES = 4_096
MAX_LINE = 1_000  # characters
PERIODS, THROTTLED, ALLOWED, LOAD, CORES, THREADS, SETTING, NO_BF16, BF16 = (
    "cpu periods", "cpu throttled", "cpu allowed", "cpu load", "cpu cores", "cpu threads", "cpu setting", "cpu no bf16",
    "cpu uses bf16",
)  # fmt: skip
CPU_SET = "cpu set"  # the host and the CPUs that a process may use, as printed

_SHOWS = re.compile(
    r"nr_|_cfs_|affinit|cpu-bind|MPI startup|taskset|/task/|Cpus_allowed|bound to"
    r"|\bwc -l|[Ll]oad av|nproc|cores?\b|CPU|[Tt]hread|OMP|MKL|bf16|bfloat|^\s*\d|NLWP|nlwp"
)
_STAT = re.compile(r"\bnr_(periods|throttled)[\s:=]{1,4}(\d{1,18})\b")
_AFFINITY = re.compile(
    r"\bpid (\d{1,9})'s (?:current |new )?affinity (list|mask): ([0-9a-fA-F,-]{1,400})"
    r"|\bCpus_allowed_(?P<list>list):\s{0,8}(?P<cpus>[\d,-]{1,400})"
)
# The bindings that launchers print: `srun --cpu-bind=verbose` (slurm: task/affinity), Intel MPI with I_MPI_DEBUG=4.
_BOUND = re.compile(
    r"\bcpu-bind\S{0,20} - (?P<node>[A-Za-z][\w.-]{0,100}), task\s{1,6}(?P<task>\d{1,6})\s{1,6}\d{1,6} \[\d{1,9}\]:"
    r" mask 0x(?P<mask>[0-9a-fA-F]{1,256})\b"
    r"|\bMPI startup\(\): (?P<rank>\d{1,6})\s{1,12}\d{1,9}\s{1,12}(?P<host>[A-Za-z][\w.-]{0,100})\s{1,12}"
    r"\{(?P<pinned>[\d,-]{1,400})\}"
)
# `--report-bindings` of Open MPI: a map of sockets, cores and hardware threads (4), or a list of them (5, PRRTE).
_BINDING = re.compile(
    r"\[(?P<host>[A-Za-z][\w.-]{0,100}):\d{1,9}\] ?(?:MCW )?rank (?P<rank>\d{1,6}) bound to [^\n]{1,600}?: "
    r"(?P<map>(?:\[[B./]{1,1024}\]){1,16})"
    r"|\[(?P<node>[A-Za-z][\w.-]{0,100}):\d{1,9}\] ?(?:MCW )?rank (?P<task>\d{1,6}) bound to "
    r"(?P<list>(?:package\[\d{1,3}\]\[(?:hwt|core|cpu):[\d,-]{1,200}\][ ,]{0,2}){1,16})",
    re.IGNORECASE,
)
_LISTED_CPUS = re.compile(r":([\d,-]{1,200})\]")
# Rows that a loop over processes prints: `118842 RANK=2 0`, `rank 2 pid 118842 cpus 0-15`.
_ASKS_AFFINITY = re.compile(r"\btaskset\s{1,4}-\w{0,4}p|Cpus_allowed_list|sched_getaffinity|cpu_affinity")
_ASKS_RANK = re.compile(r"\^RANK=|\[\"']?RANK\b|\bRANK=|\$\{?RANK\b")
_ROW = re.compile(
    r"(?:(?:pid[ =:]?)?\d{1,9}[ :\t]{1,4})?(?P<local>LOCAL_)?RANK[ =:]{1,3}(?P<rank>\d{1,6})[ :\t,]{1,4}"
    r"(?:(?:pid[ =:]?)?\d{1,9}[ :\t]{1,4}(?=\S+$))?(?:(?:cpus?|cores?|affinity)[ =:]{1,3})?"
    r"(?P<cpus>\d{1,4}(?:[,-]\d{1,4}){0,64})",
    re.IGNORECASE,
)
_OF_THREADS = re.compile(r"\btaskset\s{1,4}-\w{0,4}a|\btaskset\b.{0,40}--all-tasks|/proc/\S{1,20}/task/")
_LOAD = re.compile(
    r"\bload av(?:erage|g)s?(?: (?!last|past)[a-z]{1,12}){0,6}[ :=~]{1,4}"
    r"(\d{1,6}(?:\.\d{1,2})?)(?!\w|\.\d| ?(?:%|min|m\b))",
    re.IGNORECASE,
)
_NPROC = re.compile(r"(?:^|[$#;&|] ?)nproc\b")
_NPROC_IS = re.compile(
    r"\bnproc ?[:=] ?(\d{1,5})\b|^\s{0,4}CPU\(s\):\s{1,40}(\d{1,5})\b"
    r"|\b(?:cpu_count|cpus?)\(\) ?(?:=|->|:) ?(\d{1,5})\b"
    r"|\((?:[^()\n]{1,40}, )?(\d{1,4}) (?:cpu |logical |physical |CPU )?(?:cores|cpus|CPUs)(?:, [^()\n]{1,40})?\)"
    r"|\b\d{1,4} (?:physical )?cores ?(?:/|,|with) ?(\d{1,4}) (?:hardware |hyper|logical )?(?:threads|CPUs)\b"
    r"|\b(\d{1,4}) (?:hw|hardware|logical) (?:threads|cores|cpus|CPUs)\b"
    r"|\b(\d{1,4})[ -]cores? (?:box|node|machine|host|server|workstation)s?\b"
    r"|\b(?:node|host|machine|server|box)s? (?:each )?(?:has|have|with) (\d{1,4}) cores\b(?! ?/)"
    r"|\bthreads\b.{1,40}\bcpus[ =:]{1,2}(\d{1,4})\b"
)
_SOCKETS = re.compile(  # `2 x 20 cores, HT on`, `2x28 cores + HT`
    r"(?<![\w.])(\d{1,2}) ?(?:x|\u00d7) ?(\d{1,3})[ -]cores?\b"
    r"(?P<twice>,? (?:with |\+ )?(?:HT|SMT|hyper-?threading)\b(?! (?:is )?(?:off|disabled)))?",
    re.IGNORECASE,
)
_THREADS = re.compile(r"^\s{0,12}(?:/proc/\d{1,9}/status:)?(?:(\d{1,5}) )?Threads:\s{1,8}(\d{1,6})$")
_OMP = re.compile(r"\b(?:OMP_NUM_THREADS|MKL_NUM_THREADS) ?[=:] ?(\d{1,5})\b(?! in default)|\b(\d{1,5}) OMP threads\b")
_COMPUTING = re.compile(  # how many threads torch computes with, as scripts print it
    r"\b(?:torch\.)?get_num_threads\(\)[`'\"]{0,2}(?: (?:is|says|gives|returns|shows|prints|reports|was))?[ =:>-]{1,4}"
    r"(\d{1,4})\b(?!\.\d)"
    r"|\bthreads[ =:]{1,2}(\d{1,4})[ ,]{1,2}(?:inter[ _-]?op[ =:]{1,2})?\d{1,4}\b(?!\.\d)"
    r"|\bintra[ _-]?op(?:[ _-](?:num[ _-])?threads)?[ =:]{1,2}(\d{1,4})\b(?!\.\d)",
    re.IGNORECASE,
)
# Commands that print one number: a setting of the shell, the threads of a process.
_ASKS_SETTING = re.compile(r"\b(?:echo \"?\$\{?|printenv )(?:OMP|MKL)_NUM_THREADS\}?\"?\s*$")
_COUNTS_THREADS = re.compile(
    r"\bps (?:-\w{1,6} (?:[\w,%=:]{1,60} )?){0,3}?-\w{0,3}(?:[LT]\w{0,3} (?:-\w{1,4} (?:[\w,%=:]{1,60} )?){0,2}?-?p"
    r"|Lp|Tp) ?(?P<pid>\d{1,9})(?P<bare> (?:--no-headers?|h))?"
    r"\s?\| ?wc -l\s*$|\bls /proc/(?P<listed>\d{1,9})/task/?\s?\| ?wc -l\s*$"
)
_PS = re.compile(r"\bps\b.{0,40}?-(?:o|eo|Ao|axo|o) ?([\w%,:]{3,200})")
_LISTS_BF16 = re.compile(r"grep\b.{0,80}(?:avx512_bf16|amx_bf16)")
_BF16 = re.compile(r"\b(?:bf16|bfloat16)\b", re.IGNORECASE)
# Metrics of cAdvisor (docs/storage/prometheus.md): the counters of the quota of a container, by its pod.
_METRIC = re.compile(
    r"container_cpu_cfs_(?P<what>periods|throttled_periods)_total\{(?P<labels>[^{}\n]{1,900})\}"
    r"\s{1,4}(?P<value>\d{1,18}(?:\.\d{1,9})?(?:e\+?\d{1,2})?)"
)
_POD_LABEL = re.compile(r'\b(?:pod|pod_name)="([^"\n]{1,120})"')
_SERVER = re.compile(r"^\W{0,4}([a-z][\w.-]{0,60}?-?\d{1,4}|[a-z][\w.-]{1,60}): {0,8}nr_")


@dataclass(slots=True)
class CpuTexts:
    """Takes the lines of a text in order."""

    found: list[Figure] = field(default_factory=list)
    _hints: OwnerHints = field(default_factory=OwnerHints)
    _stat: dict[str, int] = field(default_factory=dict)
    _owner: tuple[str, str] = ("", "")
    _above: str | None = None
    _asked: str = ""  # the command before: nproc, bf16, setting, threads
    _counted: tuple[str, int] = ("", 0)  # the process whose threads a command counts, and the rows that are none
    _rows: str = ""  # the command before prints a row for each process, with its affinity
    _columns: list[str] = field(default_factory=list)  # of ps
    _threads: bool = False  # the text lists threads, and not processes
    _pods: dict[str, dict[str, float]] = field(default_factory=dict)  # of metrics

    def feed(self, text: str, rank: int | None, host: str | None, above: str | None, number: int) -> None:
        """`host` is that of the line itself; `above`, that of the prompt or heading above it."""
        if above != self._above:
            self._above = above
            self._owner, self._stat, self._columns = ("host", above) if above else ("", ""), {}, []
        if len(text) > MAX_LINE or len(self.found) >= MAX_FIGURES:
            return
        if self._rows and (row := _ROW.fullmatch(text.strip())):
            if not row["local"] or _ASKS_RANK.search(self._rows.replace("LOCAL_RANK", "")):
                for kind, (of, name), value in _allowed(("rank", row["rank"]), above or "", row["cpus"], False):
                    self.found.append(Figure(kind, kind, of, name, value, kind == CPU_SET, False, None, number))
            return
        self._rows = text if _ASKS_AFFINITY.search(text) and "RANK" in text else ""
        if not _SHOWS.search(text) and not self._asked:
            self._observe(text)
            return
        for kind, owner, value in self._figures(text, rank, host):
            of, name = owner
            self.found.append(
                Figure(kind, kind, of, name, value, kind in (NO_BF16, BF16, CPU_SET), False, None, number)
            )

    def _observe(self, text: str) -> None:
        self._hints.updated = False
        self._hints.observe(text)
        if self._hints.updated:
            hints = self._hints
            named = ("rank", str(hints.rank)) if hints.rank is not None else ("host", hints.host or self._above or "")
            self._owner, self._stat = named if named[1] else ("", ""), {}

    def _figures(self, text: str, rank: int | None, host: str | None) -> Iterator[tuple[str, tuple[str, str], str]]:
        own = ("rank", str(rank)) if rank is not None else ("host", host) if host else self._owner
        if metric := _METRIC.search(text):
            yield from self._metric(metric)
            return
        if stats := _STAT.findall(text):
            yield from self._throttled(text, stats, own)
            return
        if bound := _BOUND.search(text):
            ranked = ("rank", bound["task"] or bound["rank"])
            yield from _allowed(
                ranked, bound["node"] or bound["host"], bound["mask"] or bound["pinned"], bool(bound["mask"])
            )
            return
        if binding := _BINDING.search(text):
            yield from _reported(binding)
            return
        self._threads = self._threads or _OF_THREADS.search(text) is not None
        if found := _AFFINITY.search(text):
            node = own[1] if own[0] == "host" else ""
            process = ("process", f"{node}/{found[1]}" if node else found[1] or "")
            owner = own if own[0] == "rank" else process if found[1] else own
            if not self._threads or owner[0] == "rank":
                yield from _allowed(owner, node if found[1] else None, found[3] or found["cpus"], found[2] == "mask")
            return
        if load := _LOAD.search(text):
            yield LOAD, own, load[1]
        if cores := _NPROC_IS.search(text):
            yield CORES, own, next(group for group in cores.groups() if group)
        elif sockets := _SOCKETS.search(text):
            yield CORES, own, str(int(sockets[1]) * int(sockets[2]) * (2 if sockets["twice"] else 1))
        if threads := _THREADS.match(text):
            yield THREADS, own, str(int(threads[1] or 1) * int(threads[2]))
        for setting in (*_OMP.finditer(text), *_COMPUTING.finditer(text)):
            yield SETTING, own, next(group for group in setting.groups() if group)
        yield from self._answers(text, own)
        self._observe(text)

    def _answers(self, text: str, own: tuple[str, str]) -> Iterator[tuple[str, tuple[str, str], str]]:
        """What the command on a line before prints."""
        if listed := _PS.search(text):
            self._columns = [one.split(":")[0].lower() for one in listed[1].split(",")]
            self._asked = ""
            return
        if _LISTS_BF16.search(text):
            self._asked = "bf16"
            return
        if _NPROC.search(text):
            self._asked = "nproc"
            return
        if _ASKS_SETTING.search(text):
            self._asked = "setting"
            return
        if counts := _COUNTS_THREADS.search(text):
            self._asked = "threads"
            self._counted = counts["pid"] or counts["listed"], 0 if counts["listed"] or counts["bare"] else 1
            return
        cells = text.split()
        if self._asked in ("setting", "threads") and len(cells) == 1 and re.fullmatch(r"\d{1,5}", cells[0]):
            pid, headers = self._counted
            if self._asked == "setting":
                yield SETTING, ("", ""), cells[0]  # of the shell, and of what it starts
            else:
                yield THREADS, ("process", pid), str(int(cells[0]) - headers)
        elif self._asked == "nproc" and cells and re.fullmatch(r"\d{1,5}", cells[0]):
            yield CORES, own, cells[0]
        elif self._asked == "bf16":
            if "bf16" not in text:
                yield NO_BF16, own, "no"
        elif self._columns and "nlwp" in self._columns and "python" in text and len(cells) >= len(self._columns):
            value = cells[self._columns.index("nlwp")]
            if re.fullmatch(r"\d{1,6}", value):
                yield THREADS, own, value
        elif _BF16.search(text):
            yield BF16, own, "yes"
        self._asked = ""

    def _metric(self, metric: re.Match[str]) -> Iterator[tuple[str, tuple[str, str], str]]:
        """The counters of a pod, of which both are needed."""
        pod = _POD_LABEL.search(metric["labels"])
        if pod is None or len(self._pods) > MAX_FIGURES:
            return
        counted = self._pods.setdefault(pod[1], {})
        counted[metric["what"]] = max(float(metric["value"]), counted.get(metric["what"], 0.0))
        if len(counted) == 2 and counted["periods"]:
            yield PERIODS, ("host", pod[1]), f"{counted['periods']:.0f}"
            yield THROTTLED, ("host", pod[1]), f"{min(counted['throttled_periods'] / counted['periods'], 1.0):.4f}"

    def _throttled(
        self, text: str, stats: list[tuple[str, str]], own: tuple[str, str]
    ) -> Iterator[tuple[str, tuple[str, str], str]]:
        if server := _SERVER.match(text):
            own = ("host", server[1])
        self._stat |= {name: int(value) for name, value in stats}
        if len(self._stat) == 2:
            if self._stat["periods"]:
                yield PERIODS, own, str(self._stat["periods"])
                yield THROTTLED, own, f"{min(self._stat['throttled'] / self._stat['periods'], 1.0):.4f}"
            self._stat = {}


def _allowed(
    owner: tuple[str, str], host: str | None, cpus: str, mask: bool
) -> Iterator[tuple[str, tuple[str, str], str]]:
    """The number of CPUs that an owner may use, and which ones. `host` None: the owner may be no process."""
    yield ALLOWED, owner, str(_cpus(cpus, mask))
    if host is not None:
        yield CPU_SET, owner, f"{host[:100]} {cpus[:200].lstrip('0,') if mask else cpus[:200]}"


def _reported(binding: re.Match[str]) -> Iterator[tuple[str, tuple[str, str], str]]:
    """The CPUs of a rank in a report of Open MPI: `B` stands for a hardware thread that it may use."""
    owner = ("rank", str(int(binding["rank"] or binding["task"])))
    if binding["map"]:
        cpus, names = binding["map"].count("B"), binding["map"][:200]
    else:
        cpus, names = sum(_cpus(one[1], False) for one in _LISTED_CPUS.finditer(binding["list"])), binding["list"][:200]
    yield ALLOWED, owner, str(cpus)
    yield CPU_SET, owner, f"{(binding['host'] or binding['node'])[:100]} {names.strip()}"


def _cpus(text: str, mask: bool) -> int:
    """The number of CPUs in a list (`0-3,8`) or a mask (`ff`)."""
    if mask:
        return int(text.replace(",", "").replace("-", "") or "0", 16).bit_count()
    count = 0
    for part in text.split(",")[:64]:
        first, _, last = part.partition("-")
        if first.isdecimal() and len(first) < 6 and (not last or (last.isdecimal() and len(last) < 6)):
            count += max(int(last or first) - int(first) + 1, 0)
    return count
