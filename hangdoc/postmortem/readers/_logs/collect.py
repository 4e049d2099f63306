"""What one log file says, sorted by who says it: lines, stacks and ends become pieces of evidence."""

from __future__ import annotations

import re
import signal
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice, takewhile

from hangdoc.evidence import End, Stacks
from hangdoc.evidence.logs import TEARDOWN, WAITED, LogEvent, Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import Source
from hangdoc.postmortem.readers._logs.attribution import Author, Authors, place_of
from hangdoc.postmortem.readers._logs.exits import ends_of, failure
from hangdoc.postmortem.readers._logs.prefixes import Habits, Line, parse
from hangdoc.postmortem.readers._logs.scan import Spot, Tally
from hangdoc.postmortem.readers._logs.tracebacks import CHAIN, HEADING, Raised, read, watchdog_stack
from hangdoc.postmortem.readers.faulthandler import dumps
from hangdoc.redaction.text import redact, redact_identifier, redact_text

MOST_AUTHORS = 20_000
FATAL = "Fatal Python error"
KEPT = 64  # lines of one author that are kept from the beginning, and as many from the end
TEXT, FIELD = 400, 200  # characters kept
OF_LAUNCHERS = re.compile(r"ChildFailedError|SignalException|RendezvousGracefulExit|subprocess\.CalledProcessError")
OVER = frozenset({"exception", "collective_timeout", "gloo_timeout", "failed", "failure", "connection_closed"})
TORCHELASTIC = frozenset({"failed", "failure", "told_to_end"})
_SIZE = re.compile(r"(?:world|World|WORLD)[_ ]?(?:size|SIZE|Size)\W{1,4}(\d{1,6})\b")
_SIZES = re.compile(r"global_world_sizes=\[(\d{1,6})")
_TIMED = re.compile(r"\d\d:\d\d:\d\d")


@dataclass(slots=True)
class _Pages:
    """One author's lines."""

    first: list[LogEvent] = field(default_factory=list)
    last: deque[LogEvent] = field(default_factory=lambda: deque(maxlen=KEPT))
    stacks: tuple[int, float | None, Stacks] | None = None  # how telling, when, which
    times: list[float] = field(default_factory=list)  # first and last

    def add(self, said: LogEvent) -> None:
        (self.first if len(self.first) < KEPT else self.last).append(said)

    def timed(self, at: float | None) -> None:
        if at is not None:
            self.times = [min([at, *self.times]), max([at, *self.times])]

    def show(self, worth: int, at: float | None, stacks: Stacks) -> None:
        """Of stacks that are equally telling the last counts."""
        if self.stacks is None or worth >= self.stacks[0]:
            self.stacks = worth, at, stacks


class Journal:
    """Takes what was found in a file, in the order of the file."""

    def __init__(self, source: Source, told: Habits) -> None:
        self.name, self.told = source.name, told
        self.place = place_of(source)
        self.authors = Authors(self.place, source.head.decode("utf-8", "replace"), told)
        self.run = self.place.process.run
        self.pages: dict[tuple[int, Author], _Pages] = defaultdict(_Pages)
        self.ends: list[tuple[int, Author, End]] = []
        self.told_at: dict[int, int] = {}  # PID -> line at which its launcher told it to end
        self.forced: set[int] = set()  # PIDs of those that their launcher killed in the end
        self.kinds: set[str] = set()  # of this run
        self.seen: set[str] = set()  # of the whole file
        head = source.head.decode("utf-8", "replace")
        self.size = max((int(found[1]) for found in chain(_SIZE.finditer(head), _SIZES.finditer(head))), default=None)

    def add(self, kind: str, spot: Spot, line: Line, match: re.Match[str]) -> None:
        """A line of one of the known forms."""
        fields = {name: value.strip() for name, value in match.groupdict().items() if value}
        if self._turned(kind, fields):
            return
        self.authors.learn(kind, line, fields)
        author = self.authors.of(line)
        if kind in ("nccl_rank", "ray_worker"):
            self._sized(fields.get("size"))
            return
        text = line.text
        if kind == "exception":
            raised = self._raised(spot, line)
            if raised is None or OF_LAUNCHERS.search(raised.type):
                return
            fields, text = _fields_of(raised), raised.text
        elif kind == "fatal_error":
            self._crashed(author, spot, line)
        elif kind == "failed_stack" and (stacks := watchdog_stack(spot.after(40))):
            self._page(author).show(2, line.at, stacks)
        elif kind == "failure":
            found = failure(spot)
            fields |= found.fields
            self.ends.append((self.run, Author(rank=found.rank, host=found.host, pid=found.pid), found.end))
            author = Author(rank=found.rank, host=found.host, pid=found.pid)
            if found.raised is not None:
                self._say(author, "exception", found.raised.text, spot, line, _fields_of(found.raised))
                self._page(author).show(1, line.at, found.raised.stacks)
        elif kind == "told_to_end":
            self.told_at[int(fields["pid"])] = spot.number
        elif kind == "would_not_end":
            author = Author(pid=int(fields["pid"]))
            self.forced.add(int(fields["pid"]))
        else:
            self.ends += [(self.run, process, end) for process, end in ends_of(kind, fields, line)]
        if kind in ("clients_missing", "barrier_of_store"):
            self._sized(fields.get("expected"))
        if kind == "exception" and raised is not None and raised.uncaught:
            self._page(author).show(1, line.at, raised.stacks)
        self._say(author, kind, text, spot, line, fields)

    def _say(
        self, author: Author, kind: str, text: str, spot: Spot, line: Line, fields: Mapping[str, str | None]
    ) -> None:
        more = {"group": line.group, "group_name": line.group_name}
        more["group_rank"] = str(line.group_rank) if line.group_rank is not None else None
        told = {name: _shown(name, value)[:FIELD] for name, value in {**more, **fields}.items() if value}
        said = LogEvent(kind, redact_text(text[: 4 * TEXT])[:TEXT], self.name, spot.number, line.at, told)
        page = self._page(author)
        page.add(said)
        page.timed(line.at)
        self.kinds.add(kind)
        self.seen.add(kind)

    def _page(self, author: Author) -> _Pages:
        key = self.run, author
        return self.pages[key] if key in self.pages or len(self.pages) < MOST_AUTHORS else _Pages()

    def _sized(self, size: str | None) -> None:
        if size and int(size) < 10**6:
            self.size = max(int(size), self.size or 0)

    def _turned(self, kind: str, fields: Mapping[str, str]) -> bool:
        """Whether the line only tells that the job starts (again); counts the starts."""
        if kind not in ("start", "restart"):
            return False
        count = fields.get("count")
        if count is not None:
            self.run = self.place.process.run + int(count[:6])
        elif kind == "restart" or self.kinds & OVER:
            self.run += 1
        self.kinds = set() if self.kinds & OVER else self.kinds
        return True

    def _raised(self, spot: Spot, line: Line) -> Raised | None:
        """The traceback that begins on this line."""
        front = spot.text.partition(HEADING)[0]
        if "traceback :" in front:
            return None  # in the table of a launcher, which is read as a whole
        timed = bool(_TIMED.search(front))
        if any(CHAIN.search(text) and (timed or text.startswith(front)) for text in spot.before(4)):
            return None  # was read with the one that it came of
        return read(self._following(spot, line, HEADING))

    def _crashed(self, author: Author, spot: Spot, line: Line) -> None:
        """The stacks that Python's fault handler wrote, and the signal."""
        texts = takewhile(lambda text: FATAL not in text, self._following(spot, line, FATAL))  # the next is another's
        for dump in islice(dumps(chain([line.text], texts)), 1):
            self._page(author).show(2, line.at, dump.stacks)
            self.ends += [(self.run, author, more.record) for more in dump.more if isinstance(more.record, End)]

    def _following(self, spot: Spot, line: Line, heading: str) -> Iterator[str]:
        """The lines that the author of this one wrote after it, without what stands in front of them."""
        prefix = spot.raw[: spot.raw.find(heading.encode())]
        if prefix.strip() and not _TIMED.search(prefix.decode("utf-8", "replace")):
            return spot.beginning(prefix, 600)
        return self._written_by(line, spot)

    def _written_by(self, line: Line, spot: Spot) -> Iterator[str]:
        mine = (line.rank, line.local, line.host, line.pid)
        for text in spot.after(3000):
            other = parse(text, self.told)
            if (other.rank, other.local, other.host, other.pid) == mine or mine == (None, None, None, None):
                yield other.text

    def pieces(self, tally: Tally) -> Iterator[Piece]:
        """All that was found; of each author the lines, then the stack, then the end."""
        for rank, at in self.authors.seen(tally, self.told):
            self._page(Author(rank=rank)).timed(at)
        whose: dict[tuple[int, ProcessRef], list[_Pages]] = defaultdict(list)
        for (run, author), page in self.pages.items():
            whose[run, self.authors.resolve(author, run)].append(page)
        launcher, told = self._launcher(), self._told()
        for (_, process), pages in whose.items():
            said = sorted(chain.from_iterable((*page.first, *page.last) for page in pages), key=lambda one: one.line)
            if (line := told.get((process.run, process.rank))) is not None:
                said = [_torn_down(one) if one.kind == "exception" and one.line > line else one for one in said]
            times = [at for page in pages for at in page.times]
            lines = tally.lines if self.authors.alone else 0
            logs = Logs(tuple(said), lines, min(times, default=None), max(times, default=None))
            yield Piece(process, "logs", logs, logs.last, self.size, None, launcher)
            if (process.rank, process.pid) == (None, None):
                continue
            shown = max((page.stacks for page in pages if page.stacks), key=lambda one: one[0], default=None)
            if shown is not None:
                yield Piece(process, "stacks", shown[2], shown[1], self.size, None, launcher)
            if _left(said):
                yield Piece(process, "end", End(code=1), None, self.size, None, launcher)
        for run, author, end in self.ends:
            process = self.authors.resolve(author, run)
            if author.pid in self.forced and end.signal == signal.SIGKILL:
                end = End(signal=signal.SIGTERM, at_s=end.at_s)  # its launcher's doing, as with the others
            tasks_are_ranks = not self.seen & TORCHELASTIC or "slurm_task" not in self.seen
            if (process.rank is not None and tasks_are_ranks) or process.pid is not None:
                yield Piece(process, "end", end, None, self.size, None, launcher)

    def _told(self) -> dict[tuple[int, int | None], int]:
        """By run and rank the line at which its launcher told it to end."""
        ends = ((run, author) for run, author, _ in self.ends if author.rank is not None)
        return {(run, process.rank): self.told_at[process.pid] for run, process in ends if process.pid in self.told_at}

    def _launcher(self) -> str | None:
        if self.seen & TORCHELASTIC or self.place.torchrun:
            return "torchrun"
        return "mpi" if "mpi_end" in self.seen else "slurm" if "slurm_task" in self.seen else None


def _torn_down(one: LogEvent) -> LogEvent:
    """An exception that came of the launcher's signal."""
    return replace(one, fields={**one.fields, TEARDOWN: "yes"})


def _fields_of(raised: Raised) -> dict[str, str | None]:
    site = raised.frames[0] if raised.frames else None
    return {
        "type": raised.type,
        "message": raised.message,
        "cause": raised.causes[0] if raised.causes else None,
        "uncaught": "yes" if raised.uncaught else None,
        "site": f"{site.function} ({site.short}:{site.line})" if site else None,
    }


def _left(said: list[LogEvent]) -> bool:
    """It has ended by an exception that nobody caught, and not after it had waited for others until a timeout."""
    kinds = {one.kind for one in said}
    return any("uncaught" in one.fields for one in said if one.kind == "exception") and not kinds & WAITED


def _shown(name: str, value: str) -> str:
    """A field without secrets; the name of a process group may be a hash."""
    return redact_identifier(value) if name.startswith("group") else redact(name, value)
