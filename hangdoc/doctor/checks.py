"""What hangdoc can see on this host. Each check tries the real operation if that is harmless."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hangdoc.system import node_socket, procfs, programs
from hangdoc.system.permissions import hidden_processes

_DAC_READ_SEARCH, _SYS_PTRACE = 2, 19  # bits of linux/capability.h
_CONNECT_S = 1.0  # to the daemon of this node
_OLDEST_PYTHON = (3, 10)
_OLDEST_KERNEL = (4, 9)  # first with the ages and counters in tcp_info that network verdicts need
_CONTAINER_FIX = "start the container with --pid=host --cap-add SYS_PTRACE, or run hangdoc in the job's own"
# Stands in for a rank: prints the address of 8 known bytes, and exits by itself if hangdoc dies first.
_TEST_PROGRAM = (
    "import ctypes, time; b = ctypes.create_string_buffer(b'hangdoc!');"
    " print(ctypes.addressof(b), flush=True); time.sleep(20)"
)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that hangdoc needs or can use."""

    name: str
    ok: bool | None  # None: could not be checked, or optional
    detail: str
    fix: str = ""  # one line; empty: nothing to fix


def checks() -> tuple[Check, ...]:
    """All checks of this host, in about 0.2 s. Starts one small process of its own and ends it."""
    with _test_process() as process:
        found = [
            _python(),
            _kernel(),
            *_guarded("py-spy", _py_spy),
            *_guarded("ptrace right", _ptrace_right),
            *_guarded("read another process", lambda: _dump(process)),
            *_guarded("process_vm_readv", lambda: _read_memory(process)),
            *_guarded("kernel stack", _kernel_stack),
            *_guarded("wait channel", lambda: _wchan(process)),
            *_guarded("PID namespace", _pid_namespace),
            *_guarded("other users' processes", _hidden),
            *_guarded("jobs of other users", _other_users),
            *_guarded("node daemon", _node_daemon),
            *_guarded("kernel log", _kernel_log),
            *_guarded("network namespaces", _network_namespaces),
            *_guarded("sock_diag", _sock_diag),
            *_guarded("cgroup", _cgroup),
            _ssh(),
            _cluster_shell(),
        ]
    return tuple(found)


def _guarded(name: str, check: Callable[[], Check]) -> Iterator[Check]:
    """Turn an unexpected exception into a failed check."""
    try:
        yield check()
    except Exception as error:
        yield Check(name, None, f"check failed: {type(error).__name__}: {error}", "run hangdoc as root")


@dataclass(frozen=True, slots=True)
class _TestProcess:
    pid: int
    address: int


@contextmanager
def _test_process() -> Iterator[_TestProcess | None]:
    """A Python process that is not our descendant: yama lets a process read its own children, which proves nothing.

    The shell that starts it exits at once, so it becomes an orphan.
    """
    started = None
    script = '"$0" -c "$1" & echo $!'
    shell = subprocess.Popen(
        ["/bin/sh", "-c", script, sys.executable, _TEST_PROGRAM],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",  # `python -c` imports from its working directory, which may contain someone else's ctypes.py
        start_new_session=True,
        text=True,
    )
    try:
        with shell:
            assert shell.stdout is not None
            pid = int(shell.stdout.readline() or "0")
            before = procfs.stat(pid)
            address = shell.stdout.readline()
        started = (pid, before.start_ticks) if before else None
        yield _TestProcess(pid, int(address)) if address.strip() else None
    finally:
        if started and _runs(*started):
            os.kill(started[0], signal.SIGKILL)
            deadline = time.monotonic() + 1.0
            while _runs(*started) and time.monotonic() < deadline:
                time.sleep(0.005)


def _runs(pid: int, start_ticks: int) -> bool:
    """True while this very process runs: not a zombie, and not another process with a reused PID."""
    now = procfs.stat(pid)
    return now is not None and now.start_ticks == start_ticks and now.state not in "ZX"


# --- the checks -----------------------------------------------------------------------------------


def _python() -> Check:
    version = platform.python_version()
    if sys.version_info[:2] >= _OLDEST_PYTHON:
        return Check("python", True, version)
    return Check("python", False, version, "install Python 3.10 or later")


def _kernel() -> Check:
    release = platform.release()
    version = tuple(int(part) for part in release.replace("-", ".").split(".")[:2] if part.isdecimal())
    if version >= _OLDEST_KERNEL:
        return Check("kernel", True, f"Linux {release}")
    return Check(
        "kernel",
        False,
        f"Linux {release}: its tcp_info lacks what network verdicts need",
        "update to Linux 4.9 or later",
    )


def _py_spy() -> Check:
    binary = programs.py_spy()
    install = f"{sys.executable} -m pip install --force-reinstall py-spy"
    if binary is None:
        return Check(
            "py-spy", False, "not found next to this Python, nor in a folder of PATH that only root can write", install
        )
    answer = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=False)
    if answer.returncode:
        return Check("py-spy", False, f"{binary} does not run", install)
    return Check("py-spy", True, f"{answer.stdout.strip()} ({binary})")


def _has(capability: int) -> bool:
    return bool(int(procfs.status(os.getpid()).get("CapEff", "0"), 16) >> capability & 1)


def _ptrace_right() -> Check:
    scope = (procfs.text("/proc/sys/kernel/yama/ptrace_scope") or "").strip()
    has = _has(_SYS_PTRACE)
    yama = f"yama scope {scope}" if scope else "no yama"
    who = f"uid {os.geteuid()}, {'with' if has else 'without'} CAP_SYS_PTRACE, {yama}"
    if scope == "3":
        fix = "set kernel.yama.ptrace_scope=1 in /etc/sysctl.d and reboot: scope 3 cannot be changed at run time"
        return Check("ptrace right", False, who, fix)
    if has:
        return Check("ptrace right", True, who)
    if scope in ("", "0"):
        return Check("ptrace right", True, f"{who}: only processes of this user")
    return Check("ptrace right", False, who, "run hangdoc as root, or: sudo sysctl kernel.yama.ptrace_scope=0")


def _dump(process: _TestProcess | None) -> Check:
    binary, name = programs.py_spy(), "read another process"
    if binary is None or process is None:
        return Check(name, None, "not tried: py-spy or the test process is missing", "install py-spy first")
    command = [binary, "dump", "--json", "--full-filenames", "--nonblocking", "--pid", str(process.pid)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    if answer.returncode == 0:
        return Check(name, True, "py-spy read the stack of a process that is not our child")
    lines = (answer.stderr.strip() or "no reason given").splitlines()
    return Check(name, False, lines[0][:160], _read_fix())


def _read_fix() -> str:
    return _CONTAINER_FIX if _in_container() else "run hangdoc as root, or: sudo sysctl kernel.yama.ptrace_scope=0"


class _Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def _read_memory(process: _TestProcess | None) -> Check:
    name = "process_vm_readv"
    if process is None:
        return Check(name, None, "not tried: the test process did not start", "run hangdoc doctor again")
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(8)
    here = _Iovec(ctypes.addressof(buffer), 8)
    there = _Iovec(process.address, 8)
    got = libc.process_vm_readv(process.pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    if got == 8 and buffer.raw == b"hangdoc!":
        return Check(name, True, "memory of a process that is not our child can be read")
    return Check(name, False, os.strerror(ctypes.get_errno()), _read_fix())


def _kernel_stack() -> Check:
    if procfs.read("/proc/self/stack") is not None:
        return Check("kernel stack", True, "/proc/PID/stack is readable")
    refused = "/proc/PID/stack is refused: for a blocked storage call hangdoc sees only the wait channel"
    return Check("kernel stack", None, refused, "run hangdoc as root")


def _wchan(process: _TestProcess | None) -> Check:
    pid = process.pid if process else os.getpid()
    found = procfs.text(f"/proc/{pid}/wchan")
    if process and found not in (None, "", "0"):
        return Check("wait channel", True, f"/proc/PID/wchan is readable ({found})")
    return Check("wait channel", None, "/proc/PID/wchan is empty here", "run hangdoc as root, on the host itself")


def _in_container() -> bool:
    marked = any(os.path.exists(path) for path in ("/.dockerenv", "/run/.containerenv"))
    return marked or "container" in os.environ or not _in_first_namespace()


def _in_first_namespace() -> bool:
    """True in the host's own PID namespace, whose inode is fixed (PROC_PID_INIT_INO, include/linux/proc_ns.h)."""
    return procfs.link("/proc/self/ns/pid") == "pid:[4026531836]"


def _pid_namespace() -> Check:
    if _in_first_namespace():
        return Check("PID namespace", True, "the host's own: every rank on this host is visible")
    return Check("PID namespace", None, "a container's: only its own processes are visible", _CONTAINER_FIX)


def _hidden() -> Check:
    name, why = "other users' processes", hidden_processes()
    if why is None:
        return Check(name, True, "/proc shows them")
    seen, _, fix = why.partition("; ")
    return Check(name, False, seen, f"{fix}; or mount /proc with gid=GROUP and add the user to that group")


def _other_users() -> Check:
    """The kernel asks for both capabilities: proc_pid_environ(5), proc_pid_fd(5), capabilities(7)."""
    name = "jobs of other users"
    missing = [
        text
        for bit, text in (
            (_SYS_PTRACE, "CAP_SYS_PTRACE (their stacks, memory and connections)"),
            (_DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH (their environment and files)"),
        )
        if not _has(bit)
    ]
    if not missing:
        return Check(name, True, "their environment, descriptors and memory can be read")
    fix = "run hangdoc as root, or as a service with these capabilities: deploy/systemd/hangdoc.service"
    return Check(name, None, f"not found, or not explained, without {' and '.join(missing)}", fix)


def _node_daemon() -> Check:
    """Whom hangdoc asks about jobs that it may not read."""
    name, path = "node daemon", node_socket.asked_path()
    if not path:
        fix = f"unset {node_socket.VARIABLE}: then hangdoc asks the daemon of the node about jobs that it may not read"
        return Check(name, None, f"not asked: {node_socket.VARIABLE} names no socket", fix)
    try:
        node_socket.connect(path, _CONNECT_S).close()
    except OSError as error:
        absent = isinstance(error, (FileNotFoundError, ConnectionRefusedError))
        why = "none listens" if absent else error.strerror or str(error)
        fix = "run `hangdoc daemon` as a service: then users need no ptrace right for verdicts on their own jobs"
        return Check(name, None, f"{why} at {path}", fix)
    return Check(name, True, f"listens at {path}; it is asked about jobs that hangdoc may not read itself")


def _kernel_log() -> Check:
    try:
        os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        refused = f"{error.strerror}: OOM kills and GPU errors that ended a rank stay unknown"
        return Check("kernel log", None, refused, "run hangdoc as root, or with CAP_SYSLOG")
    return Check("kernel log", True, "/dev/kmsg is readable")


def _network_namespaces() -> Check:
    """Enter our own namespace: that changes nothing, and is refused exactly if entering another would be."""
    name = "network namespaces"
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        entered = libc.setns(descriptor, 0) == 0
        reason = os.strerror(ctypes.get_errno())
    finally:
        os.close(descriptor)
    if entered:
        return Check(name, True, "connections in other network namespaces are visible")
    refused = f"{reason}: for connections in other network namespaces hangdoc sees queues but no ages"
    return Check(name, None, refused, "run hangdoc as root (CAP_SYS_ADMIN)")


def _sock_diag() -> Check:
    from hangdoc.system.sockdiag import SockDiag

    try:
        diag = SockDiag()
        list(diag.connections(()))
        diag.close()
    except OSError as error:
        return Check("sock_diag", False, str(error), "sudo modprobe tcp_diag; or run hangdoc outside the container")
    return Check("sock_diag", True, "the state of every TCP connection is visible")


def _cgroup() -> Check:
    unified, old = Path("/sys/fs/cgroup/cgroup.controllers"), Path("/sys/fs/cgroup/memory")
    hybrid = Path("/sys/fs/cgroup/unified/cgroup.controllers")
    if unified.exists():
        return Check("cgroup", True, "v2")
    if old.exists() or hybrid.exists():
        return Check("cgroup", True, "v1" + (" and v2" if hybrid.exists() else ""))
    unseen = "not mounted: CPU throttling and memory limits are invisible"
    return Check("cgroup", None, unseen, "mount -t cgroup2 none /sys/fs/cgroup")


def _ssh() -> Check:
    found = shutil.which("ssh")
    if found:
        return Check("ssh", True, found)
    return Check("ssh", None, "not found: needed only for `watch --nodes`", "install openssh-client")


def _cluster_shell() -> Check:
    if importlib.util.find_spec("ClusterShell"):
        return Check("ClusterShell", True, "importable")
    install = f"{sys.executable} -m pip install ClusterShell"
    return Check("ClusterShell", None, "not found: needed only for `watch --nodes`", install)
