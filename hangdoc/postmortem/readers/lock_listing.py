"""Listings of a lock file (`ls -l`, `stat`) beside `date`, and who has it open (`fuser`, `lsof`, `pgrep` of compilers).

A lock file of torch's FileBaton (`.../torch_extensions/.../lock`) exists only while somebody builds; one that is older
than a build and open in no process was left behind by a process that was killed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._host_context import HostContext
from hangdoc.postmortem.readers._host_names import prompt_of
from hangdoc.postmortem.readers._text_source import text_source

KIND = "stale_lock"  # of the event of a listing

MAX_LINE = 2000  # characters
MAX_FILES = 64
MAX_SEARCHED = 5000  # lines, for the first listing
OLD_S = 600.0  # a build of an extension seldom takes longer

_PATH = r"\S{1,400}"
_LISTED = re.compile(
    r"\s*-[rwxsStT-]{9}[.+@]?\s+\d{1,5}\s+\S{1,64}\s+\S{1,64}\s+\d{1,15}\s+"
    r"(?P<when>\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?(?:\.\d{1,9})?(?: [+-]\d{4})?"
    r"|[A-Z][a-z]{2}\s+\d{1,2}\s+(?:\d\d:\d\d|\d{4}))"
    rf"\s+(?P<name>{_PATH})\s*"
)
_STAT_FILE = re.compile(r"\s*File: [\"'`]?(?P<name>[^\s\"'`]{1,400})[\"'`]?\s*")
_STAT_TIME = re.compile(r"\s*Modify: (?P<when>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})?(?: [+-]\d{4})?)\s*")
_DATE = re.compile(
    r"\s*(?:[A-Z][a-z]{2},? (?P<month>[A-Z][a-z]{2})\s+(?P<day>\d{1,2}) (?P<time>\d\d:\d\d:\d\d)(?: [AP]M)? "
    r"(?:[A-Z+\d]{2,6} )?(?P<year>\d{4})"
    r"|[A-Z][a-z]{2},? (?P<day_first>\d{1,2}) (?P<its_month>[A-Z][a-z]{2}) (?P<its_year>\d{4}) "
    r"(?P<its_time>\d\d:\d\d:\d\d)(?: [AP]M)?(?: [A-Z+\d]{2,6})?"
    r"|(?P<iso>\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d)?)?)(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)\s*"
)
_USERS = re.compile(
    r"(?:^|[;&|] {0,4})(?:sudo )?(?:(?:fuser|lsof)\b.*lock|pgrep\b.*(?:ninja|nvcc|cc1plus|c\+\+|cicc|ptxas))"
)
# A process, as `pgrep`, `fuser` and `lsof` print it. Other commands of the same line print their own.
_USER = re.compile(
    r"(?!total |[-dl][rwxsStT-]{9})"  # rows of `ls -l`
    r"(?:\s*(?:/\S{1,400}:\s*)?(?:[a-z_][\w.-]{0,31}\+?\s+)?\d{2,9}[a-z]{0,6}(?:\s|$)"
    r"|[A-Za-z]\S{0,63}\s+\d{2,9}\s)"
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class LockListingReader:
    name = "listing of a lock file"
    order = 46
    marks = ("lock",)
    help = "`ls -l --time-style=full-iso LOCKFILE; date; fuser -v LOCKFILE`"

    def recognises(self, source: Source) -> bool:
        if b"lock" not in source.head:
            return False
        lines = source.head_text.split("\n", MAX_SEARCHED)[:MAX_SEARCHED]
        listed = (_LISTED.fullmatch(text) or _STAT_FILE.fullmatch(text) for text in lines if len(text) < MAX_LINE)
        return any(found and _is_lock(found["name"]) for found in listed)

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        source = text_source(source, context)
        found = _Listing()
        with source.open() as file:
            for number, raw in enumerate(file, 1):
                found.feed(raw[:MAX_LINE].decode("utf-8", "replace").rstrip("\r\n"), number)
        hosts = HostContext(source.head)
        for event in found.events(source.name):
            yield Piece(ProcessRef(host=hosts.at(event.line) or found.host), "logs", Logs((event,)))


@dataclass(slots=True)
class _Listing:
    files: dict[str, tuple[str, int]] = field(default_factory=dict)  # name -> when it was written, line
    now: datetime | None = None
    asked: bool = False  # a command showed who uses the file
    used: bool = False  # and it showed somebody
    host: str | None = None  # on which the lock file was listed, by the prompt
    _prompted: str | None = None
    _answering: bool = False
    _stat: str = ""

    def feed(self, text: str, number: int) -> None:
        if prompt := prompt_of(text):
            self._answering = bool(_USERS.search(prompt.command))
            self.asked |= self._answering
            self._prompted = prompt.host if prompt.states_host else self._prompted
            return
        if not text.strip():
            self._answering = False
            return
        if listed := _LISTED.fullmatch(text):
            self._add(listed["name"], listed["when"], number)
        elif stat := _STAT_FILE.fullmatch(text):
            self._stat = stat["name"]
        elif (written := _STAT_TIME.fullmatch(text)) and self._stat:
            self._add(self._stat, written["when"], number)
        elif date := _DATE.fullmatch(text):
            self.now = _now(date)
        elif self._answering and _USER.match(text):
            self.used = True

    def _add(self, name: str, when: str, number: int) -> None:
        if len(self.files) < MAX_FILES and _is_lock(name):
            self.files.setdefault(name, (when, number))
            self.host = self.host or self._prompted

    def events(self, source: str) -> Iterator[LogEvent]:
        """The files that are old, and open in no process."""
        if not self.asked or self.used:
            return
        for name, (when, number) in self.files.items():
            written = _written(when, self.now)
            age_s = (self.now - written).total_seconds() if self.now and written else None
            if age_s is not None and age_s >= OLD_S:
                text = f"{name} was written {timedelta(seconds=int(age_s))} before, and no process has it open"
                yield LogEvent(KIND, text, source, number, None, {"path": name, "age_s": str(int(age_s))})


def _is_lock(name: str) -> bool:
    return name.rpartition("/")[2].lower().endswith(("lock", ".lck", "lockfile"))


def _now(date: re.Match[str]) -> datetime | None:
    try:
        if date["iso"]:
            return datetime.fromisoformat(date["iso"].replace("T", " "))
        hour, minute, second = map(int, (date["time"] or date["its_time"]).split(":"))
        year, month = int(date["year"] or date["its_year"]), _MONTHS.index(date["month"] or date["its_month"]) + 1
        return datetime(year, month, int(date["day"] or date["day_first"]), hour, minute, second)
    except ValueError:
        return None


def _written(when: str, now: datetime | None) -> datetime | None:
    """In local time, as `date` prints it; without a year, it is that of `date` or the one before."""
    try:
        if when[0].isdigit():
            return datetime.fromisoformat(when[:10] + " " + when[11:16])
        month, day, rest = when.split()
        at = _MONTHS.index(month) + 1
        if ":" not in rest:
            return datetime(int(rest), at, int(day))
        if now is None:
            return None
        hour, minute = map(int, rest.split(":"))
        found = datetime(now.year, at, int(day), hour, minute)
        return found if found <= now + timedelta(days=1) else found.replace(year=now.year - 1)
    except ValueError:
        return None


READER = LockListingReader()
