"""How many processes of a job run on each host, as people count them when a job does not start.

`for h in n0 n1; do echo $h $(ssh $h pgrep -fc train.py); done`, `pdsh -w n[0-3] 'pgrep -c python'`, `clush -b`, one
`n3$ pgrep -f train.py` after the other, `docker ps`, a table below a heading that speaks of processes, or words:
`4 processes on n0, none on n3`. A count of something else (files, GPUs, errors) has no such command or heading.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._host_names import NAME, hosts_in_set, prompt_of
from hangdoc.postmortem.readers._pasted_text import text_lines
from hangdoc.postmortem.readers._placement.tokens import may_be_host
from hangdoc.postmortem.readers._text_source import placement_in
from hangdoc.redaction.text import redact_text

KIND = "process_count"
MAX_TEXT = 2**20  # characters of a text in which somebody counts
MAX_LINE = 400
MAX_HOSTS = 4096
MAX_COUNT = 4096  # processes of a host
MAX_BEFORE = 3  # other lines between a command and its output

_COMMAND = re.compile(
    r"\bpgrep\b|\bpidof\b|\bps (?:-?[a-zA-Z]{1,5}\b|-[eo]).{0,120}?\|\s{0,2}(?:grep|awk|wc)\b"
    r"|\bdocker (?:ps|container ls)\b|\bpodman ps\b|--query-compute-apps|\bsstat\b.{0,60}\bntasks\b",
    re.IGNORECASE,
)
_COUNTS = re.compile(
    r"\bpgrep (?:-\w{1,6} ){0,3}-\w{0,5}c|\bpgrep .{0,80}--count|\bwc -l|\bgrep (?:-\w{1,6} ){0,2}-\w{0,4}c"
)
_HEADING = re.compile(
    r"\b(?:procs?|processes|ranks|workers|tasks|python)\b.{0,40}\b(?:per|on each|by|for each|on every|running)\b|"
    r"\b(?:count|number) of (?:\w{1,12} ){0,2}(?:procs?|processes|ranks|workers)\b"
    r"|^\W{0,6}(?:host|node|machine)(?:name)?\s{1,20}(?:#|n|num)?[ _]?"
    r"(?:procs?|processes|ranks|python\w{0,4}|workers|pids)\b",
    re.IGNORECASE,
)
_NUMBER = r"(?P<count>\d{1,4}|none|nothing|zero|no)"
_WHAT = (
    r"(?:python\d?(?:\.\d{1,2})?|train\w{0,12}(?:\.py)?|running|of them|trainer|rank|mpi|worker|job|such|our|my"
    r"|torchrun|live|alive|of the \w{1,10}) ?"
)
_OBJECTS = r"(?:procs?|process(?:es)?|ranks?|workers?|tasks?|pids?|python|trainers?|instances?|containers?|copies)"
_ROW = re.compile(
    rf"\s{{0,8}}\[?(?P<host>{NAME})\]?\s{{0,20}}(?:[:=|,]|-+>|=>|\u2192|\s)\s{{0,20}}(?:has |runs |shows )?{_NUMBER}"
    rf"(?: {{0,2}}(?:{_WHAT}){{0,2}}{_OBJECTS})?\s{{0,10}}(?:[(#<!].{{0,60}})?[.,]?\s*",
    re.IGNORECASE,
)
_GROUP = re.compile(
    r"\s{0,4}(?P<hosts>[A-Za-z][\w.-]{0,60}(?:\[[\d,-]{1,60}\])?(?:,[A-Za-z][\w.\[\],-]{1,60})?)"
    r"(?: \(\d{1,5}\))?\s*"
)
_RULER = re.compile(r"\s{0,4}[-=]{4,}\s*")
_DIGITS = re.compile(r"\s{0,8}(\d{1,4})\s*")
_PID = re.compile(r"\s{0,8}\d{2,9}(?:\s.{0,400})?")
_ONE = rf"(?!(?:no|none|nothing|zero|but|only|while|the)\b|\d){NAME}"
_NAMES = rf"{_ONE}(?:(?:, ?(?:and )?| and | & |/){_ONE}){{0,63}}"
_STATE = r"(?:at all |each |(?:is |are )?(?:running |left |alive |there |started ))?"
_WORDS = re.compile(  # `no process on n3`, `4 ranks each on n0, n1 and n2`, `nothing runs on n3`
    rf"\b{_NUMBER} (?:{_WHAT}){{0,2}}(?P<what>{_OBJECTS} )?{_STATE}"
    rf"on (?:the )?(?:host |node |hosts |nodes )?(?P<hosts>{_NAMES})",
    re.IGNORECASE,
)
_HAS = re.compile(  # `n3 has no process`, `n3: no python`
    rf"(?<![\w.-])(?P<hosts>{NAME}) ?(?:has|have|shows?|runs|:|=|->|with) {_NUMBER} (?:{_WHAT}){{0,2}}{_OBJECTS}\b",
    re.IGNORECASE,
)
_SPEAKS = re.compile(
    r"\b(?:process\w{0,3}|procs?|pgrep|ps|python|ranks?|workers?|trainers?|nothing|none)\b", re.IGNORECASE
)
_NO_STATEMENT = re.compile(
    r"\?|\b(?:if|should|would|expect\w{0,3}|want|need|supposed|was|were|per|before|yesterday|earlier|usually|when)\b",
    re.IGNORECASE,
)
_NAMES_ONE = re.compile(r"(?:\b(?:pids?|ranks?|gpus?|local|port|step|job|#)|[=:#/.-])\s{0,2}$", re.IGNORECASE)
_NONE = frozenset({"none", "nothing", "zero", "no"})
MARKS = ("pgrep", "pidof", "docker ps", "--query-compute-apps", "process on ", "processes on ")


@dataclass(frozen=True, slots=True)
class Count:
    """The processes on one host."""

    count: int
    line: int
    text: str


@dataclass(slots=True)
class Counts:
    """Takes the lines of a text in order."""

    by_host: dict[str, Count] = field(default_factory=dict)  # the last one of each
    _open: int = -1  # lines since a command or heading; below 0: none
    _rows: bool = False  # its rows have begun
    _group: tuple[str, ...] = ()  # hosts of the heading above, as clush prints it
    _listing: tuple[str, int, int, str, bool] | None = None  # host, processes so far, line, command, counts itself

    def feed(self, text: str, number: int) -> None:
        if len(text) > MAX_LINE:
            self._open = -1
            self._end_listing(text)
            return
        if prompt := prompt_of(text):
            self._end_listing(text)
            counting = _COMMAND.search(prompt.command) is not None
            self._open, self._rows, self._group = 0 if counting else -1, False, ()
            if counting and prompt.host:
                self._listing = prompt.host, 0, number, text, _COUNTS.search(prompt.command) is not None
            return
        if self._listing and self._continues(text, number):
            return
        if _COMMAND.search(text) or _HEADING.search(text):
            self._open, self._rows, self._group = 0, False, ()
        elif self._open >= 0 and text.strip():
            self._feed_row(text, number)
        self._feed_words(text, number)

    def end(self) -> None:
        self._end_listing("")

    def _continues(self, text: str, number: int) -> bool:
        """A line below a command on one host: a number, or one process."""
        host, count, line, command, itself = self._listing or ("", 0, 0, "", False)
        if itself:
            self._listing = None
            if found := _DIGITS.fullmatch(text):
                self._add(host, int(found[1]), number, f"{command.strip()} {text.strip()}")
                return True
            return False
        if _PID.fullmatch(text):
            self._listing = host, count + 1, line, command, itself
            return True
        if re.match(r"\s{0,4}(?:CONTAINER ID|\s*PID\b|USER\s+PID)", text):
            return True
        self._end_listing(text)
        return False

    def _end_listing(self, text: str) -> None:
        """The end of the list of processes of a host; it may be empty."""
        if self._listing and not self._listing[4] and (prompt_of(text) or not text.strip() or self._listing[1]):
            host, count, line, command, _ = self._listing
            self._add(host, count, line, command.strip())
        self._listing = None

    def _feed_row(self, text: str, number: int) -> None:
        if _RULER.fullmatch(text):
            return
        if self._group and (found := _DIGITS.fullmatch(text)):
            for host in self._group:
                self._add(host, int(found[1]), number, text)
            self._group, self._rows, self._open = (), True, 0
        elif (row := _ROW.fullmatch(text)) and may_be_host(row["host"]):
            self._add(row["host"], _count(row["count"]), number, text)
            self._rows, self._open = True, 0
        elif (group := _GROUP.fullmatch(text)) and (hosts := _hosts_of(group["hosts"])):
            self._group = hosts
        else:
            self._open = self._open + 1 if not self._rows and self._open < MAX_BEFORE else -1

    def _feed_words(self, text: str, number: int) -> None:
        if not _SPEAKS.search(text):
            return
        for found in (*_WORDS.finditer(text), *_HAS.finditer(text)):
            clause = re.split(r"[.;]\s", text[: found.start()])[-1] + found[0] + text[found.end() : found.end() + 2]
            bare = not found.groupdict().get("what", "what")  # `4 on n1`, behind a count of processes
            if _NO_STATEMENT.search(clause) or (bare and _NAMES_ONE.search(text[: found.start()])):
                continue
            for host in re.split(r", ?(?:and )?| and | & |/", found["hosts"]):
                host = host.rstrip(".-")
                if may_be_host(host):
                    self._add(host, _count(found["count"]), number, text)

    def _add(self, host: str, count: int, number: int, text: str) -> None:
        if count <= MAX_COUNT and (host in self.by_host or len(self.by_host) < MAX_HOSTS):
            self.by_host[host] = Count(count, number, text)


class ProcessCountReader:
    name = "counts of processes"
    order = 61
    marks = MARKS
    help = "`clush -w HOSTS 'pgrep -fc SCRIPT'`: how many processes of the job run on each host"

    def recognises(self, source: Source) -> bool:
        text = source.head_text[:MAX_TEXT]
        if not _COMMAND.search(text) and not _SPEAKS.search(text):
            return False
        return len(_counted(text.split("\n")).by_host) > 1

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        counts = _counted(text_lines(source, context)).by_host
        if len(counts) < 2:
            return
        ranks = _ranks_by_host(placement_in(source).hosts)
        own = {host: ranks.get(host.partition(".")[0].lower(), ()) for host in counts}
        fields = {
            "counts": " ".join(f"{host}={count.count}" for host, count in counts.items()),
            "ranks": " ".join(f"{host}={','.join(map(str, several))}" for host, several in own.items() if several),
        }
        last = max(counts.values(), key=lambda count: count.line)
        event = LogEvent(KIND, redact_text(last.text.strip())[:400], source.name, last.line, None, fields)
        yield Piece(ProcessRef(), "logs", Logs((event,)))


def _counted(lines: Iterable[str]) -> Counts:
    found = Counts()
    for number, text in enumerate(lines, 1):
        found.feed(text, number)
    found.end()
    return found


def _ranks_by_host(hosts: Mapping[int, str]) -> Mapping[str, Sequence[int]]:
    found: dict[str, list[int]] = {}
    for rank, host in sorted(hosts.items()):
        found.setdefault(host.partition(".")[0].lower(), []).append(rank)
    return found


def _count(text: str) -> int:
    return 0 if text.lower() in _NONE else int(text)


def _hosts_of(text: str) -> tuple[str, ...]:
    """The hosts of a node set, if all of them may be hosts."""
    hosts = hosts_in_set(text, MAX_HOSTS)
    return hosts if all(map(may_be_host, hosts)) else ()


READER = ProcessCountReader()
