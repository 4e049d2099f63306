"""Tables of the load of a host: disks, mounts, memory, CPUs and TCP.

`iostat -x`, `mpstat`, `pidstat`, `sar` (sysstat 10 to 12: iostat.c, mpstat.c, pr_stats.c), `nfsiostat` (nfs-utils:
tools/nfs-iostat), `vmstat`, `top`, `free` (procps-ng), `htop`, `/proc/pressure` and `*.pressure` (Linux
Documentation/accounting/psi.rst), `netstat -s` (net-tools: statistics.c), `nstat` (iproute2: misc/nstat.c).
A reader says what was printed; what is too much, the analysis decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from itertools import islice

from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._host_context import HostContext
from hangdoc.postmortem.readers._host_names import prompt_of
from hangdoc.postmortem.readers._logs.prefixes import PrefixStyle, parse
from hangdoc.postmortem.readers._pasted_text import text_lines

MAX_LINE = 600  # characters
MAX_LINES = 100_000
MAX_EVENTS = 4000
MAX_COLUMNS = 64
MAX_SEARCHED = 20_000  # lines, for the first table

_NUMBER = re.compile(r"-?\d{1,15}(?:[.,]\d{1,6})?")
_HALF_DAY = re.compile(r"(?:\d\d:\d\d:\d\d )?[AP]M ")
_BANNER = re.compile(
    r"\s{0,8}Linux \d\S{1,80} \((?P<host>[A-Za-z0-9][\w.-]{0,100})\)\s.{0,60}?(?:_\w{1,20}_)?"
    r"(?:\s{0,8}\((?P<cores>\d{1,5}) CPU\))?\s*"
)
_DISKS = re.compile(r"\s{0,8}(?:Device:?|DEV)\s.{1,300}%util\s*")
_DISK = re.compile(r"(?!loop\d|ram\d|sr\d|zram)[a-z][\w./!-]{1,60}")
_AVERAGE = re.compile(r"\s{0,8}avg-cpu:\s.{0,100}%idle.{0,20}")
_CPUS = re.compile(r"\s{0,8}(?:CPU)\s.{0,160}%idle\s*")
_PROCESSES = re.compile(  # of pidstat and top; the shares that `ps` prints are those of a whole life
    r"\s{0,8}#?\s{0,8}(?:Time\s+)?(?:UID|USER|PID)\s.{0,100}?(?:%usr|VIRT)\s.{0,100}%CPU\s.{0,60}(?:Command|COMMAND)\s*"
)
_VMSTAT = re.compile(r"\s{0,8}r\s+b\s+swpd\s.{0,100}\ssi\s+so\s.{0,120}")
_SWAPS = re.compile(r"\s{0,8}pswpin/s\s+pswpout/s\s*")
_MOUNT = re.compile(r"\s{0,8}(?P<server>[\w.\[\]:-]{1,100}:/\S{0,300}) mounted on (?P<mount>/\S{0,300}):\s*")
_MOUNT_HEAD = re.compile(r"\s{0,8}(?P<op>read|write):\s+ops/s\s.{0,200}avg RTT.{0,160}")
_MOUNT_VALUE = re.compile(r"(-?\d{1,15}(?:\.\d{1,6})?)(?:\s{0,4}\((\d{1,3}(?:\.\d{1,6})?)%\))?")
_PRESSURE = re.compile(
    r"(?P<front>.{0,200}?)\b(?P<who>some|full) avg10=(?P<avg10>\d{1,3}\.\d\d) avg60=(?P<avg60>\d{1,3}\.\d\d)"
    r" avg300=(?P<avg300>\d{1,3}\.\d\d) total=\d{1,20}\s*"
)
_RESOURCE = re.compile(r"\bpressure/(cpu|memory|io)\b|\b(cpu|memory|io)\.pressure\b")
_TOP_CPU = re.compile(
    r"\s{0,8}%?Cpu\(s\)\s{0,3}:.{0,60}?(?P<idle>\d{1,3}[.,]\d)[ %]{1,2}id,\s{0,4}(?P<iowait>\d{1,3}[.,]\d)[ %]{1,2}wa,"
    r".{0,60}?(?P<steal>\d{1,3}[.,]\d)[ %]{1,2}st\s*"
)
_TOP_MEMORY = re.compile(
    r"\s{0,8}(?:[KMGTP]iB )?(?P<what>Mem|Swap)\s{0,3}:\s{0,8}(?P<total>\d{1,15}(?:[.,]\d{1,3})?)[+ ]?\s{0,3}total,"
    r"\s{0,8}(?P<free>\d{1,15}(?:[.,]\d{1,3})?)[+ ]?\s{0,3}free,\s{0,8}\d{1,15}(?:[.,]\d{1,3})?[+ ]?\s{0,3}used"
    r"(?:[,.].{0,4}?\s{0,8}(?P<available>\d{1,15}(?:[.,]\d{1,3})?)[+ ]?\s{0,3}avail Mem)?.{0,60}"
)
_SIZE = r"\d{1,15}(?:[.,]\d{1,2})?(?:[KMGTP]i?)?B?"
_FREE = re.compile(rf"\s{{0,8}}(?P<what>Mem|Swap):\s{{1,20}}(?P<sizes>{_SIZE}(?:\s{{1,20}}{_SIZE}){{2,6}})\s*")
_HTOP = re.compile(
    rf"\s{{0,8}}(?P<what>Mem|Swp)\[[|#* ]{{0,120}}\s?(?P<used>{_SIZE})/(?P<total>{_SIZE})\](?:\s.{{0,200}})?"
)
_SENT = re.compile(
    r"\s{0,12}(?P<count>\d{1,18}) segments sen[dt] out\s*|TcpOutSegs\s{1,60}(?P<counter>\d{1,18})\b.{0,40}"
)
_RESENT = re.compile(
    r"\s{0,12}(?P<count>\d{1,18}) segments? retransmit(?:t)?ed\s*|TcpRetransSegs\s{1,60}(?P<counter>\d{1,18})\b.{0,40}"
)
# The columns that are read, by table; a head may be damaged.
_READ: Mapping[str, Set[str]] = {
    "disks": {"%util"}, "average": set(), "cpus": {"CPU"}, "processes": {"PID", "%CPU"}, "vmstat": {"si", "so"},
    "swaps": {"pswpin/s", "pswpout/s"},
}  # fmt: skip
_SCALE = {"K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40, "P": 2.0**50}
_SIGNS = (
    "%util", "%idle", "swpd", "mounted on", "avg10=", "%CPU", "Cpu(s)", "Swap:", "Swp[", "pswpin", "segments",
    "TcpRetransSegs",
)  # fmt: skip
_TABLES = (_DISKS, _AVERAGE, _CPUS, _PROCESSES, _VMSTAT, _SWAPS, _MOUNT, _TOP_CPU, _TOP_MEMORY, _HTOP, _RESENT)


class HostLoadReader:
    name = "tables of the load of a host"
    order = 45
    marks = ("%util", "%idle", " swpd ", " mounted on /", " avg10=", "Cpu(s)", "Swap:", "TcpRetransSegs", "segments ")
    help = "`iostat -x 1 5`, `nfsiostat 5 3`, `vmstat 1 5`, `grep . /proc/pressure/*` on every host"

    def recognises(self, source: Source) -> bool:
        if not any(sign.encode() in source.head for sign in _SIGNS):
            return False
        lines = source.head_text.split("\n", MAX_SEARCHED)[:MAX_SEARCHED]
        style = PrefixStyle()
        signed = (text for text in lines if len(text) <= MAX_LINE and any(sign in text for sign in _SIGNS))
        return any(_opens(parse(text, style).text) for text in signed)

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        reading = _Reading(source.name)
        texts = list(islice(text_lines(source, context), MAX_LINES))
        hosts = HostContext("\n".join(text[:MAX_LINE] for text in texts).encode("utf-8", "replace"))
        style = PrefixStyle()
        for number, text in enumerate(texts, 1):
            if len(text) <= MAX_LINE:
                line = parse(text, style)
                reading.feed(line.text, line.host or hosts.at(number), number)
        if len(texts) == MAX_LINES or len(reading.events) >= MAX_EVENTS:
            context.warn(f"{source.name}: more tables than hangdoc reads; the rest were not read")
        by_host: dict[str | None, list[LogEvent]] = {}
        for host, event in reading.events:
            by_host.setdefault(host, []).append(event)
        for host, events in by_host.items():
            yield Piece(ProcessRef(host=host), "logs", Logs(tuple(events)))


def _opens(text: str) -> bool:
    text = _HALF_DAY.sub("", text, count=1)
    return any(table.fullmatch(text) for table in _TABLES) or bool(_FREE.fullmatch(text) or _PRESSURE.fullmatch(text))


@dataclass(slots=True)
class _Reading:
    """The state while a text is read."""

    source: str
    events: list[tuple[str | None, LogEvent]] = field(default_factory=list)
    _table: str = ""  # of the next rows: disks, average, cpus, processes, vmstat, swaps
    _columns: list[str] = field(default_factory=list)
    _banner: str | None = None  # the host that sysstat prints above its reports
    _cores: str = ""
    _fresh: set[str] = field(default_factory=set)  # tables whose next report is the average since the boot
    _boot: bool = False
    _mount: tuple[str, str] = ("", "")
    _op: str = ""
    _resource: str = ""
    _sent: str = ""
    _total: float = 0.0  # memory, in the unit of the same table
    _above: str | None = None

    def feed(self, text: str, host: str | None, number: int) -> None:
        if host != self._above:
            self._above, self._banner, self._resource, self._sent = host, None, "", ""
        if banner := _BANNER.fullmatch(text):
            self._banner, self._cores, self._table = banner["host"], banner["cores"] or "", ""
            self._fresh = {"disks", "average"}
            return
        if prompt_of(text):
            self._banner, self._table, self._mount, self._sent, self._fresh = None, "", ("", ""), "", set()
        for kind, fields in self._read(_HALF_DAY.sub("", text, count=1)):
            if kind and len(self.events) < MAX_EVENTS:
                event = LogEvent(
                    kind, text.strip()[:200], self.source, number, None, {k: v for k, v in fields.items() if v}
                )
                self.events.append((self._banner or host, event))

    def _read(self, text: str) -> Iterator[tuple[str, Mapping[str, str]]]:
        if asked := _RESOURCE.search(text):
            self._resource = asked[1] or asked[2]
        if pressure := _PRESSURE.fullmatch(text):
            if self._resource:
                averages = {name: pressure[name] for name in ("avg10", "avg60", "avg300")}
                yield "pressure", {"resource": self._resource, "who": pressure["who"], **averages}
            return
        if self._opens(text):
            return
        if self._table:
            row = self._row(text)
            if row is not None:
                yield row
                return
            if text.strip() or self._table not in ("vmstat", "cpus", "swaps"):
                self._table = ""
        yield from self._single(text)

    def _opens(self, text: str) -> bool:
        """True for the head of a table."""
        for table, opening in (
            ("disks", _DISKS), ("average", _AVERAGE), ("cpus", _CPUS), ("processes", _PROCESSES), ("vmstat", _VMSTAT),
            ("swaps", _SWAPS),
        ):  # fmt: skip
            columns = text.replace("#", " ").replace("Device:", "Device").split()[:MAX_COLUMNS]
            if opening.fullmatch(text) and _READ[table] <= set(columns):
                self._table, self._columns = table, columns[1:] if table == "average" else columns
                self._boot = table in self._fresh or table == "vmstat"
                self._fresh.discard(table)
                return True
        if mount := _MOUNT.fullmatch(text):
            self._mount, self._op, self._table = (mount["server"], mount["mount"]), "", ""
            return True
        if (head := _MOUNT_HEAD.fullmatch(text)) and self._mount[0]:
            self._op, self._table = head["op"], ""
            self._columns = re.split(r"\s{2,}|\t+", text.strip())[1:MAX_COLUMNS]
            return True
        return False

    def _row(self, text: str) -> tuple[str, Mapping[str, str]] | None:
        cells = text.split(maxsplit=len(self._columns) - 1) if self._table == "processes" else text.split()
        if len(cells) != len(self._columns):
            return None
        row = dict(zip(self._columns, cells, strict=True))
        boot = "yes" if self._boot else ""
        if self._table == "disks":
            if not _DISK.fullmatch(cells[0]) or not all(map(_NUMBER.fullmatch, cells[1:])):
                return None
            waits = [_value(row[name]) for name in ("await", "r_await", "w_await") if name in row]
            return "disk_load", {
                "device": cells[0], "util": str(_value(row["%util"])), "since_boot": boot,
                "await_ms": str(max(waits)) if waits else "",
            }  # fmt: skip
        if self._table == "processes":
            command = row.get("Command", row.get("COMMAND", ""))
            if not _NUMBER.fullmatch(row["%CPU"]) or not row["PID"].isdigit():
                return None
            return "process_load", {
                "pid": row["PID"], "cpu": str(_value(row["%CPU"])), "command": command[:80], "cores": self._cores,
            }  # fmt: skip
        if self._table in ("average", "cpus"):
            return self._cpus(row, boot)
        if not all(map(_NUMBER.fullmatch, cells)):
            return None
        self._boot = False
        if self._table == "swaps":
            into, out = (_value(row[name]) * 4 for name in ("pswpin/s", "pswpout/s"))
            return "swap_load", {"in_kib": str(into), "out_kib": str(out)}
        return "swap_load", {"in_kib": row["si"], "out_kib": row["so"], "since_boot": boot}

    def _cpus(self, row: Mapping[str, str], boot: str) -> tuple[str, Mapping[str, str]] | None:
        whole = row.get("CPU", "all") == "all"
        if not whole or not all(_NUMBER.fullmatch(row.get(name, "0")) for name in ("%iowait", "%steal", "%idle")):
            return ("", {}) if not whole and row["CPU"].isdigit() else None  # one of the CPUs
        idle, iowait, steal = (str(_value(row.get(name, "0"))) for name in ("%idle", "%iowait", "%steal"))
        return "cpu_load", {"idle": idle, "iowait": iowait, "steal": steal, "since_boot": boot}

    def _single(self, text: str) -> Iterator[tuple[str, Mapping[str, str]]]:
        if self._op and self._mount[0]:
            yield from self._mounted(text)
        if cpu := _TOP_CPU.fullmatch(text):
            yield "cpu_load", {name: cpu[name].replace(",", ".") for name in ("idle", "iowait", "steal")}
        elif memory := _TOP_MEMORY.fullmatch(text):
            if memory["what"] == "Mem":
                self._total = _value(memory["total"])
            else:
                yield from _memory("swap", _value(memory["free"]), _value(memory["total"]))
            if memory["available"]:
                yield from _memory("memory", _value(memory["available"]), self._total)
        elif found := _FREE.fullmatch(text):
            yield from self._free_row(found["what"], [_size(one) for one in found["sizes"].split()])
        elif used_of := _HTOP.fullmatch(text):
            total, used = _size(used_of["total"]), _size(used_of["used"])
            yield from _memory("swap" if used_of["what"] == "Swp" else "memory", total - used, total)
        elif sent := _SENT.fullmatch(text):
            self._sent = sent["count"] or sent["counter"]
        elif (resent := _RESENT.fullmatch(text)) and self._sent:
            yield "tcp_totals", {"sent": self._sent, "resent": resent["count"] or resent["counter"]}
            self._sent = ""

    def _free_row(self, what: str, sizes: list[float]) -> Iterator[tuple[str, Mapping[str, str]]]:
        """`total used free shared buff/cache available`, and `total used free` of swap."""
        if what == "Swap":
            yield from _memory("swap", sizes[2], sizes[0])
        elif len(sizes) > 5:
            yield from _memory("memory", sizes[5], sizes[0])

    def _mounted(self, text: str) -> Iterator[tuple[str, Mapping[str, str]]]:
        values = _MOUNT_VALUE.findall(text)
        named = dict(zip(self._columns, values, strict=False))
        op, self._op = self._op, ""
        if len(values) < 5 or re.search(r"[A-Za-z]", text):
            return
        number = {name: value for name, (value, _) in named.items()}
        yield "mount_load", {
            "server": self._mount[0][:200], "mount": self._mount[1][:200], "op": op, "ops": number.get("ops/s", ""),
            "rtt_ms": number.get("avg RTT (ms)", ""), "exe_ms": number.get("avg exe (ms)", ""),
            "resent": number.get("retrans", ""), "resent_percent": named.get("retrans", ("", ""))[1],
        }  # fmt: skip


def _memory(what: str, left: float, total: float) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The share that is left."""
    share = min(max(left / total, 0.0), 1.0) if total > 0 else 0.0
    if total > 0 or what == "swap":
        yield "memory_load", {"what": what, "left": f"{share:.4f}"}


def _value(text: str) -> float:
    return float(text.replace(",", "."))


def _size(text: str) -> float:
    text = text.rstrip("B").rstrip("i")
    return _value(text[:-1]) * _SCALE[text[-1]] if text[-1:] in _SCALE else _value(text)


READER = HostLoadReader()
