"""Results of bandwidth tests: nccl-tests and rccl-tests, perftest, OSU Micro-Benchmarks, and lists of pairs of hosts.

Forms: NVIDIA/nccl-tests src/common.cu and src/util.cu (2.0 to 2.17), linux-rdma/perftest src/perftest_parameters.c
(`ib_write_bw`), OSU Micro-Benchmarks 5 to 7. The hosts of a run are those of its devices, else of its command, else of
the prompt or heading above it. A row counts as one of nccl-tests only if its rate fits its size and time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._host_names import NAME, is_host_name, prompt_of
from hangdoc.postmortem.readers._pasted_text import text_lines
from hangdoc.postmortem.readers._text_source import TextSource, text_source

MAX_RUNS = 2_000
MAX_ROWS = 64  # of one run
MAX_HOSTS = 1_024  # of one run
MAX_LINE = 1_000  # characters
MAX_CELLS = 64
MAX_HEADING_LINES = 12  # between the words that announce a list of rates and its last row, without rows
AVERAGE = "average"

_COLLECTIVES = (
    "all_reduce|all_gather|reduce_scatter|alltoall|alltoallv|broadcast|reduce|gather|scatter|sendrecv|hypercube"
)
_TEST = re.compile(
    rf"\b((?:{_COLLECTIVES})_perf|ib_(?:write|read|send)_bw|raw_ethernet_bw|osu_(?:bi)?bw|osu_mbw_mr"
    r"|osu_(?:allreduce|allgather|alltoall|bcast|reduce))\b"
)
_TITLES = (
    (re.compile(r"#\s{0,4}nThread \d|#\s{0,4}Collective test starting: (\w{3,40})|# nccl-tests version"), ""),
    (re.compile(r"\b(?:RDMA_)?(Write|Read|Send)(?: Bidirectional)? BW Test\b"), "ib_{}_bw"),
    (re.compile(r"# OSU MPI(?:-\w{1,10})? (Bi-Directional Bandwidth|Bandwidth|Multiple Bandwidth)"), "osu {}"),
)
_DEVICE_LINE = re.compile(
    rf"#\s{{1,8}}Rank\s{{1,8}}(\d{{1,6}})(?:\s{{1,8}}Group\s{{1,8}}\d{{1,6}})?\s{{1,8}}Pid\s{{1,8}}\d{{1,9}} on"
    rf"\s{{1,40}}({NAME})\s{{1,8}}device"
)
_AVERAGE = re.compile(r"(?:#\s?)?\bAvg bus bandwidth\s{0,20}: {0,4}(\d{1,6}(?:\.\d{1,9})?)\b")
_CHECKED = re.compile(r"#\s?Out of bounds values\s{0,20}: {0,4}(\d{1,12}) (OK|FAILED)\b")
_IB_HEAD = re.compile(r"#bytes\s{1,20}#iterations\s.{0,60}BW average ?\[(Gb|MB|MiB|Mb|GB)/sec\]")
_IB_DEVICE = re.compile(r"\bDevice\s{1,12}: {0,4}([\w.-]{1,40})\s*$")
_IB_OPTION = re.compile(r"\s(?:-d|--ib-dev)[ =]([\w.-]{1,40})")
_OSU_HEAD = re.compile(r"#\s{0,4}Size\s{1,40}(?:Bandwidth|MB/s)\s?(?:\(?(MB|GB)/s\)?)?")
_HOSTS_OPTION = re.compile(
    r"\s(?:-H|--?hosts?|-w|--nodelist|--host-list|-machinefile)[ =]((?:[A-Za-z0-9][\w.:*-]{0,80},?){1,64})"
)
_IB_SERVER = re.compile(rf"\bib_(?:write|read|send)_bw\b.{{0,200}}?\s({NAME})\s*(?:[|>&;#].*)?$")
_PREFIX = re.compile(rf"\s{{0,4}}({NAME}): {{0,8}}(?=[\s#\d])")
_HEADING = re.compile(
    rf"\W{{0,8}}(?:(?:on|host|node|server|machine|nodes|pair)[ :]{{1,3}})?"
    rf"({NAME}(?: ?(?:,|&|\+|<->|and|vs\.?) ?{NAME})?)"
    r"(?: \([^()\n]{1,40}\))?\s?(?::|=+|-+|\W*)\s*"
)
# In front of a summary: `n05,n06`, `[n05 n06]`, `logs/n05_n06.log:`, `n05 <-> n06:`.
_IN_FRONT = re.compile(r"[,\s/&+|:()\[\]'\"=]+|<[-=]{1,2}>|[-=]{1,2}>|_|\.(?:log|txt|out|err)\b")
_DASHED = re.compile(r"(?:^|-)([A-Za-z][A-Za-z.-]{0,60}?)(\d{1,6})-(\1\d{1,6})$")
MAX_IN_FRONT = 4  # hosts
_LABEL = r"(?P<label>(?i:(?:(?:avg|average|mean|bus|busbw|algbw|bandwidth|bw)\.?[\s:=]{1,4}){1,4}))?"
_NUMBER = r"\d{1,9}(?:\.\d{1,9})?"
_RATE_UNIT = r"GB/s(?:ec)?|GiB/s|GBps|Gb/s(?:ec)?|Gbps|Gbit/s|MB/s(?:ec)?|MiB/s"
_RATE = rf"(?P<value>{_NUMBER}) ?(?P<unit>{_RATE_UNIT})?"
_PAIR = re.compile(
    rf"\W{{0,8}}({NAME}) {{0,6}}(?:<-{{1,2}}>|-{{1,2}}>|<=>|=>|,|&|/|\+|-|\||\band\b|\bto\b|\bvs\.?)? {{0,6}}({NAME})"
    rf"[\s:=|]{{1,40}}{_LABEL}{_RATE}(?:\s.{{0,60}}|\s*\|.{{0,60}})?"
)
_DASHED_PAIR = re.compile(
    rf"\W{{0,8}}([A-Za-z][\w.]{{0,60}}\d)-([A-Za-z][\w.]{{0,60}}\d)[\s:=|]{{1,40}}{_LABEL}{_RATE}\W*"
)
_HOST_RATE = re.compile(rf"\W{{0,8}}({NAME})[\s:=|]{{1,40}}{_LABEL}{_RATE}\W*")
_ANNOUNCES = re.compile(r"\b(?:bus ?bw|busbw|alg ?bw|bus bandwidth|bandwidth|GB/s|Gb/s|Gbps)\b", re.IGNORECASE)
_OF_TEST = re.compile(r"\bbus ?bw\b|\balg ?bw\b|\bbus bandwidth\b", re.IGNORECASE)
_CLAUSE_END = re.compile(r"[,;:.!?] ")
_OF_HOSTS = re.compile(r"\b(?:hosts?|nodes?|machines?|servers?)\b|_perf\b", re.IGNORECASE)
_NO_RATE = re.compile(  # of a network or of links between GPUs
    r"\b(?:latency|usec|us\)|rtt|ping|time|tokens?|disks?|storage|nfs|lustre|gpfs|fio|ior|dd|checkpoints?|files?"
    r"|read|write|memory|dram|hbm|stream|cpu)\b",
    re.IGNORECASE,
)
OPENING = re.compile(
    r"\bbusbw\b|Avg bus bandwidth|Out of bounds values|BW average ?\[|\bbus ?(?:bandwidth|bw)\b"
    r"|ib_(?:write|read|send)_bw|# OSU MPI\S{0,12} \w{0,20} ?[\w-]{0,20} ?Bandwidth"
    r"|\b(?:all_reduce|all_gather|reduce_scatter|alltoall|sendrecv)_perf\b"
    r"|\d\s{1,12}\d{1,15}\s{1,12}(?:u?int\d{1,2}|half|float|double|bfloat16|fp8_?e\dm\d|f8e\dm\d)\s{1,8}"
    r"(?:sum|prod|max|min|avg|mulsum|none)\s{1,8}-?\d",
    re.IGNORECASE,
)
_FACTOR = {"gb": 1 / 8, "gbit": 1 / 8, "mb": 1e-3, "mib": 1.048576e-3, "gib": 1.073741824}  # to GB/s; in lower case


@dataclass(slots=True)
class _Run:
    """One run of a test."""

    line: int
    test: str = ""
    device: str = ""
    hosts: dict[str, None] = field(default_factory=dict)
    listed: bool = False  # the lines of its devices name the hosts
    rates: dict[str, float] = field(default_factory=dict)  # size in bytes, or AVERAGE -> GB/s
    wrong: int = 0  # values
    text: str = ""  # the first line with wrong values

    @property
    def began(self) -> bool:
        return bool(self.rates) or bool(self.text)

    def place(self, hosts: Iterable[str], listed: bool = False) -> None:
        if listed and not self.listed:
            self.hosts.clear()
            self.listed = True
        for host in hosts:
            if len(self.hosts) < MAX_HOSTS and (listed or not self.listed):
                self.hosts.setdefault(host)

    def rate(self, size: str, value: float) -> None:
        if value > 0 and (len(self.rates) < MAX_ROWS or size in self.rates):
            self.rates[size] = value


class BandwidthTestReader:
    name = "results of bandwidth tests"
    order = 44
    marks = ("busbw", "Avg bus bandwidth", "Out of bounds values", "BW average[", "# OSU MPI")
    help = "`all_reduce_perf -b 1G -e 8G -f 2 -g 8` on each host and on pairs of hosts, `ib_write_bw` between them"

    def recognises(self, source: Source) -> bool:
        return OPENING.search(source.head_text) is not None

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        source = text_source(source, context)
        reading, text, ends = _Reading(), "", not isinstance(source, TextSource) or source.content.endswith(b"\n")
        for number, text in enumerate(text_lines(source, context), 1):
            if len(text) <= MAX_LINE and len(reading.runs) < MAX_RUNS:
                reading.feed(text, number)
        if text[-1:].isdigit() and not ends and reading.runs and reading.runs[-1].test.startswith("list"):
            reading.runs.pop()  # the text may be cut within that number
        events = tuple(_events(reading.runs, source.name))
        if events:
            yield Piece(ProcessRef(), "logs", Logs(events))


@dataclass(slots=True)
class _Reading:
    """Takes the lines of a text in order."""

    runs: list[_Run] = field(default_factory=list)
    _open: dict[str, _Run] = field(default_factory=dict)  # by prefix of their lines
    _host: tuple[str, ...] = ()  # of the prompt or heading above
    _test: str = ""  # of the last command
    _unit: str = ""  # of the rows of perftest and OSU
    _list: tuple[str, int] | None = None  # words that announce a list of rates, and their line
    _of_hosts: bool = False  # they announce one rate for each host
    _matrix: list[str] = field(default_factory=list)  # hosts of the columns

    def feed(self, text: str, number: int) -> None:
        prefix, rest = "", text
        if (found := _PREFIX.match(text)) and is_host_name(found[1]):
            prefix, rest = found[1], text[found.end() :]
        if prompt := prompt_of(text):
            self._host = (prompt.host,) if prompt.host else () if prompt.states_host else self._host
            self._command(prompt.command, prefix, number)
            return
        if self._result(rest, prefix, number) or self._title(rest, prefix, number):
            return
        if _TEST.search(rest) and not _ANNOUNCES.search(rest):
            self._command(rest, prefix, number)
        elif not self._listed(text, number) and (found := _HEADING.fullmatch(text)) and len(text) <= 120:
            names = [one for one in re.split(r"\s?(?:,|&|\+|<->|\band\b|\bvs\.?)\s?", found[1]) if one]
            if all(map(is_host_name, names)):
                self._host = tuple(names)
                self._open.pop("", None)

    # --- runs -------------------------------------------------------------------------------------

    def _run(self, prefix: str, number: int, fresh: bool = False) -> _Run:
        """The run that is open; a new one, if none is, or if the open one has results already."""
        run = self._open.get(prefix)
        if run is None or (fresh and run.began):
            run = _Run(number)
            run.place((prefix,) if prefix else self._host)
            self._open[prefix] = run
            self.runs.append(run)
        return run

    def _command(self, command: str, prefix: str, number: int) -> None:
        found = _TEST.search(command)
        self._list = None
        if not found:
            return
        self._open.pop(prefix, None)
        run = self._run(prefix, number)
        run.test = self._test = found[1]
        if option := _IB_OPTION.search(command):
            run.device = option[1]
        if hosts := _HOSTS_OPTION.search(command[: found.start()]):
            names = [one.partition(":")[0] for one in hosts[1].split(",") if one]
            if all(map(is_host_name, names)):
                run.hosts.clear()
                run.place(names)
        elif (server := _IB_SERVER.search(command)) and is_host_name(server[1]) and server[1] != run.device:
            run.place((server[1],))

    def _title(self, text: str, prefix: str, number: int) -> bool:
        for title, name in _TITLES:
            if found := title.search(text):
                run = self._run(prefix, number, fresh=True)
                if found[1]:
                    run.test = run.test or (name.format(found[1].lower()) if name else found[1].lower())
                return True
        if found := _DEVICE_LINE.search(text):
            self._run(prefix, number, fresh=True).place((found[2],), listed=True)
            return True
        if found := _IB_DEVICE.search(text):
            run = self._run(prefix, number, fresh=True)
            run.device = run.device or found[1]
            return True
        return False

    def _result(self, text: str, prefix: str, number: int) -> bool:
        """Read a line with results: a row, a summary, or the head of a table, which names the unit."""
        if found := _AVERAGE.search(text):
            hosts = _hosts_in_front(text[: found.start()])
            if hosts and len(self.runs) < MAX_RUNS:
                run = _Run(number, self._test)
                run.place(hosts)
                self.runs.append(run)
            else:
                run = self._run(prefix, number)
            run.rate(AVERAGE, float(found[1]))
            if not hosts:
                self._open.pop(prefix, None)
            return True
        if found := _CHECKED.search(text):
            if found[2] == "FAILED" and int(found[1]):
                self._wrong(self._run(prefix, number), int(found[1]), text)
            return True
        if (found := _IB_HEAD.search(text)) or (found := _OSU_HEAD.search(text)):
            self._unit = found[1] or "MB"
            return True
        cells = text.split()
        if not 2 <= len(cells) <= 13 or not cells[0].isdecimal():
            return False
        return self._nccl_row(cells, text, prefix, number) or self._plain_row(cells, prefix, number)

    def _nccl_row(self, cells: Sequence[str], text: str, prefix: str, number: int) -> bool:
        """size count type redop root time algbw busbw #wrong, and the last four again in place."""
        if len(cells) < 8 or not cells[1].isdecimal() or not cells[2][:1].isalpha():
            return False
        shown = cells[-8:] if len(cells) >= 11 else cells[-4:]
        sides = [shown[at : at + 4] for at in range(0, len(shown), 4)]
        read = [side for side in sides if all(re.fullmatch(_NUMBER, one) for one in side[:3])]
        size = int(cells[0][:18])
        rates = [float(side[2]) for side in read if _fits(size, float(side[0]), float(side[1]))]
        if not rates:
            return False
        run = self._run(prefix, number)
        run.rate(str(size), max(rates))
        run.test = run.test or f"nccl-tests ({cells[3]})"  # the reduction tells operations apart
        wrong = sum(int(side[3]) for side in read if re.fullmatch(r"\d{1,12}", side[3]))
        if wrong:
            self._wrong(run, wrong, text)
        return True

    def _plain_row(self, cells: Sequence[str], prefix: str, number: int) -> bool:
        """perftest: bytes, iterations, peak, average, rate of messages; OSU: bytes, bandwidth."""
        if not self._unit or not all(re.fullmatch(_NUMBER, one) for one in cells) or len(cells) not in (2, 4, 5):
            return False
        value = cells[1] if len(cells) == 2 else cells[3]
        self._run(prefix, number).rate(cells[0][:18], float(value) * _factor(self._unit))
        return True

    def _wrong(self, run: _Run, count: int, text: str) -> None:
        run.wrong = max(run.wrong, count)
        run.text = run.text or " ".join(text.split())[:200]

    # --- lists ------------------------------------------------------------------------------------

    def _listed(self, text: str, number: int) -> bool:
        """Read a row of a list of pairs or hosts, below words that announce rates."""
        row = self._row(text, number)
        if row:
            if self._list:
                self._list = self._list[0], number
            return True
        if _announces(text):
            self._list = f"list {number}", number
            self._of_hosts = _OF_HOSTS.search(text) is not None
        elif text.rstrip().endswith(":") and _NO_RATE.search(text):
            self._list = None  # another list begins
        columns = [one for one in text.replace("|", " ").split() if is_host_name(one)]
        if len(columns) > 2 and len(columns) >= len(text.replace("|", " ").split()) - 1:
            self._matrix = columns[:MAX_CELLS]
            return True
        self._matrix = self._matrix if text.strip(" |-+=") == "" else []
        if self._list and number - self._list[1] > MAX_HEADING_LINES:
            self._list = None
        return False

    def _row(self, text: str, number: int) -> bool:
        cells = text.replace("|", " ").split()
        if self._matrix and self._list and len(cells) == len(self._matrix) + 1 and cells[0] in self._matrix:
            for other, cell in zip(self._matrix, cells[1:], strict=True):
                if other != cells[0] and re.fullmatch(_NUMBER, cell):
                    self._measured((cells[0], other), float(cell), "", number)
            return True
        for pattern in (_PAIR, _DASHED_PAIR):
            if (found := pattern.fullmatch(text)) and (self._list or found["unit"] or _of_bus(found["label"])):
                one, other = found[1], found[2]
                alike = pattern is _PAIR or re.sub(r"\d", "", one) == re.sub(r"\d", "", other)
                if one != other and alike and is_host_name(one) and is_host_name(other):
                    self._measured((one, other), float(found["value"]), found["unit"] or "", number)
                    return True
        if (
            (found := _HOST_RATE.fullmatch(text))
            and ((self._of_hosts and self._list) or _of_bus(found["label"]))
            and is_host_name(found[1])
        ):
            self._measured((found[1],), float(found["value"]), found["unit"] or "", number)
            return True
        return False

    def _measured(self, hosts: Sequence[str], value: float, unit: str, number: int) -> None:
        if len(self.runs) < MAX_RUNS:
            run = _Run(number, self._list[0] if self._list else "list")
            run.place(hosts)
            run.rate(AVERAGE, value * (_factor(unit) if unit else 1.0))
            self.runs.append(run)


def _announces(text: str) -> bool:
    """True for words above a list of rates, in a clause of their own: `Step time doubled. busbw of each pair:`."""
    if not _ANNOUNCES.search(text):
        return False
    return not _NO_RATE.search(text) or any(
        _OF_TEST.search(clause) and not _NO_RATE.search(clause) for clause in _CLAUSE_END.split(text)
    )


def _of_bus(label: str | None) -> bool:
    return label is not None and "bus" in label.lower()


def _hosts_in_front(text: str) -> list[str]:
    """The hosts that a loop, `grep` or a person put in front of a summary; empty: none, or it is no list of hosts."""
    words = text.strip().rstrip("#").strip()[-200:]
    found: dict[str, None] = {}
    for word in _IN_FRONT.split(words):
        dashed = _DASHED.search(word)
        for name in (f"{dashed[1]}{dashed[2]}", dashed[3]) if dashed else (word,):
            if is_host_name(name) and (name[:1].isalpha() or name.count(".") == 3):
                found.setdefault(name)
    return list(found) if len(found) <= MAX_IN_FRONT else []


def _fits(size: int, time_us: float, rate: float) -> bool:
    """True if a rate in GB/s is that of so many bytes in so much time, as rounded in the table."""
    return time_us > 0 and abs(size / time_us / 1e3 - rate) <= 0.02 + 0.05 * rate


def _factor(unit: str) -> float:
    return _FACTOR.get(re.split(r"/|ps", unit)[0].lower(), 1.0) if unit[:2] not in ("GB",) else 1.0


def _events(runs: Sequence[_Run], source: str) -> Iterator[LogEvent]:
    for number, run in enumerate(runs, 1):
        fields = {"test": run.test, "device": run.device, "hosts": ",".join(run.hosts)}
        if run.rates:
            rates = " ".join(f"{size}={rate:.6g}" for size, rate in run.rates.items())
            text = f"{run.test or 'bandwidth'}: {max(run.rates.values()):.3g} GB/s"
            yield LogEvent("bandwidth", text, source, number, None, fields | {"rates": rates})
        if run.wrong:
            yield LogEvent("wrong_values", run.text, source, number, None, fields | {"count": str(run.wrong)})


READER = BandwidthTestReader()
