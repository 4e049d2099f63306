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
from hangdoc.postmortem.readers._owner_hints import MAX_LINES, HostContext, prompt_of
from hangdoc.postmortem.readers._pasted_text import OwnerHints, parse_channels, text_lines
from hangdoc.postmortem.readers._text_source import text_source

MAX_LINE = 2000  # characters
MAX_THREADS = 4096  # of one strace
MAX_FRAMES = 64
MAX_OPEN = 20_000  # descriptors with a known file
MAX_KEPT = 2000  # processes
MAX_SEARCHED = 20_000  # lines, for the first of a format
MAX_ASKED = 64  # processes that one strace follows
_SIGNS = (
    b"strace", b"resumed>", b"<unfinished", b"[<", b"/proc/", b"State:", b"state:D", b"Show Blocked", b"FUTEX_WAIT",
    b"SIGSTOP", b"LOCK_EX", b"F_SETLKW", b"</",
)  # fmt: skip
_LINE_SIGNS = (
    ")  ", ") = ", "resumed>", "<unfinished", "<detached", "</", "<pipe:", "[<", "/proc/", "State:", "state:D",
    "tached", "--- ", "+++ ", " D ",
)  # fmt: skip

_READS = "read|pread64|readv|preadv|preadv2|recvfrom|recvmsg|recv|getdents|getdents64"
_WRITES = "write|pwrite64|writev|pwritev|sendto|sendmsg|fsync|fdatasync|sync|syncfs|msync|ftruncate|fallocate"
_PATHS = (
    "open|openat|openat2|stat|lstat|fstat|newfstatat|statx|statfs|access|faccessat|faccessat2|readlink|readlinkat"
    "|unlink|unlinkat|rename|renameat|renameat2|mkdir|mkdirat|rmdir|chdir|utimensat|close|truncate"
)
_OTHERS = (
    "futex|poll|ppoll|select|pselect6|epoll_wait|epoll_pwait|epoll_pwait2|connect|accept|accept4|wait4|waitid|flock"
    "|fcntl|nanosleep|clock_nanosleep|restart_syscall|sched_yield|ioctl|rt_sigtimedwait|rt_sigsuspend|pause|io_getevents"
    "|getpid|getrusage|mmap|munmap|madvise|mprotect|brk|lseek|dup|dup2|pipe|pipe2|socket|getsockopt|setsockopt|shutdown"
    "|rt_sigaction|rt_sigprocmask|rt_sigreturn|clone|clone3|execve|exit|exit_group|getrandom|gettid|kill|tgkill"
    "|epoll_ctl|eventfd2|timerfd_settime|io_uring_enter|sysinfo|uname|prctl|sched_getaffinity|process_vm_readv"
)
_CALLS = f"{_READS}|{_WRITES}|{_PATHS}|{_OTHERS}"
_FILE_CALLS = frozenset(f"{_READS}|{_WRITES}|{_PATHS}".split("|")) - {"close", "recv", "recvfrom", "recvmsg"}
_CLOCK = r"\d\d:\d\d:\d\d(?:\.\d{1,9})?|\+?\s{0,8}\d{1,10}\.\d{6}"  # -t, -tt, -ttt, -r
_FRONT = rf"(?:\[pid\s{{1,8}}(?P<pid>\d{{1,9}})\] |(?P<bare>\d{{2,9}}) {{1,4}})?(?:(?:{_CLOCK}) {{1,4}})?"
_CALL = re.compile(rf"\s{{0,8}}{_FRONT}(?P<call>{_CALLS})\((?P<rest>.*)")
_RESUMED = re.compile(rf"\s{{0,8}}{_FRONT}<\.\.\. (?P<call>\w{{2,30}}) resumed>(?P<rest>.*)")
_SIGNAL = re.compile(rf"\s{{0,8}}{_FRONT}--- (?:stopped by )?(?P<signal>SIG[A-Z0-9]{{2,10}})\b.{{0,200}}---\s*")
_GONE = re.compile(rf"\s{{0,8}}{_FRONT}\+\+\+ (?:exited with|killed by) .{{0,60}}")
_ATTACHED = re.compile(r"\s{0,8}(?:\^C)?(?:strace: )?Process (?P<pid>\d{1,9}) (?P<how>attached|detached)\b.{0,60}")
_RESULT = re.compile(
    r"\)\s{1,40}= (?P<value>-?\d{1,20}|0x[\da-f]{1,16}|\?)(?:<[^>]{0,400}>)?(?: (?P<error>E[A-Z0-9_]{1,30}))?"
    r"(?: \([^)]{0,300}\))?(?: <(?P<seconds>\d{1,7}\.\d{1,9})>)?\s*$"
)
_RESUMING = re.compile(r"<\.\.\. resuming interrupted (?P<call>\w{2,30})")
_DESCRIPTOR = re.compile(
    r"(?:AT_FDCWD(?:<[^>]{0,400}>)?, )?(?P<fd>\d{1,7})?(?:<(?P<of>[^>]{1,400}(?:->[^>]{1,80})?)>)?"
)
_QUOTED = re.compile(r'"(?P<path>/[^"]{0,400})"')
_ADDRESS = re.compile(
    r"sin6?_port=htons\((?P<port>\d{1,5})\), (?:sin_addr=inet_addr\(\"(?P<v4>[\d.]{7,15})\"\)"
    r"|.{0,60}?inet_pton\(AF_INET6, \"(?P<v6>[\da-fA-F:.]{2,45})\")"
)
_STRACE = re.compile(r"\bstrace\b.{0,200}?\s-p\s?\d")
_STRACED = re.compile(r"(?<=\s)-p\s?((?:\d{1,9}[, ]?){1,64})")

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
_LSOF = re.compile(
    r"\s{0,4}(?P<comm>\S{1,40})\s{1,20}(?P<pid>\d{1,9})\s{1,20}(?:\d{1,9}\s{1,20}(?:\S{1,20}\s{1,20})?)?\S{1,32}\s{1,20}"
    r"(?P<fd>\d{1,7})[rwu]?[A-Za-z]?\s{1,20}(?P<type>REG|FIFO|IPv4|IPv6|DIR|CHR|unix|sock|a_inode|unknown)\s+(?P<rest>.{1,400})"
)
_FD_LINK = re.compile(
    r"\s{0,4}l[rwx-]{9}[.+@]?\s.{0,80}?\s(?:/proc/\d{1,9}/fd/)?(?P<fd>\d{1,7}) -> (?P<target>\S.{0,400}?)\s*"
)
_OPEN_OF = re.compile(r"/proc/(?P<pid>\d{1,9})/fd\b(?:/(?P<fd>\d{1,7})\b)?")

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

# Any function in place of a system call: a list of them all is far slower, and `_CALL` tells them apart.
_ANY_CALL = r"[a-z][a-z_0-9]{1,22}\("
OPENING = re.compile(
    r"(?<![\w.])(?:"
    rf"(?:\[pid\s{{1,8}}\d{{1,9}}\] |\d{{2,9}} {{1,4}}(?=(?:[\d:.]{{8,17}} )?{_ANY_CALL}))?"
    rf"(?:[\d:.]{{8,17}} (?={_ANY_CALL}))?"
    rf"(?:(?P<call>{_ANY_CALL})(?=[^)]{{0,400}}(?:,|\)\s+= |<unfinished|<detached|<\.\.\. |$))"
    r"|<\.\.\. \w{2,30} resumed>|--- (?:stopped by )?SIG|\+\+\+ (?:exited with|killed by))"
    r"|(?:strace: )?Process \d{1,9} (?:at|de)tached|\[<[\da-fx]{1,16}>\] (?:\? )?[A-Za-z_]|State:\s{1,8}[RSDTtZXI] \("
    r"|(?:==> /proc/\d{1,9}/(?:task/\d{1,9}/)?(?:stack|wchan|status|syscall) <==)"
    r"|/proc/\d{1,9}/(?:task/\d{1,9}/)?(?:stack|wchan|status|syscall)(?::|$))"
)
_DUMP = re.compile(r"\bstate:D\s+stack:|\bD [\da-f]{8,16}\s{1,8}\d{1,9}\s{1,8}\d{1,9}\s{1,8}\d{1,9} 0x[\da-f]{8}")
_NAMED = re.compile(r"\brank[ :#=]{0,2}(?P<rank>\d{1,6})\W{1,3}pid\W{0,2}(?P<pid>\d{1,9})\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Wait:
    """What one process was found in."""

    process: ProcessRef
    line: int
    call: str = ""  # system call
    fd: int | None = None
    of: str = ""  # what the descriptor or the call names: a path, "pipe:[12]"
    address: str = ""
    only: bool = False  # no call returned before
    state: str = ""  # as /proc shows it
    function: str = ""  # in the kernel
    storage: bool = False  # the function belongs to a file system
    tracer: int = 0
    seconds: float = 0.0  # of the longest call on a file that returned
    shown: str = ""  # the line


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
        files, ranks = _open_files(text_lines(source, context)), _named_ranks(text_lines(source, context))
        lines = _Count(text_lines(source, context))
        for count, piece in enumerate(parse_channels(lines, OPENING, lambda hints: _Parser(hints, lines))):
            if count >= MAX_KEPT:
                context.warn(f"{source.name}: more than {MAX_KEPT} processes; the rest were not read")
                return
            wait = piece.record
            process = wait.process
            rank = ranks.get(process.pid or 0) if process.rank is None else process.rank
            host = process.host or hosts.at(wait.line)
            wait = replace(wait, process=ProcessRef(rank, host, process.pid))
            yield from _pieces(wait, files, source.name)


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
    call = _CALL.fullmatch(text[found.start() :])
    if call is None:
        return False
    return bool(_RESULT.search(text)) or "<" in call["rest"] or call["rest"].endswith((", ", ","))


@dataclass(slots=True)
class _Count:
    """Lines, and the number of the one that was taken last."""

    texts: Iterable[str]
    line: int = 0

    def __iter__(self) -> Iterator[str]:
        for self.line, text in enumerate(self.texts, 1):  # noqa: B020
            yield text


@dataclass(slots=True)
class _Thread:
    """One thread in strace's output."""

    call: str = ""
    rest: str = ""
    open: bool = False  # the call has not returned
    returned: int = 0  # calls
    line: int = 0
    stopped: bool = False
    refused: dict[str, int] = field(default_factory=dict)  # address -> failed connects


@dataclass(slots=True)
class _Trace:
    """The output of one strace."""

    process: ProcessRef
    pid: int | None
    others: tuple[int, ...] = ()  # processes that it was asked to follow, too
    threads: dict[int | None, _Thread] = field(default_factory=dict)
    slow: tuple[float, str, str, int] | None = None  # seconds, call, arguments, line: of the longest call on a file

    def thread(self, tid: int | None) -> _Thread:
        return self.threads.setdefault(tid, _Thread()) if len(self.threads) < MAX_THREADS else _Thread()


@dataclass(slots=True)
class _Parser:
    """Parses one channel (`_pasted_text.ChannelParser`)."""

    hints: OwnerHints
    count: _Count
    pieces: list[Piece] = field(default_factory=list)
    _trace: _Trace | None = None
    _asked: tuple[int, ...] = ()  # PIDs of `strace -p`
    _file: tuple[str, int | None] | None = None  # of the next lines: "stack" and the PID
    _frames: list[tuple[str, str]] = field(default_factory=list)
    _first: int = 0
    _status: dict[str, str] = field(default_factory=dict)
    _task: tuple[int, str | None] | None = None  # blocked task of the kernel's dump

    def feed(self, text: str) -> bool:
        if len(text) > MAX_LINE:
            return False
        if prompt := prompt_of(text):
            self.end()
            asked = _STRACED.findall(prompt.command) if _STRACE.search(prompt.command) else ()
            self._asked = tuple(int(pid) for part in asked for pid in re.findall(r"\d+", part))[:MAX_ASKED]
            named = _OF.search(prompt.command)
            self._file = (named["file"], int(named["tid"] or named["pid"])) if named else None
            return False
        if self._strace(text):
            return True
        return self._proc(text)

    # --- strace -----------------------------------------------------------------------------------

    def _strace(self, text: str) -> bool:
        if attached := _ATTACHED.fullmatch(text):
            if attached["how"] == "attached" and (self._trace is None or not self._trace.threads):
                pid = int(attached["pid"])
                if self._trace is None:
                    self._end_proc()
                    self._trace = _Trace(self.hints.take(pid), pid, tuple(set(self._asked) - {pid}))
            return True
        found = _CALL.fullmatch(text) or _RESUMED.fullmatch(text) or _SIGNAL.fullmatch(text) or _GONE.fullmatch(text)
        if found is None:
            if self._trace is not None and text.strip():
                self._end_trace()
            return False
        if self._trace is None or self.hints.updated:
            self._end_trace()
            self._end_proc()
            asked = self._asked[0] if self._asked else self.hints.pid
            self._trace = _Trace(self.hints.take(asked), asked, self._asked[1:])
        groups = found.groupdict()
        tid = groups["pid"] or groups["bare"]
        thread = self._trace.thread(int(tid) if tid else self._trace.pid)
        thread.line = self.count.line
        if "signal" in groups:
            stops = groups["signal"] in ("SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU")
            thread.stopped = stops and ("stopped by" in text or thread.stopped)
            return True
        thread.stopped = False
        if "call" not in groups:
            thread.open = False
            return True
        self._call(thread, groups["call"], groups["rest"], "resumed>" in text)
        return True

    def _call(self, thread: _Thread, call: str, rest: str, resumed: bool) -> None:
        if resumed and thread.call:
            rest = f"{thread.rest}{rest}"
        if again := _RESUMING.search(rest):
            call = again["call"]
        result = _RESULT.search(rest)
        thread.call, thread.rest, thread.open = call, rest.replace("<unfinished ...>", ""), result is None
        if result is None:
            return
        thread.returned += 1
        seconds = float(result["seconds"] or 0.0)
        if (
            self._trace is not None
            and call in _FILE_CALLS
            and (self._trace.slow is None or seconds > self._trace.slow[0])
        ):
            self._trace.slow = (seconds, call, rest, self.count.line)
        if call == "connect" and result["error"] in ("ETIMEDOUT", "ECONNREFUSED", "EHOSTUNREACH", "ENETUNREACH"):
            address = _address(rest)
            if len(thread.refused) < 64:
                thread.refused[address] = thread.refused.get(address, 0) + 1

    def _end_trace(self) -> None:
        trace, self._trace = self._trace, None
        if trace is None or not trace.threads:
            return
        for pid in trace.others:
            if pid in trace.threads:
                self._end_thread(trace.threads[pid], ProcessRef(host=trace.process.host, pid=pid))
        main = trace.threads.get(trace.pid)
        if main is None:
            waits = [one for one in trace.threads.values() if one.open and one.call in (*_FILE_CALLS, "flock", "fcntl")]
            main = waits[0] if len(waits) == 1 else next(iter(trace.threads.values()))
            main = main if len(waits) == 1 or len(trace.threads) == 1 else None
        if main is not None:
            self._end_thread(main, trace.process)
        if trace.slow is not None and trace.slow[0]:
            seconds, call, rest, line = trace.slow
            fd, of = _target(call, rest)
            self._keep(_Wait(trace.process, line, call, fd, of, seconds=seconds, shown=f"{call}({rest}"))

    def _end_thread(self, chosen: _Thread, process: ProcessRef) -> None:
        refused = max(chosen.refused, key=lambda one: chosen.refused[one], default="")
        if chosen.stopped:
            self._keep(_Wait(process, chosen.line, state="T"))
        elif chosen.open:
            fd, of = _target(chosen.call, chosen.rest)
            self._keep(
                _Wait(
                    process, chosen.line, chosen.call, fd, of, _address(chosen.rest), chosen.returned == 0,
                    shown=f"{chosen.call}({chosen.rest}",
                )
            )  # fmt: skip
        elif refused and chosen.refused[refused] > 1:
            self._keep(_Wait(process, chosen.line, "connect", address=refused, shown=f"connect to {refused} fails"))

    # --- /proc ------------------------------------------------------------------------------------

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
                    _Wait(
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
                self._keep(_Wait(self.hints.take(pid), self._first, state=status["state"], tracer=tracer))
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
            self._keep(_Wait(process, line, function=function, storage=storage, state=state))

    def _keep(self, wait: _Wait) -> None:
        if wait.call or wait.state or wait.function:
            self.pieces.append(Piece(wait.process, "calls", wait))

    def end(self) -> None:
        self._end_trace()
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


def _target(call: str, rest: str) -> tuple[int | None, str]:
    """The descriptor of a call, and the file that the line names."""
    quoted = _QUOTED.search(rest[:600]) if call in frozenset(_PATHS.split("|")) else None
    if quoted:
        return None, quoted["path"]
    found = _DESCRIPTOR.match(rest)
    fd = int(found["fd"]) if found and found["fd"] else None
    return fd, (found["of"] or "") if found else ""


def _address(rest: str) -> str:
    if found := _ADDRESS.search(rest[:600]):
        return f"{found['v4'] or '[' + found['v6'] + ']'}:{found['port']}"
    return ""


def _named_ranks(lines: Iterable[str]) -> Mapping[int, int]:
    """The ranks of processes, as a sentence states them: `rank 0 (pid 3310)`."""
    found: dict[int, int] = {}
    for text in lines:
        if "ank" in text[:MAX_LINE] and len(found) < MAX_KEPT:
            for named in _NAMED.finditer(text[:MAX_LINE]):
                found.setdefault(int(named["pid"]), int(named["rank"]))
    return found


# --- open files -----------------------------------------------------------------------------------


def _open_files(lines: Iterable[str]) -> Mapping[tuple[int | None, int], str]:
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


# --- evidence -------------------------------------------------------------------------------------


def _pieces(wait: _Wait, files: Mapping[tuple[int | None, int], str], source: str) -> Iterator[Piece]:
    pid = wait.process.pid
    who = f"process {pid}" if pid is not None and pid > 0 else "the process"
    if wait.state in ("T", "t") or _STOPPED.match(wait.function):
        state = "t" if wait.function in ("ptrace_stop", "do_jobctl_trap") or wait.tracer else wait.state or "T"
        if pid is not None:
            thread = ThreadCpu(pid, "", state, 0.0, wchan=wait.function or None)
            record = Process(pid, 0, 0, state, (), None, None, 0.0, 0.0, 0, (thread,), tracer_pid=wait.tracer)
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


def _kernel_waits(wait: _Wait, who: str, source: str) -> Iterator[Piece]:
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
        return "file" if call in _FILE_CALLS or call == "close" else "other"
    return "other"


READER = ProcessTracingReader()
