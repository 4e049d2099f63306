"""SIGTERM and Ctrl-C end hangdoc within a second, with the right exit code, whatever it waits for."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import indent

import pytest

from hangdoc.system import procfs
from tests.support.pace import slowness
from tests.support.paths import ROOT
from tests.support.polling import at_rest, until
from tests.support.probe_targets import started
from tests.support.requirements import met

SYS_TGKILL = {"x86_64": 234, "aarch64": 131}.get(platform.machine(), -1)
WITHIN_S = 1.3  # a second, and what a busy test host takes to start and to reap
WAITS = {
    "a call": "time.sleep(60)",
    "cleaning up": "try: time.sleep(60)\nfinally: time.sleep(60)",
    "cleaning up that fails": "try: time.sleep(60)\nfinally: 1 / 0",
    "a thread pool": "with ThreadPoolExecutor() as pool: pool.submit(time.sleep, 60).result()",
    "a child": "subprocess.run(['sleep', '60'])",
    "a child that it cleans up for": "try: p = subprocess.Popen(['sleep', '60']); p.wait()\nfinally: p.wait()",
    "a lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "a callback of an import": (
        "code = 'class Lock:\\n def __del__(self): time.sleep(60)\\nlock = Lock()\\ndel lock\\ntime.sleep(60)'\n"
        "exec(compile(code, '<frozen importlib._bootstrap>', 'exec'), {'time': time})"
    ),
    "a reader of its output": "sys.stdout.write('x' * 10_000_000)",
}
HEAD = "import os, subprocess, sys, threading, time\nfrom concurrent.futures import ThreadPoolExecutor\n"


def begun(waits: str, *arguments: str) -> subprocess.Popen[str]:
    """The command line, whose command waits so."""
    body = f"os.write(2, b'begun\\n')\n{waits}\nreturn 0"
    invoke = f"def invoke(arguments):\n{indent(body, '    ')}\n"
    script = f"from hangdoc import cli\n{HEAD}{invoke}cli._invoke = invoke\ncli.main()"
    command = [sys.executable, "-c", script, *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == "begun\n"
    return process


def ends(process: subprocess.Popen[str], number: int, code: int, send: Callable[[], object] | None = None) -> None:
    assert process.stdout is not None
    assert process.stderr is not None
    children = procfs.children(process.pid)
    began_s = time.monotonic()
    send() if send else process.send_signal(number)
    with process:
        assert process.wait(20) == code
        assert time.monotonic() - began_s < WITHIN_S * slowness()
        assert "Traceback" not in process.stderr.read()
    until(lambda: not [pid for pid in children if procfs.stat(pid)], within_s=5)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("waits", WAITS.values(), ids=WAITS)
def test_it_ends_soon(waits: str, number: int, code: int) -> None:
    process = begun(waits)
    at_rest(process.pid, process.pid)
    ends(process, number, code)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_it_ends_though_another_thread_takes_the_signal(number: int, code: int) -> None:
    """Nothing interrupts the wait of the main thread: as where it begins to wait just after it took the signal."""
    thread = "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    process = begun(f"{thread}\n{WAITS['a lock']}")
    until(lambda: len(procfs.threads(process.pid)) > 2)
    at_rest(process.pid, process.pid)
    newest = max(procfs.threads(process.pid))
    ends(process, number, code, lambda: ctypes.CDLL(None).syscall(SYS_TGKILL, process.pid, newest, int(number)))


def test_it_ends_though_the_main_thread_takes_no_signal(tmp_path: Path) -> None:
    """It waits for a mount that does not answer, which only SIGKILL interrupts."""
    met(None if os.geteuid() == 0 and os.path.exists("/dev/fuse") else "a mount of one's own needs root and /dev/fuse")
    with started("fuse_mount.py", str(tmp_path), "run") as program:
        os.kill(program.said, signal.SIGSTOP)
        process = begun(f"os.stat('/proc/{program.pid}/root{tmp_path}/job.py')")
        until(lambda: "request_wait_answer" in (procfs.text(f"/proc/{process.pid}/wchan") or ""))
        ends(process, signal.SIGTERM, 143)


def test_a_second_signal_does_not_interrupt_the_cleaning_up(tmp_path: Path) -> None:
    done = tmp_path / "done"
    process = begun(
        "try: time.sleep(60)\n"
        "finally:\n"
        "    os.write(2, b'cleans\\n'); end = time.monotonic() + 0.3\n"
        "    while time.monotonic() < end: time.sleep(0.01)\n"
        "    open(sys.argv[1], 'w').close()",
        str(done),
    )
    at_rest(process.pid, process.pid)
    process.terminate()
    assert process.stderr is not None
    assert process.stderr.readline() == "cleans\n"
    ends(process, signal.SIGTERM, 143)
    assert done.exists()


def test_a_stop_is_no_end() -> None:
    """Ctrl-Z and `fg`: a wait for signals that the stop outlasts returns a signal that nobody sent (CPython 3.11)."""
    process = begun("time.sleep(60)")
    at_rest(process.pid, process.pid)
    for _ in range(3):
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.5)
        process.send_signal(signal.SIGCONT)
        time.sleep(0.3)
    assert process.poll() is None
    ends(process, signal.SIGTERM, 143)
