"""The kernel's reports of tasks that are blocked for minutes, in `dmesg` or the journal, with their kernel stacks.

Linux 3 to 6.17, kernel/hung_task.c (`INFO: task COMM:PID blocked for more than N seconds.`), kernel/sched/core.c
(sched_show_task). The number is that of a thread. Only threads of ranks are taken: Python, torch's and NCCL's threads.
Without a stack in a file system, the line says that a task was blocked, and not by what.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._pasted_text import text_lines

OPENING = re.compile(r"INFO: task .{1,16}:\d{1,9} blocked for more than \d{1,9} seconds")
_TASK = re.compile(r"INFO: task (?P<comm>.{1,16}?):(?P<pid>\d{1,9}) blocked for more than (?P<seconds>\d{1,9}) seconds")
_HOST = re.compile(r"(?:^|\s)\d\d:\d\d:\d\d\s+([A-Za-z][\w.\-]{0,252})\s+kernel:")
_FRAME = re.compile(r"\s(?:\? )?([A-Za-z_][\w.]{1,120})\+0x[\da-f]{1,8}/0x[\da-f]{1,8}(?:\s+\[(\w{1,60})\])?")
_RANKS = re.compile(r"python|^pt_|^cuda|^nccl|^ray::|torch", re.IGNORECASE)
# Modules and functions of file systems and of the clients of their servers.
_STORAGE = re.compile(
    r"^(?:nfs|sunrpc|rpc_|xprt|fuse|ceph|libceph|lustre|ll_|ldlm|ptlrpc|osc|lov|mdc|mmfs|gpfs|beegfs|cifs|smb|9p|xfs|ext4|jbd2|btrfs)"
)
MAX_FRAMES = 40  # lines of a report after its first one
MAX_TASKS = 1000


class HungTaskReader:
    name = "kernel log with blocked tasks"
    order = 43
    marks = ("blocked for more than ",)
    help = "`dmesg -T` or `journalctl -k` of every host"

    def recognises(self, source: Source) -> bool:
        return bool(OPENING.search(source.head_text))

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        done: set[int] = set()
        for pid, piece in _tasks(text_lines(source, context), source.name):
            if pid in done:
                continue  # the kernel repeats its report
            done.add(pid)
            if len(done) > MAX_TASKS:
                context.warn(f"{source.name}: more than {MAX_TASKS} blocked tasks; the rest were not read")
                return
            yield piece


def _tasks(lines: Iterable[str], source: str) -> Iterator[tuple[int, Piece]]:
    task: re.Match[str] | None = None
    host: str | None = None
    first, since, where = 0, 0, ""
    for number, text in enumerate(lines, 1):
        if found := _TASK.search(text):
            if task is not None:
                yield _piece(task, host, where, source, first)
            named = _HOST.search(text[: found.start()])
            task = found if _RANKS.search(found["comm"]) else None
            host, first, since, where = named[1] if named else None, number, 0, ""
        elif task is not None:
            since += 1
            frame = _FRAME.search(text)
            if frame and not where and (_STORAGE.match(frame[1]) or _STORAGE.match(frame[2] or "")):
                where = frame[1]
            if since >= MAX_FRAMES or "</TASK>" in text:
                yield _piece(task, host, where, source, first)
                task = None
    if task is not None:
        yield _piece(task, host, where, source, first)


def _piece(task: re.Match[str], host: str | None, where: str, source: str, line: int) -> tuple[int, Piece]:
    pid = int(task["pid"])
    at = f" in {where}" if where else ""
    text = f"kernel: {task['comm']} (task {pid}) blocked for more than {task['seconds']} s{at}"
    fields = {"wchan": where, "seconds": task["seconds"]} | ({"storage": "yes"} if where else {})
    event = LogEvent("kernel_wait", text, source, line, None, fields)
    return pid, Piece(ProcessRef(host=host, pid=pid), "logs", Logs((event,)))


READER = HungTaskReader()
