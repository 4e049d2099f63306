"""Lines of `strace -p`: the call that each thread is in, and the longest call on a file that returned.

Formats: strace 4.8 to 6 (strace(1); src/strace.c, src/syscall.c).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from hangdoc.evidence.pieces import ProcessRef
from hangdoc.postmortem.readers._pasted_text import OwnerHints

MAX_THREADS = 4096  # of one strace
MAX_ASKED = 64  # processes that one strace follows
MAX_REFUSED = 64  # addresses

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
FILE_CALLS = frozenset(f"{_READS}|{_WRITES}|{_PATHS}".split("|")) - {"close", "recv", "recvfrom", "recvmsg"}
_CLOCK = r"\d\d:\d\d:\d\d(?:\.\d{1,9})?|\+?\s{0,8}\d{1,10}\.\d{6}"  # -t, -tt, -ttt, -r
_FRONT = rf"(?:\[pid\s{{1,8}}(?P<pid>\d{{1,9}})\] |(?P<bare>\d{{2,9}}) {{1,4}})?(?:(?:{_CLOCK}) {{1,4}})?"
CALL = re.compile(rf"\s{{0,8}}{_FRONT}(?P<call>{_CALLS})\((?P<rest>.*)")
_RESUMED = re.compile(rf"\s{{0,8}}{_FRONT}<\.\.\. (?P<call>\w{{2,30}}) resumed>(?P<rest>.*)")
_SIGNAL = re.compile(rf"\s{{0,8}}{_FRONT}--- (?:stopped by )?(?P<signal>SIG[A-Z0-9]{{2,10}})\b.{{0,200}}---\s*")
_GONE = re.compile(rf"\s{{0,8}}{_FRONT}\+\+\+ (?:exited with|killed by) .{{0,60}}")
_ATTACHED = re.compile(r"\s{0,8}(?:\^C)?(?:strace: )?Process (?P<pid>\d{1,9}) (?P<how>attached|detached)\b.{0,60}")
RESULT = re.compile(
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


@dataclass(frozen=True, slots=True)
class ProcessWait:
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


@dataclass(slots=True)
class LineCount:
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
class StraceParser:
    """Parses the output of one strace after the other."""

    hints: OwnerHints
    count: LineCount
    keep: Callable[[ProcessWait], None]
    others_end: Callable[[], None]  # called where a strace begins: what came before is complete
    asked: tuple[int, ...] = ()  # PIDs of `strace -p`
    _trace: _Trace | None = None

    def ask(self, command: str) -> None:
        """Read the command that prints the lines below."""
        asked = _STRACED.findall(command) if _STRACE.search(command) else ()
        self.asked = tuple(int(pid) for part in asked for pid in re.findall(r"\d+", part))[:MAX_ASKED]

    def feed(self, text: str) -> bool:
        if attached := _ATTACHED.fullmatch(text):
            if attached["how"] == "attached" and (self._trace is None or not self._trace.threads):
                pid = int(attached["pid"])
                if self._trace is None:
                    self.others_end()
                    self._trace = _Trace(self.hints.take(pid), pid, tuple(set(self.asked) - {pid}))
            return True
        found = CALL.fullmatch(text) or _RESUMED.fullmatch(text) or _SIGNAL.fullmatch(text) or _GONE.fullmatch(text)
        if found is None:
            if self._trace is not None and text.strip():
                self.end()
            return False
        if self._trace is None or self.hints.updated:
            self.end()
            self.others_end()
            asked = self.asked[0] if self.asked else self.hints.pid
            self._trace = _Trace(self.hints.take(asked), asked, self.asked[1:])
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
        result = RESULT.search(rest)
        thread.call, thread.rest, thread.open = call, rest.replace("<unfinished ...>", ""), result is None
        if result is None:
            return
        thread.returned += 1
        seconds = float(result["seconds"] or 0.0)
        if (
            self._trace is not None
            and call in FILE_CALLS
            and (self._trace.slow is None or seconds > self._trace.slow[0])
        ):
            self._trace.slow = (seconds, call, rest, self.count.line)
        if call == "connect" and result["error"] in ("ETIMEDOUT", "ECONNREFUSED", "EHOSTUNREACH", "ENETUNREACH"):
            address = _address(rest)
            if len(thread.refused) < MAX_REFUSED:
                thread.refused[address] = thread.refused.get(address, 0) + 1

    def end(self) -> None:
        trace, self._trace = self._trace, None
        if trace is None or not trace.threads:
            return
        for pid in trace.others:
            if pid in trace.threads:
                self._end_thread(trace.threads[pid], ProcessRef(host=trace.process.host, pid=pid))
        main = trace.threads.get(trace.pid)
        if main is None:
            waits = [one for one in trace.threads.values() if one.open and one.call in (*FILE_CALLS, "flock", "fcntl")]
            main = waits[0] if len(waits) == 1 else next(iter(trace.threads.values()))
            main = main if len(waits) == 1 or len(trace.threads) == 1 else None
        if main is not None:
            self._end_thread(main, trace.process)
        if trace.slow is not None and trace.slow[0]:
            seconds, call, rest, line = trace.slow
            fd, of = _target(call, rest)
            self.keep(ProcessWait(trace.process, line, call, fd, of, seconds=seconds, shown=f"{call}({rest}"))

    def _end_thread(self, chosen: _Thread, process: ProcessRef) -> None:
        refused = max(chosen.refused, key=lambda one: chosen.refused[one], default="")
        if chosen.stopped:
            self.keep(ProcessWait(process, chosen.line, state="T"))
        elif chosen.open:
            fd, of = _target(chosen.call, chosen.rest)
            self.keep(
                ProcessWait(
                    process, chosen.line, chosen.call, fd, of, _address(chosen.rest), chosen.returned == 0,
                    shown=f"{chosen.call}({chosen.rest}",
                )
            )  # fmt: skip
        elif refused and chosen.refused[refused] > 1:
            self.keep(
                ProcessWait(process, chosen.line, "connect", address=refused, shown=f"connect to {refused} fails")
            )


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
