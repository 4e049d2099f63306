"""The files behind the descriptors of processes, as `lsof -p PID`, `ls -l /proc/PID/fd` and `readlink` show them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

MAX_LINE = 2000  # characters
MAX_OPEN = 20_000  # descriptors with a known file

_LSOF = re.compile(
    r"\s{0,4}(?P<comm>\S{1,40})\s{1,20}(?P<pid>\d{1,9})\s{1,20}(?:\d{1,9}\s{1,20}(?:\S{1,20}\s{1,20})?)?\S{1,32}\s{1,20}"
    r"(?P<fd>\d{1,7})[rwu]?[A-Za-z]?\s{1,20}(?P<type>REG|FIFO|IPv4|IPv6|DIR|CHR|unix|sock|a_inode|unknown)\s+(?P<rest>.{1,400})"
)
_FD_LINK = re.compile(
    r"\s{0,4}l[rwx-]{9}[.+@]?\s.{0,80}?\s(?:/proc/\d{1,9}/fd/)?(?P<fd>\d{1,7}) -> (?P<target>\S.{0,400}?)\s*"
)
_OPEN_OF = re.compile(r"/proc/(?P<pid>\d{1,9})/fd\b(?:/(?P<fd>\d{1,7})\b)?")


def open_files(lines: Iterable[str]) -> Mapping[tuple[int | None, int], str]:
    """The file behind each descriptor of a process, as `lsof` and `ls -l /proc/PID/fd` name it."""
    found: dict[tuple[int | None, int], str] = {}
    pid: int | None = None
    answers: int | None = None  # the descriptor that `readlink` asks for
    for text in lines:
        if len(text) > MAX_LINE or len(found) >= MAX_OPEN:
            continue
        if asked := _OPEN_OF.search(text):
            pid, answers = int(asked["pid"]), int(asked["fd"]) if asked["fd"] else None
            if " -> " not in text:
                continue
        if link := _FD_LINK.fullmatch(text):
            found.setdefault((pid, int(link["fd"])), link["target"])
        elif answers is not None and (text.startswith("/") or re.match(r"(?:pipe|socket):\[", text)):
            found.setdefault((pid, answers), text.strip())
            answers = None
        elif opened := _LSOF.fullmatch(text):
            kind, rest = opened["type"], opened["rest"]
            path = re.search(r"(/\S.{0,300}?)(?: \(\S{1,100}:/\S{0,200}\))?(?: \(deleted\))?\s*$", rest)
            name = path[1] if path else "pipe" if kind == "FIFO" else "socket"
            found.setdefault(
                (int(opened["pid"]), int(opened["fd"])), f"fifo {name}" if kind == "FIFO" and path else name
            )
    return found
