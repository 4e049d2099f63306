"""What shows one process from outside: `strace -p`, and `stack`, `wchan`, `status` and `syscall` of `/proc/PID`.

Formats: strace 4.8 to 6 (strace(1); src/strace.c, src/syscall.c), Linux fs/proc/base.c and fs/proc/array.c, the dump of
blocked tasks by `echo w > /proc/sysrq-trigger` (kernel/sched/core.c, sched_show_task). `lsof` and `ls -l /proc/PID/fd`
name the files behind the descriptors. A call without a result, or one whose stack is in a file system, is what the
process waits in. Programs that cannot be ranks are ignored, where the text names the program.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from hangdoc.evidence import End, Process, ThreadCpu
from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._host_context import HostContext
from hangdoc.postmortem.readers._host_names import MAX_LINES, prompt_of
from hangdoc.postmortem.readers._open_files import open_files
from hangdoc.postmortem.readers._pasted_text import OwnerHints, parse_channels, text_lines
from hangdoc.postmortem.readers._strace import CALL, FILE_CALLS, RESULT, LineCount, ProcessWait, StraceParser
from hangdoc.postmortem.readers._text_source import text_source
from hangdoc.redaction.text import redact_text

MAX_LINE = 2000  # characters
MAX_FRAMES = 64
MAX_COMMAND = 200  # characters
MAX_KEPT = 2000  # processes
MAX_SEARCHED = 20_000  # lines, for the first of a format
_SIGNS = (
    b"strace", b"resumed>", b"<unfinished", b"[<", b"/proc/", b"State:", b"state:D", b"Show Blocked", b"FUTEX_WAIT",
    b"SIGSTOP", b"LOCK_EX", b"F_SETLKW", b"</",
)  # fmt: skip
_LINE_SIGNS = (
    ")  ", ") = ", "resumed>", "<unfinished", "<detached", "</", "<pipe:", "[<", "/proc/", "State:", "state:D",
    "tached", "--- ", "+++ ", " D ",
)  # fmt: skip


_OF = re.compile(r"/proc/(?P<pid>\d{1,9})(?:/task/(?P<tid>\d{1,9}))?/(?P<file>stack|wchan|status|syscall)\b")
_HEADED = re.compile(r"\s{0,8}(?:==> )?/proc/\d{1,9}(?:/task/\d{1,9})?/(?:stack|wchan|status|syscall)(?: <==|:)?\s*")
_GREPPED = re.compile(
    r"\s{0,8}/proc/(?P<pid>\d{1,9})(?:/task/(?P<tid>\d{1,9}))?/(?P<file>stack|wchan|status|syscall):(?P<rest>.*)"
)
_BARE_PID = re.compile(
    r"[\s=#*\-\[(]{0,10}(?:pid|PID|tid)?[ :=#]{0,3}(?P<pid>\d{3,9})(?: \(?[A-Za-z][\w:.-]{0,30}\)?)?[\s=#*\-\]):]{0,10}"
)
_FRAME = re.compile(
    r"\s{0,12}\[<[\da-fx]{1,16}>\]\s(?:\? )?(?P<function>[A-Za-z_][\w.]{1,120})\+0x[\da-f]{1,8}/0x[\da-f]{1,8}"
    r"(?:\s+\[(?P<module>\w{1,60})\])?\s*"
)
_WCHAN = re.compile(r"\s{0,4}(?P<function>[a-z_][a-z0-9_.]{2,80})(?=\s*$|\[?[A-Za-z_][\w.-]{0,31}@)")
_NAME = re.compile(r"Name:\s{1,8}(?P<name>\S.{0,30})")
_STATE = re.compile(r"State:\s{1,8}(?P<state>[RSDTtZXI]) \([a-z ]{2,20}\)\s*")
_PID = re.compile(r"Pid:\s{1,8}(?P<pid>\d{1,9})\s*")
_TRACER = re.compile(r"TracerPid:\s{1,8}(?P<pid>\d{1,9})\s*")
_SYSCALL = re.compile(r"\s{0,4}(?P<number>-?\d{1,3})(?: 0x(?P<first>[\da-f]{1,16}))(?: 0x[\da-f]{1,16}){5,8}\s*")
# Numbers on x86-64 (arch/x86/entry/syscalls/syscall_64.tbl).
_NUMBERS = {
    0: "read", 1: "write", 2: "open", 4: "stat", 5: "fstat", 6: "lstat", 17: "pread64", 18: "pwrite64", 19: "readv",
    73: "flock", 72: "fcntl", 74: "fsync", 75: "fdatasync", 78: "getdents", 217: "getdents64", 257: "openat",
    262: "newfstatat", 332: "statx",
}  # fmt: skip
_BLOCKED = re.compile(
    r"(?:task:(?P<comm>\S.{0,15}?)\s{1,16}state:(?P<state>[A-Z])\s.{0,40}?\bpid: {0,8}(?P<pid>\d{1,9})\b"
    r"|(?P<old>\S{1,16})\s{1,16}D [\da-f]{8,16}\s{1,8}\d{1,9}\s{1,8}(?P<old_pid>\d{1,9})\s{1,8}\d{1,9} 0x[\da-f]{8})"
)
_KERNEL_FRAME = re.compile(
    r"(?:^|\s)(?:\? )?(?P<function>[A-Za-z_][\w.]{1,120})\+0x[\da-f]{1,8}/0x[\da-f]{1,8}"
    r"(?:\s+\[(?P<module>\w{1,60})\])?"
)
_KERNEL_HOST = re.compile(r"(?:^|\s)\d\d:\d\d:\d\d\s+([A-Za-z][\w.\-]{0,252})\s+kernel:")

_RANKS = re.compile(r"python|^pt_|^cuda|^nccl|^ray::|torch|train", re.IGNORECASE)
_SERVERS = frozenset({"kthread", "fuse_dev_do_read", "fuse_dev_read", "svc_recv"})
_STOPPED = re.compile(r"do_signal_stop$|ptrace_stop$|do_jobctl_trap$")
_LOCKS = re.compile(
    r"(?:flock_lock_inode|locks_lock_inode|posix_lock_inode)(?:_wait)?$|fcntl_setlk$|nlmclnt_|nfs4_proc_lock$|nfs\d?_lock$"
)
_PIPES = re.compile(r"(?:anon_)?pipe_(?:read|wait|wait_readable)$|fifo_open$|wait_for_partner$")
# What a stack shows, the surest first, and whether it is a file system: by functions and modules of file systems and of
# the clients of their servers, and by those of drivers.
_MEANINGS = (
    (_STOPPED, False),
    (_LOCKS, False),
    (
        re.compile(
            r"nfs(?!d)|sunrpc$|rpc_|__rpc|xprt|fuse|request_wait_answer|ceph|libceph|lustre|ll_|ldlm_|ptlrpc|osc_|lov_|mdc_"
            r"|cl_sync|cl_lock|mmfs|gpfs|cxiWait|beegfs|cifs|smb2|9p|p9_|autofs|xfs_|ext4_|jbd2|btrfs_|folio_wait_bit"
            r"|wait_on_page_bit|(?:__)?wait_on_buffer|blkdev_|submit_bio_wait|io_schedule|bit_wait_io|balance_dirty_pages"
        ),
        True,
    ),
    (_PIPES, False),
    (re.compile(r"nvidia|nv_|uvm_|os_acquire|mlx5|ib_uverbs|amdgpu|kfd_|amdkfd|habanalabs"), False),
)

# Any function in place of a system call: a list of them all is far slower, and `CALL` tells them apart.
_ANY_CALL = r"[a-z][a-z_0-9]{1,22}\("
OPENING = re.compile(
    r"(?<![\w.])(?:"
    rf"(?:\[pid\s{{1,8}}\d{{1,9}}\] |\d{{2,9}} {{1,4}}(?=(?:[\d:.]{{8,17}} )?{_ANY_CALL}))?"
    rf"(?:[\d:.]{{8,17}} (?={_ANY_CALL}))?"
    rf"(?:(?P<call>{_ANY_CALL})(?=[^)]{{0,400}}(?:,|\)\s+= |<unfinished|<detached|<\.\.\. |$))"
    r"|<\.\.\. \w{2,30} resumed>|--- (?:stopped by )?SIG|\+\+\+ (?:exited with|killed by))"
    # Behind `kernel: ` or a time, a frame belongs to the report of a task above it.
    r"|(?:strace: )?Process \d{1,9} (?:at|de)tached|State:\s{1,8}[RSDTtZXI] \("
    r"|(?<!kernel: )(?<!\d\] )\[<[\da-fx]{1,16}>\] (?:\? )?[A-Za-z_]"
    r"|(?:==> /proc/\d{1,9}/(?:task/\d{1,9}/)?(?:stack|wchan|status|syscall) <==)"
    r"|/proc/\d{1,9}/(?:task/\d{1,9}/)?(?:stack|wchan|status|syscall)(?::|$))"
)
_DUMP = re.compile(r"\bstate:D\s+stack:|\bD [\da-f]{8,16}\s{1,8}\d{1,9}\s{1,8}\d{1,9}\s{1,8}\d{1,9} 0x[\da-f]{8}")
_DEBUGGER = re.compile(  # a row of `ps`
    r"\s{0,12}(?:[a-z_][\w.-]{0,31}\+?\s{1,12})?(?P<pid>\d{2,9})\s.{0,200}?(?<!\S)"
    r"(?P<command>(?:/\S{1,100}/)?(?:gdb|cuda-gdb|rocgdb|lldb|strace|ltrace|rr|py-spy|pystack|perf)\s.{0,300})"
)
_NAMED = re.compile(r"\brank[ :#=]{0,2}(?P<rank>\d{1,6})\W{1,3}pid\W{0,2}(?P<pid>\d{1,9})\b", re.IGNORECASE)


class ProcessTracingReader:
    name = "strace or /proc of a process"
    order = 44
    marks = ("strace", " resumed>", "<unfinished ...>", "[<0>]", "/stack", "/wchan", "State:\t", "state:D")
    help = "`strace -f -y -T -p PID` for some seconds, `cat /proc/PID/stack` as root, `lsof -p PID`"

    def recognises(self, source: Source) -> bool:
        if not any(sign in source.head for sign in _SIGNS):
            return False
        lines = source.head_text.split("\n", MAX_SEARCHED)[:MAX_SEARCHED]
        reported = b"blocked for more than" in source.head and b"Show Blocked State" not in source.head  # by hung_task
        return any(_opens(text, not reported) for text in lines if len(text) <= MAX_LINE)

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        source = text_source(source, context)
        first = "\n".join(text[:400] for text in islice(text_lines(source, context), MAX_LINES))
        hosts = HostContext(first.encode("utf-8", "replace"))
        files, ranks = open_files(text_lines(source, context)), _named_ranks(text_lines(source, context))
        tracers = _debuggers(text_lines(source, context)) if b"TracerPid" in source.head else {}
        lines = LineCount(text_lines(source, context))
        for count, piece in enumerate(parse_channels(lines, OPENING, lambda hints: _Parser(hints, lines))):
            if count >= MAX_KEPT:
                context.warn(f"{source.name}: more than {MAX_KEPT} processes; the rest were not read")
                return
            wait = piece.record
            process = wait.process
            rank = ranks.get(process.pid or 0) if process.rank is None else process.rank
            host = process.host or hosts.at(wait.line)
            wait = replace(wait, process=ProcessRef(rank, host, process.pid))
            yield from _pieces(wait, files, tracers, source.name)


def _opens(text: str, dumps: bool) -> bool:
    """True for a line of one of the formats; a call only with its result or as strace prints one that goes on."""
    if not text.endswith((",", ", ")) and not any(sign in text for sign in _LINE_SIGNS):
        return False
    if dumps and _DUMP.search(text):
        return True
    found = OPENING.search(text)
    if not found:
        return False
    if not found["call"]:
        return True
    call = CALL.fullmatch(text[found.start() :])
    if call is None:
        return False
    return bool(RESULT.search(text)) or "<" in call["rest"] or call["rest"].endswith((", ", ","))


@dataclass(slots=True)
class _Parser:
    """Parses one channel (`_pasted_text.ChannelParser`)."""

    hints: OwnerHints
    count: LineCount
    pieces: list[Piece] = field(default_factory=list)
    _file: tuple[str, int | None] | None = None  # of the next lines: "stack" and the PID
    _frames: list[tuple[str, str]] = field(default_factory=list)
    _first: int = 0
    _status: dict[str, str] = field(default_factory=dict)
    _task: tuple[int, str | None] | None = None  # blocked task of the kernel's dump
    _strace: StraceParser = field(init=False)

    def __post_init__(self) -> None:
        self._strace = StraceParser(self.hints, self.count, self._keep, self._end_proc)

    def feed(self, text: str) -> bool:
        if len(text) > MAX_LINE:
            return False
        if prompt := prompt_of(text):
            self.end()
            self._strace.ask(prompt.command)
            named = _OF.search(prompt.command)
            self._file = (named["file"], int(named["tid"] or named["pid"])) if named else None
            return False
        return self._strace.feed(text) or self._proc(text)

    def _proc(self, text: str) -> bool:
        if grepped := _GREPPED.fullmatch(text):
            at = (grepped["file"], int(grepped["tid"] or grepped["pid"]))
            if at != self._file:
                self._end_proc()
                self._file = at
            return self._proc_line(grepped["rest"]) or not grepped["rest"].strip()
        if _HEADED.fullmatch(text) and (named := _OF.search(text)):
            self._end_proc()
            self._file = named["file"], int(named["tid"] or named["pid"])
            return True
        if self._blocked(text):
            return True
        if self._proc_line(text):
            return True
        if (bare := _BARE_PID.fullmatch(text)) and (
            self._frames or self._file is None or self._file[0] in ("stack", "wchan")
        ):
            self._end_proc()
            self._file = (self._file or ("stack", None))[0], int(bare["pid"])
            return False  # the line may also name a rank
        if text.strip() and (self._task is None or self.count.line > self._first + MAX_FRAMES):
            self._end_proc()
        return False

    def _proc_line(self, text: str) -> bool:
        if frame := _FRAME.fullmatch(text):
            self._first = self._first or self.count.line
            if len(self._frames) < MAX_FRAMES:
                self._frames.append((frame["function"], frame["module"] or ""))
            return True
        for name, pattern in (("name", _NAME), ("state", _STATE), ("pid", _PID), ("tracer", _TRACER)):
            if found := pattern.fullmatch(text):
                if name in self._status:
                    self._end_proc()
                self._first = self._first or self.count.line
                self._status[name] = (found.groupdict().get("pid") or found.groupdict().get(name) or "").strip()
                return True
        if self._status and re.match(r"[A-Za-z_]{3,32}:\s", text):
            return True
        if self._file and self._file[0] == "wchan" and (found := _WCHAN.match(text)):
            file, self._file = self._file, None
            self._first = self.count.line
            self._frames.append((found["function"], ""))
            self._flush(file[1])
            return True
        if self._file and self._file[0] == "syscall" and (found := _SYSCALL.fullmatch(text)):
            pid, self._file = self._file[1], None
            if call := _NUMBERS.get(int(found["number"])):
                fd = int(found["first"], 16) if call not in ("open", "stat", "lstat", "openat", "statx") else None
                self._keep(
                    ProcessWait(
                        self.hints.take(pid), self.count.line, call, fd if fd is None or fd < 10**6 else None, only=True
                    )
                )
            return True
        return False

    def _blocked(self, text: str) -> bool:
        """A task in the kernel's dump of blocked tasks, with its stack."""
        if "D" in text and (found := _BLOCKED.search(text)):
            self._end_proc()
            comm = found["comm"] or found["old"] or ""
            host = _KERNEL_HOST.search(text[: found.start()])
            if found["state"] in (None, "D") and _RANKS.search(comm):
                self._task = int(found["pid"] or found["old_pid"]), host[1] if host else None
                self._first = self.count.line
            return True
        if self._task is not None and (frame := _KERNEL_FRAME.search(text)):
            if len(self._frames) < MAX_FRAMES:
                self._frames.append((frame["function"], frame["module"] or ""))
            return True
        return self._task is not None and ("Call Trace" in text or "TASK>" in text)

    def _end_proc(self) -> None:
        if self._task is not None:
            task, self._task = self._task, None
            self._flush(task[0], "D", task[1])
        elif self._frames:
            self._flush(self._file[1] if self._file else None)
        elif "state" in self._status:
            status = self._status
            if _RANKS.search(status.get("name", "python")):
                pid = int(status["pid"]) if "pid" in status else self._file[1] if self._file else None
                tracer = int(status.get("tracer") or 0)
                self._keep(ProcessWait(self.hints.take(pid), self._first, state=status["state"], tracer=tracer))
        self._status, self._first = {}, 0
        if self._file and self._file[0] != "wchan":
            self._file = None

    def _flush(self, pid: int | None, state: str = "", host: str | None = None) -> None:
        frames, self._frames = self._frames, []
        line, self._first = self._first, 0
        process = self.hints.take(pid)
        if host:
            process = ProcessRef(process.rank, host, process.pid)
        function, storage = _function(frames)
        if function or state:
            self._keep(ProcessWait(process, line, function=function, storage=storage, state=state))

    def _keep(self, wait: ProcessWait) -> None:
        if wait.call or wait.state or wait.function:
            self.pieces.append(Piece(wait.process, "calls", wait))

    def end(self) -> None:
        self._strace.end()
        self._end_proc()


def _function(frames: Sequence[tuple[str, str]]) -> tuple[str, bool]:
    """The function of a stack that shows what it waits for, and whether that is a file system.

    The threads of the kernel and the daemons that serve a file system wait there for work.
    """
    if any(function in _SERVERS for function, _ in frames):
        return "", False
    for kinds, storage in _MEANINGS:
        for function, module in frames:
            if kinds.match(function) or (module and kinds.match(module)):
                return function, storage
    return "", False


def _named_ranks(lines: Iterable[str]) -> Mapping[int, int]:
    """The ranks of processes, as a sentence states them: `rank 0 (pid 3310)`."""
    found: dict[int, int] = {}
    for text in lines:
        if "ank" in text[:MAX_LINE] and len(found) < MAX_KEPT:
            for named in _NAMED.finditer(text[:MAX_LINE]):
                found.setdefault(int(named["pid"]), int(named["rank"]))
    return found


def _debuggers(lines: Iterable[str]) -> Mapping[int, str]:
    """Command lines of debuggers by PID, in rows of `ps`."""
    found: dict[int, str] = {}
    for text in lines:
        if len(found) < MAX_KEPT and (row := _DEBUGGER.match(text[:MAX_LINE])):
            found.setdefault(int(row["pid"]), row["command"].strip())
    return found


# --- evidence -------------------------------------------------------------------------------------


def _pieces(
    wait: ProcessWait, files: Mapping[tuple[int | None, int], str], tracers: Mapping[int, str], source: str
) -> Iterator[Piece]:
    pid = wait.process.pid
    who = f"process {pid}" if pid is not None and pid > 0 else "the process"
    if wait.state in ("T", "t") or _STOPPED.match(wait.function):
        state = "t" if wait.function in ("ptrace_stop", "do_jobctl_trap") or wait.tracer else wait.state or "T"
        if pid is not None:
            thread = ThreadCpu(pid, "", state, 0.0, wchan=wait.function or None)
            command = tracers.get(wait.tracer)
            name = command.split()[0].rpartition("/")[2] if command else None
            shown = redact_text(command)[:MAX_COMMAND] if command else None
            record = Process(pid, 0, 0, state, (), None, None, 0.0, 0.0, 0, (thread,), wait.tracer, name, shown)
            yield Piece(wait.process, "cpu", record)
        return
    if wait.state in ("Z", "X"):
        if pid is not None:
            text = f"process {pid} is defunct: it has ended, and its launcher has not noticed"
            yield Piece(wait.process, "end", End())
            yield Piece(wait.process, "logs", Logs((LogEvent("defunct", text, source, wait.line),)))
        return
    if wait.function or wait.state == "D":
        yield from _kernel_waits(wait, who, source)
        return
    if not wait.call:
        return
    named = wait.of or (files.get((pid, wait.fd)) or files.get((None, wait.fd)) or "" if wait.fd is not None else "")
    on = _kind(wait.call, named, wait.address, wait.shown)
    fields = {"call": wait.call, "on": on}
    if named:
        fields["path"] = named.removeprefix("fifo ")[:300]
    if wait.address:
        fields["address"] = wait.address
    if wait.seconds:
        fields["seconds"] = f"{wait.seconds:.6f}"
        text = f"strace: {who}: {wait.shown}"
        yield Piece(wait.process, "logs", Logs((LogEvent("slow_call", text[:400], source, wait.line, None, fields),)))
        return
    fields["only"] = "yes" if wait.only else "no"
    target = f" on {fields['path']}" if named else f" to {wait.address}" if wait.address else ""
    text = f"{who} stands in {wait.call}(){target}"
    yield Piece(wait.process, "logs", Logs((LogEvent("standing_call", text[:400], source, wait.line, None, fields),)))


def _kernel_waits(wait: ProcessWait, who: str, source: str) -> Iterator[Piece]:
    at = f" in {wait.function}" if wait.function else ""
    if _LOCKS.match(wait.function) or _PIPES.match(wait.function):
        on = "lock" if _LOCKS.match(wait.function) else "pipe"
        fields = {"call": wait.function, "on": on, "only": "yes"}
        event = LogEvent("standing_call", f"{who} waits{at} in the kernel", source, wait.line, None, fields)
    else:
        fields = {"wchan": wait.function} | ({"storage": "yes"} if wait.storage else {})
        what = ", a wait for a file system" if wait.storage else ""
        state = "is in state D" if wait.state == "D" else "is blocked in the kernel"
        event = LogEvent("kernel_wait", f"{who} {state}{at}{what}", source, wait.line, None, fields)
    yield Piece(wait.process, "logs", Logs((event,)))


def _kind(call: str, named: str, address: str, shown: str) -> str:
    """What a call waits for: file, fifo, pipe, socket, server, lock, connect, other."""
    if call == "connect":
        return "connect" if address else "other"
    if call in ("flock", "fcntl"):
        return "lock" if call == "flock" or "SETLKW" in shown else "other"
    if re.match(r"(?:TCP|TCPv6|UDP|UNIX|NETLINK|socket)\b", named):
        return "server" if re.search(r"->.{1,60}:(?:80|443)\]", named) else "socket"
    if named.startswith(("pipe", "anon_inode")):
        return "pipe" if named.startswith("pipe") else "other"
    if named.startswith("fifo "):
        return "fifo"
    if named.startswith("/") and not re.match(r"/(?:dev|proc|sys)/", named):
        return "file" if call in FILE_CALLS or call == "close" else "other"
    return "other"


READER = ProcessTracingReader()
