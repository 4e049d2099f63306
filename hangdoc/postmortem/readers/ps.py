"""Tables of `ps` (aux, -ef, -eo ..., -eLf) and of `top -b`: state, wait channel and memory of ranks and their helpers.

Columns and states: procps-ng (ps(1), STANDARD FORMAT SPECIFIERS and PROCESS STATE CODES; src/ps/output.c; top(1)).
A rank is a Python process below a launcher, or one whose command line or environment (`ps e`) names its rank, or its
number on its host; in a table without parents, a Python process of a script. What a rank started belongs to it, and
other processes are ignored.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hangdoc.evidence import ChildProcess, End, Environ, Process, ThreadCpu
from hangdoc.evidence.limits import parse_count
from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._host_names import NAME, is_host_name, prompt_of
from hangdoc.postmortem.readers._pasted_text import OwnerHints, parse_channels, text_lines
from hangdoc.postmortem.readers._placement.placement import Placement
from hangdoc.postmortem.readers._text_source import placement_in, text_source
from hangdoc.redaction.text import redact_text

_COLUMNS = (
    "USER RUSER UID PID PPID PGID SID LWP TID NLWP SPID C CP PR PRI NI %CPU %MEM VSZ VIRT RSS RES SHR SZ TTY TT STAT S"
    " START STIME TIME TIME+ ELAPSED WCHAN COMMAND CMD F ADDR PSR CLS P ARGS"
)
_NAMES = frozenset(_COLUMNS.split())
OPENING = re.compile(
    r"(?<![\w%+])[ \t]{0,40}(?:(?:F S|F|S|R?USER|UID|PPID|STAT|NI)[ \t]{1,40}){0,4}PID[ \t]{1,40}[A-Z%+ \t]{0,160}"
    r"\b(?:COMMAND|CMD|ARGS|STAT|S|WCHAN)\b"
)
# The columns of a table whose header `grep` took away, by the names of `ps -o`.
_BY_OPTION = {
    "pid": "PID", "ppid": "PPID", "stat": "STAT", "state": "STAT", "s": "STAT", "wchan": "WCHAN", "etime": "ELAPSED",
    "etimes": "ELAPSED", "comm": "COMMAND", "args": "COMMAND", "cmd": "COMMAND", "command": "COMMAND", "pcpu": "%CPU",
    "%cpu": "%CPU", "c": "C", "pmem": "%MEM", "%mem": "%MEM", "rss": "RSS", "vsz": "VSZ", "user": "USER", "uid": "UID",
    "lwp": "LWP", "tid": "TID", "spid": "SPID", "ni": "NI", "nice": "NI", "psr": "PSR", "time": "TIME", "tty": "TTY",
    "nlwp": "NLWP", "start": "START", "stime": "STIME", "pri": "PRI",
}  # fmt: skip
# The columns of common options (procps-ng, src/ps/sortformat.c), by their letters in order.
_STANDARD = {
    "aux": "USER PID %CPU %MEM VSZ RSS TTY STAT START TIME COMMAND",
    "ax": "PID TTY STAT TIME COMMAND",
    "ef": "UID PID PPID C STIME TTY TIME CMD",
    "efl": "F S UID PID PPID C PRI NI ADDR SZ WCHAN STIME TTY TIME CMD",
    "Lef": "UID PID PPID LWP C NLWP STIME TTY TIME CMD",
}
_STANDARD_ASKED = re.compile(r"\bps\s(?P<options>-?[A-Za-z]{2,6})\b(?=[^|;&\n]{0,80}\|)")
_TTY = re.compile(r"\?|-|pts/\d{1,5}|tty\w{1,8}|console")
_ASKED = re.compile(r"\bps\s(?P<options>(?:-?\w{1,6}\s){0,3}?-?\w{0,4})o[ =]?(?P<columns>[\w%,:=]{3,200})")
_FILTERED = re.compile(r"\|\s?(?:grep|egrep|awk|rg|sed|tail)\b|--no-headers|\bh\b")
_ENVIRON = re.compile(r"/proc/(?:(\d{1,9})|\$\{?\w{1,20}\}?)/environ\b.*\bRANK")
_LOOP = re.compile(r"\bfor \w{1,20} in ((?:\d{1,9} ){0,64}\d{1,9});")
_OWN_RANK = re.compile(  # alone, or among other variables
    r"\s{0,8}(?:export )?(?:[A-Z_]{1,40}=\S{0,80}\s{1,4}){0,8}RANK=(\d{1,6})"
    r"(?:\s{1,4}[A-Z_]{1,40}=\S{0,80}){0,8}\s{0,8}"
)
# The rank that a loop of the shell put beside the row of its process: `RANK=1 4711 Tl ...`, `4711 RANK=1 Tl ...`.
_BESIDE = re.compile(
    r"\s{0,8}(?P<pid>\d{1,9}\s{1,4})?\[?(?:RANK=|[Rr]ank[ =:#_-]{0,2})(?P<rank>\d{1,6})\]?[:,|]?\s{1,8}"
    r"(?:pid[ =:]{1,2})?(?=\d|[A-Za-z]{1,4}\s)"
)
# What a person writes behind the prompt of the next host: `n2$ (same command)`
_SAME_AGAIN = re.compile(r"\W{0,3}(?:the )?same(?: (?:command|loop|thing|again|here|there))?\W{0,3}", re.IGNORECASE)
_HOST_LABEL = re.compile(rf"\s{{0,4}}({NAME}): {{1,8}}(?=\d)")
_STATE = re.compile(r"[RSDTtZXI][<NLsl+]{0,5}")
_LAUNCHER = re.compile(
    r"torchrun|torch\.distributed\.(?:run|launch)|torch/distributed/(?:run|launch)\.py|(?<![\w.-])deepspeed(?= )"
    r"|deepspeed\.launcher"
    r"|accelerate(?:\.commands\.launch| launch|-launch)|\bmpi(?:run|exec)\b|\bprted?\b|\borted\b|slurmstepd|\bsrun\b"
    r"|hydra_pmi"
)
_PYTHON = re.compile(r"(?:^|[/\s])python[\d.]*(?:\s|$)|^pt_main|^ray::")
_SCRIPT = re.compile(r"\spython[\d.]*\s|(?:^|/)python[\d.]*\s+(?:-\w\s+)*(?:-m\s+[\w.]+|\S+\.py\b)|^ray::")
_HELPER = re.compile(
    r"multiprocessing\.(?:spawn|resource_tracker|forkserver|semaphore)|resource_tracker|pt_data_worker|compile_worker"
    r"|tensorboard|jupyter|ipykernel|py-spy|wandb-service|\bhangdoc\b"
)
_DEFUNCT = re.compile(r"\[?(?:python|pt_main)\S*\]? <defunct>")
_RANK = re.compile(
    r"(?:^|\s)(?:RANK|OMPI_COMM_WORLD_RANK|PMI_RANK|SLURM_PROCID)=(\d{1,7})(?=\s|$)"
    r"|\s--(?:global[_-])?rank[ =](\d{1,7})\b|(?<=[(\[])[Rr]ank[ =:_]?(\d{1,7})(?=[)\]])"
)
_LOCAL = re.compile(
    r"(?:^|\s)--?local[_-]?rank[= ](\d{1,4})(?=\s|$)|(?:^|\s)(?:OMPI_COMM_WORLD_)?LOCAL_RANK=(\d{1,4})(?=\s|$)"
    r"|(?:^|\s)(?:SLURM_LOCALID|MPI_LOCALRANKID)=(\d{1,4})(?=\s|$)"
)
_LAUNCHER_OPTION = re.compile(r"\s--?(?:nproc|nnodes|node)[_-]?")
_NODE = re.compile(r"--(?:node|machine)[_-]rank[= ](\d{1,4})\b")  # of a launcher: which node this is
_WORLD = re.compile(r"(?:^|\s)WORLD_SIZE=(\d{1,7})(?=\s|$)|\s--world[_-]size[ =](\d{1,7})\b")
# Kernel functions in which a task waits for a file system or its server (Linux fs/, net/sunrpc; Lustre, GPFS).
_STORAGE = re.compile(
    r"^(?:nfs\d?_|rpc_|__rpc|xprt_|fuse_|request_wait_answer|__fuse|ceph_|cl_sync|cl_lock|ll_|ldlm_|ptlrpc|osc_|lov_|mdc_"
    r"|lustre|gpfs|cxiWait|beegfs|cifs_|wait_for_response|smb2|p9_client|xfs_|ext4_|jbd2|io_schedule|folio_wait_bit"
    r"|wait_on_page_bit|wait_on_buffer)"
)
MAX_ROWS = 20_000
MAX_COMMAND = 300  # characters
MAX_ASKED = 1_000  # characters of a command line that are searched


@dataclass(frozen=True, slots=True)
class _Row:
    pid: int
    ppid: int | None
    tid: int | None
    state: str | None
    wchan: str | None
    rss_bytes: int | None
    cpu_s: float | None
    age_s: float | None
    nice: int | None
    command: str
    rank: int | None = None  # beside the row
    local: int | None = None  # its number on its host, in its command line or environment
    node: int | None = None  # the number of its host, as the text says


class PsReader:
    name = "ps or top output"
    order = 42
    marks = ("PID ", "ps -", "ps a")
    help = "`ps -eo pid,ppid,stat,wchan:32,etimes,args` on every host, while the job is stuck"

    def recognises(self, source: Source) -> bool:
        head = source.head_text
        return bool(OPENING.search(head) or _ASKED.search(head) or _STANDARD_ASKED.search(head))

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        yield from _ranks_of_pids(text_lines(source, context))
        placement = placement_in(text_source(source, context))
        for piece in parse_channels(text_lines(source, context), OPENING, _Parser):
            yield from _pieces(piece.process, piece.record, source.name, placement)


@dataclass(slots=True)
class _Parser:
    """Parses one channel (`_pasted_text.ChannelParser`)."""

    hints: OwnerHints
    pieces: list[Piece] = field(default_factory=list)
    _columns: list[str] = field(default_factory=list)
    _asked: list[str] = field(default_factory=list)  # by the last command
    _process: ProcessRef | None = None
    _rows: list[tuple[_Row, int]] = field(default_factory=list)
    _line: int = 0

    def feed(self, text: str) -> bool:
        self._line += 1
        if "PID" in text and "PID" in (words := text[:400].split()) and len(words) > 1 and _NAMES.issuperset(words):
            self.end()
            self._process, self._columns = self.hints.take(), words
            return True
        if (prompt := prompt_of(text)) and prompt.command:
            self.end()
            self._columns = self._asked if _SAME_AGAIN.fullmatch(prompt.command) else _asked_columns(prompt.command)
            self._asked = self._columns or self._asked
            return False
        if not self._columns:
            self._columns = _asked_columns(text) if "ps " in text[:MAX_ASKED] else []
            return False
        row = _labelled_row(self._columns, text)
        if row is None and (label := _HOST_LABEL.match(text)) and is_host_name(label[1]):  # of pdsh: `n22: 4711 D ...`
            row = _labelled_row(self._columns, text[label.end() :])
            if row is not None and (self._process is None or self._process.host != label[1]):
                self._next_host(ProcessRef(host=label[1]))
        if row is None and self.hints.looped_host(text):
            self._next_host(None)
            return False
        if row is None:
            self._columns = [] if text.strip() else self._columns
            return False
        if self._process is None:
            self._process = self.hints.take()
        if len(self._rows) < MAX_ROWS:
            self._rows.append((row, self._line))
        return True

    def _next_host(self, process: ProcessRef | None) -> None:
        """The same columns follow for another host."""
        columns = self._columns
        self.end()
        self._process, self._columns = process, columns

    def end(self) -> None:
        if self._rows and self._process is not None:
            launchers = [number for row, _ in self._rows if (number := _number(_NODE, row.command)) is not None]
            node = launchers[0] if len(set(launchers)) == 1 else None
            self._rows = [
                (replace(row, node=self.hints.node_of(row.local) if node is None else node), line)
                if row.local is not None
                else (row, line)
                for row, line in self._rows
            ]
            self.pieces.append(Piece(self._process, "cpu", tuple(self._rows)))
        self._rows, self._columns, self._process = [], [], None


def _asked_columns(command: str) -> list[str]:
    """The columns of a table without a header, from the command that printed it; empty: unknown."""
    asked = _ASKED.search(command[:MAX_ASKED])
    if not asked:
        return _standard_columns(command[:MAX_ASKED])
    names = asked["columns"].strip(",").split(",")
    headless = "h" in asked["options"] or all(name.endswith("=") for name in names)
    if not headless and not _FILTERED.search(command[asked.end() :]):
        return []
    columns = [_BY_OPTION.get(name.rstrip("=").partition(":")[0].lower(), "") for name in names]
    if not all(columns):
        return []
    return columns if "PID" in columns else ["PID", *columns]  # which a loop puts in front


def _standard_columns(command: str) -> list[str]:
    """The columns of `ps aux | grep`, `ps -ef | grep` and their like, whose header a filter may take away."""
    asked = _STANDARD_ASKED.search(command)
    if not asked or not _FILTERED.search(command[asked.end() :]):
        return []
    options = asked["options"]
    bsd = "x" in options  # `ps -aux` is read as `ps aux`; there, f draws a tree and e adds the environment
    letters = set(options.lstrip("-").replace("A", "e")) - set("wHfe" if bsd else "wH")
    return _STANDARD.get("".join(sorted(letters)), "").split()


def _ranks_of_pids(lines: Iterable[str]) -> Iterator[Piece]:
    """What commands print of RANK in `/proc/PID/environ`: the rank of each process."""
    pids: list[int] = []
    ranks: list[int] = []
    for text in lines:
        if "environ" in text[:400] and (found := _ENVIRON.search(text[:400])):
            yield from _pairs(pids, ranks)
            loop = _LOOP.search(text[:800])
            pids = [int(found[1])] if found[1] else [int(one) for one in loop[1].split()] if loop else []
            ranks = []
        elif pids and (own := _OWN_RANK.fullmatch(text)) and len(ranks) <= len(pids):
            ranks.append(int(own[1]))
    yield from _pairs(pids, ranks)


def _pairs(pids: list[int], ranks: list[int]) -> Iterator[Piece]:
    """Only if each process has a rank of its own."""
    if pids and len(pids) == len(ranks) == len(set(ranks)):
        for pid, rank in zip(pids, ranks, strict=True):
            yield Piece(ProcessRef(rank, None, pid), "environ", Environ({"RANK": str(rank)}))


def _labelled_row(columns: list[str], text: str) -> _Row | None:
    """A row, and the rank beside it."""
    if label := _BESIDE.match(text):
        rest = text[label.end() :]
        for cells in ((label["pid"] or "") + rest, rest):
            if (row := _row(columns, cells)) is not None:
                return replace(row, rank=int(label["rank"]))
    return _row(columns, text)


def _row(columns: list[str], text: str) -> _Row | None:
    """A row; None: it has fewer cells than the table has columns, or its cells do not fit them."""
    last = columns[-1] in ("COMMAND", "CMD", "ARGS")
    cells = text.split(None, len(columns) - 1) if last else text.split()
    if len(cells) < len(columns) or (not last and len(cells) > len(columns)):
        return None
    row = dict(zip(columns, cells, strict=False))
    pid, state = parse_count(row.get("PID", "")), row.get("STAT") or row.get("S")
    command = row.get("COMMAND") or row.get("CMD") or row.get("ARGS") or ""
    if pid is None or (state is not None and not _STATE.fullmatch(state)):
        return None
    if ("TTY" in row and not _TTY.fullmatch(row["TTY"])) or ("TIME" in row and _seconds(row["TIME"]) is None):
        return None
    if state is None and "<defunct>" in command:
        state = "Z"
    return _Row(
        pid=pid,
        ppid=parse_count(row.get("PPID", "")),
        tid=parse_count(row.get("LWP") or row.get("TID") or row.get("SPID") or ""),
        state=state[0] if state else None,
        wchan=row["WCHAN"] if row.get("WCHAN", "-") not in ("-", "0", "?") else None,
        rss_bytes=None if (kib := parse_count(row.get("RSS", ""))) is None else kib << 10,
        cpu_s=_seconds(row.get("TIME") or row.get("TIME+") or ""),
        age_s=_seconds(row.get("ELAPSED", "")),
        local=None if _LAUNCHER_OPTION.search(command[:MAX_ASKED]) else _number(_LOCAL, command),
        nice=int(row["NI"]) if re.fullmatch(r"-?\d{1,2}", row.get("NI", "")) else None,
        command=command,
    )


def _seconds(text: str) -> float | None:
    """`[DD-]HH:MM:SS`, `MM:SS`, `MM:SS.hh` of top, or seconds (etimes)."""
    if not (found := re.fullmatch(r"(?:(\d{1,5})-)?(?:(\d{1,4}):)?(?:(\d{1,6}):)?(\d{1,9}(?:\.\d{1,3})?)", text)):
        return None
    days, a, b, seconds = found.groups()
    hours, minutes = (a, b) if b is not None else (None, a)
    return int(days or 0) * 86400 + int(hours or 0) * 3600 + int(minutes or 0) * 60 + float(seconds)


def _pieces(
    process: ProcessRef, rows: tuple[tuple[_Row, int], ...], source: str, placement: Placement
) -> Iterator[Piece]:
    """A record for each rank with a state, the end of each defunct one, and what it waits for in the kernel."""
    by_pid: dict[int, _Row] = {}
    threads: dict[int, list[_Row]] = defaultdict(list)
    lines: dict[int, int] = {}
    for row, line in rows:
        if row.tid is None or row.tid == row.pid or row.pid not in by_pid:
            by_pid[row.pid] = row
            lines.setdefault(row.pid, line)
        if row.tid is not None:
            threads[row.pid].append(row)
    ranks = [row for row in by_pid.values() if row.rank is not None or _is_rank(row, by_pid)]
    children: dict[int, list[_Row]] = defaultdict(list)
    for row in by_pid.values():
        if row.ppid is not None:
            children[row.ppid].append(row)
    ranks, started = _by_local_rank(ranks)
    children.update(started)
    parents = _ranks_with_helpers(ranks, by_pid, process.host, placement)
    for pid, ref in parents.items():
        if event := _wait_of_helpers(pid, children[pid], source, lines):
            yield Piece(ref, "logs", Logs((event,)))
    for row in ranks:
        if row.state is None or row.ppid in parents:
            continue
        ref = _process_of(row, ranks, process.host, placement)
        size = _number(_WORLD, row.command)
        if row.state in "ZX":
            yield Piece(ref, "end", End(), None, size)
            text = f"ps: process {row.pid} is defunct: it has ended, and its launcher has not noticed"
            yield Piece(ref, "logs", Logs((LogEvent("defunct", text, source, lines[row.pid]),)), None, size)
            continue
        yield Piece(ref, "cpu", _process(row, threads[row.pid], children[row.pid]), None, size)
        event = _kernel_wait(row, threads[row.pid], source, lines[row.pid])
        if event is None and row.state == "S":
            event = _wait_of_helpers(row.pid, children[row.pid], source, lines)
        if event is not None:
            yield Piece(ref, "logs", Logs((event,)), None, size)


def _ranks_with_helpers(
    ranks: Iterable[_Row], by_pid: Mapping[int, _Row], host: str | None, placement: Placement
) -> dict[int, ProcessRef]:
    """By PID, the known ranks of which the table shows only what they started: `ps --ppid 4711`."""
    found: dict[int, ProcessRef] = {}
    for row in ranks:
        if row.ppid is not None and row.ppid not in by_pid:
            rank = placement.rank_of(ProcessRef(None, host, row.ppid))
            if rank is not None:
                found[row.ppid] = ProcessRef(rank, host, row.ppid)
    return found


def _by_local_rank(ranks: Sequence[_Row]) -> tuple[list[_Row], dict[int, list[_Row]]]:
    """The ranks, and by PID what each started, in a table without parents.

    A forked worker keeps the command line of its rank. All ranks are older than all of their workers.
    """
    groups: dict[int, list[_Row]] = defaultdict(list)
    for row in ranks:
        if row.local is not None and row.ppid is None and row.rank is None:
            groups[row.local].append(row)
    oldest = {local: min(rows, key=lambda row: row.pid) for local, rows in groups.items()}
    last = max((row.pid for row in oldest.values()), default=0)
    rest = {local: [row for row in rows if row is not oldest[local]] for local, rows in groups.items()}
    if len(oldest) < 2 or any(row.pid < last for rows in rest.values() for row in rows):
        return list(ranks), {}
    workers = {row.pid for rows in rest.values() for row in rows}
    return [row for row in ranks if row.pid not in workers], {oldest[n].pid: rows for n, rows in rest.items() if rows}


def _process_of(row: _Row, ranks: Sequence[_Row], host: str | None, placement: Placement) -> ProcessRef:
    """The process of a row: by its rank, or by its number on its host if no other rank has the same."""
    rank = row.rank if row.rank is not None else _number(_RANK, row.command)
    if rank is None and row.local is not None and sum(one.local == row.local for one in ranks) == 1:
        rank = placement.rank_of_local(host, row.node, row.local)
        if rank == row.local and row.node is None and not placement.places(host) and not placement.one_node:
            rank = None  # the job may have other nodes
    return ProcessRef(rank, host, row.pid)


def _is_rank(row: _Row, by_pid: Mapping[int, _Row]) -> bool:
    if _HELPER.search(row.command) or (row.local is None and _LAUNCHER.search(row.command)):
        return False
    parent = by_pid.get(row.ppid) if row.ppid is not None else None
    launched = parent is not None and bool(_LAUNCHER.search(parent.command))
    if row.state == "Z":
        return launched and bool(_DEFUNCT.search(row.command))
    if not _PYTHON.search(row.command):
        return False
    if parent is not None and not launched and _PYTHON.search(parent.command):
        return False  # a helper of a rank
    return launched or row.local is not None or bool(_RANK.search(row.command)) or bool(_SCRIPT.search(row.command))


def _process(row: _Row, threads: Iterable[_Row], children: Iterable[_Row]) -> Process:
    own = [one for one in threads if one.state]
    main = ThreadCpu(row.pid, _comm(row.command), row.state or "S", row.cpu_s or 0.0, wchan=row.wchan)
    more = (ThreadCpu(one.tid or 0, _comm(one.command), one.state or "S", one.cpu_s or 0.0, wchan=one.wchan)
            for one in own if one.tid not in (None, row.pid))  # fmt: skip
    helpers = tuple(
        ChildProcess(one.pid, _comm(one.command), _command(one.command), one.state or "S", one.cpu_s or 0.0, one.wchan,
                     one.age_s)
        for one in children if one.state
    )  # fmt: skip
    return Process(
        pid=row.pid,
        ppid=row.ppid or 0,
        uid=0,
        state=row.state or "S",
        command=_command(row.command),
        executable=None,
        cwd=None,
        age_s=row.age_s or 0.0,
        cpu_s=row.cpu_s or 0.0,
        rss_bytes=row.rss_bytes or 0,
        threads=(main, *more),
        nice=row.nice,
        children=helpers,
    )


def _kernel_wait(row: _Row, threads: Iterable[_Row], source: str, line: int) -> LogEvent | None:
    """State D. In a function of a file system, only its server or disk can end the wait."""
    waits = [one for one in (row, *threads) if one.state == "D"]
    storage = next((one for one in waits if one.wchan and _STORAGE.match(one.wchan)), None)
    if storage is not None:
        text = f"ps: process {row.pid} is in state D in {storage.wchan}, a wait for a file system"
        return LogEvent("kernel_wait", text, source, line, None, {"wchan": storage.wchan or "", "storage": "yes"})
    if waits and waits[0] is row:
        text = f"ps: process {row.pid} is in state D{f' in {row.wchan}' if row.wchan else ''}"
        return LogEvent("kernel_wait", text, source, line, None, {"wchan": row.wchan or ""})
    return None


def _wait_of_helpers(pid: int, children: Sequence[_Row], source: str, lines: Mapping[int, int]) -> LogEvent | None:
    """Most of what a sleeping rank started is in state D in a function of a file system."""
    waits = [one for one in children if one.state == "D" and one.wchan and _STORAGE.match(one.wchan)]
    if not waits or 2 * len(waits) < len(children):
        return None
    text = (
        f"ps: process {waits[0].pid}, which process {pid} started, is in state D in {waits[0].wchan}, a wait for a "
        f"file system{f'; so are {len(waits) - 1} more of its children' if len(waits) > 1 else ''}"
    )
    fields = {"wchan": waits[0].wchan or "", "storage": "yes", "helpers": str(len(waits))}
    return LogEvent("kernel_wait", text, source, lines[waits[0].pid], None, fields)


def _number(pattern: re.Pattern[str], command: str) -> int | None:
    found = pattern.search(command[:4000])
    return int(next(group for group in found.groups() if group)) if found else None


def _comm(command: str) -> str:
    return command.split(" ", 1)[0].rpartition("/")[2][:64]


def _command(command: str) -> tuple[str, ...]:
    return tuple(redact_text(command[: 4 * MAX_COMMAND])[:MAX_COMMAND].split())


READER = PsReader()
