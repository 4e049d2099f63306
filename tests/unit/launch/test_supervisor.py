"""A command under hangdoc is as it is without: streams, terminal, signals, exit code, whatever happens to the watch."""

from __future__ import annotations

import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.paths import PROGRAMS, ROOT
from tests.support.polling import until

NOTES = [sys.executable, str(PROGRAMS / "signals_program.py")]
OF_GLIBC = 0b11 << 31  # signals 32 and 33, which posix_spawn(3) ignores and glibc sets anew when it needs them


def supervised(watch: str, *command: str) -> list[str]:
    return [sys.executable, str(PROGRAMS / "supervised.py"), watch, *command]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def run(watch: str, *command: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        supervised(watch, *command), input=stdin, capture_output=True, timeout=60, env=environment(), check=False
    )


@contextmanager
def running(watch: str, *command: str) -> Iterator[subprocess.Popen[str]]:
    """A supervised command in a session of its own; what is left of it is killed."""
    process = subprocess.Popen(
        supervised(watch, *command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def wait_watched(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    assert process.stderr.readline() == "hangdoc: watching\n"


def children(pid: int) -> list[int]:
    return [int(kid) for kid in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "gone"


# --- exit codes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("true",), 0),
        (("sh", "-c", "exit 3"), 3),
        (("sh", "-c", "kill -KILL $$"), 137),
        (("sh", "-c", "kill -TERM $$"), 143),
        (("no-such-command",), 127),
        (("/etc/passwd",), 126),
        (("/",), 126),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_the_exit_code_is_the_one_of_the_command(command: tuple[str, ...], code: int) -> None:
    done = run("ends", *command)
    assert (done.returncode, done.stdout) == (code, b"")
    assert bool(done.stderr) is (code in (126, 127))


def test_what_cannot_be_started_is_named() -> None:
    assert run("ends", "no-such-command").stderr == b"hangdoc: no-such-command: command not found\n"
    assert run("ends", "/etc/passwd").stderr == b"hangdoc: /etc/passwd: Permission denied\n"


def test_a_script_without_an_interpreter_line_runs_in_sh(tmp_path: Path) -> None:
    script = tmp_path / "train"
    script.write_text('echo "script $1"; exit 4\n')
    script.chmod(0o700)
    done = run("ends", str(script), "a b")
    assert (done.returncode, done.stdout) == (4, b"script a b\n")


@pytest.mark.parametrize("watch", ["ends", "fails", "crashes", "hangs"])
def test_whatever_the_watch_does_the_command_goes_on(watch: str) -> None:
    done = run(watch, "sh", "-c", "read line; echo $line; exit 3", stdin=b"hello\n")
    assert (done.returncode, done.stdout) == (3, b"hello\n")


def test_a_watch_that_was_ended_is_reported_once() -> None:
    with running("crashes", "cat") as process:
        assert process.stderr is not None
        assert (
            process.stderr.readline()
            == "hangdoc: the watch has ended (Segmentation fault); the command goes on without it\n"
        )
        assert process.communicate("still here") == ("still here", "")
        assert process.returncode == 0


def test_the_report_on_the_end_is_waited_for() -> None:
    with running("reports", "sh", "-c", "read line; exit 3") as process:
        wait_watched(process)
        assert process.communicate("now\n") == ("", "hangdoc: the end is reported, signal None\n")
        assert process.returncode == 3


def test_a_watch_that_hangs_at_the_end_is_ended() -> None:
    with running("watches", "sh", "-c", "read line; exit 3") as process:
        wait_watched(process)
        assert process.communicate("now\n") == ("", "")
        assert process.returncode == 3


# --- streams --------------------------------------------------------------------------------------


def test_ten_megabytes_pass_byte_for_byte() -> None:
    data = os.urandom(10 << 20)
    done = run("hangs", "sh", "-c", "tee /dev/stderr", stdin=data)
    assert (done.returncode, done.stdout == data, done.stderr == data) == (0, True, True)


def test_environment_arguments_folder_and_descriptors_are_ours(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    script = f'printf "%s\\n" "$1" "$PWD" "$HANGDOC_TEST"; cat /dev/fd/{reading}'
    os.write(writing, b"nine")
    os.close(writing)
    done = subprocess.run(
        supervised("ends", "sh", "-c", script, "-", "a\tb\xff"),
        capture_output=True,
        cwd=tmp_path,
        env={**environment(), "HANGDOC_TEST": " x "},
        pass_fds=[reading],
        check=False,
    )
    os.close(reading)
    assert done.stdout == f"a\tb\xff\n{tmp_path}\n x \nnine".encode()


# --- signals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("hangup", ["-", "''"], ids=["by default", "nohup"])
def test_the_command_ignores_and_blocks_what_it_would_without_hangdoc(hangup: str) -> None:
    look = ("sed", "-n", "/^Sig[BI]/p", "/proc/self/status")
    done = []
    for command in (look, supervised("ends", *look)):
        script = ("sh", "-c", f'trap {hangup} HUP; exec "$@"', "-", *command)
        lines = subprocess.run(
            script, capture_output=True, text=True, env=environment(), check=True
        ).stdout.splitlines()
        done.append({name: int(mask, 16) & ~OF_GLIBC for name, mask in map(str.split, lines)})
    assert done[0] == done[1]
    assert done[0]["SigIgn:"] & 1 == (hangup == "''")


@pytest.mark.parametrize("whole_group", [False, True], ids=["to hangdoc", "to the group"])
def test_each_signal_arrives_once(whole_group: bool) -> None:
    with running("watches", *NOTES) as process:
        assert line(process).startswith("ready")
        until(lambda: len(children(process.pid)) == 2)  # watcher and witness
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGRTMIN + 3):
            (os.killpg if whole_group else os.kill)(process.pid, number)
            assert line(process) == f"signal {number:d}"
            os.kill(process.pid, signal.SIGUSR2)  # passed on after the decision about the first
            assert line(process) == f"signal {signal.SIGUSR2:d}"
        assert process.communicate("")[0] == ""
        assert process.returncode == 7


def test_the_watch_knows_that_the_end_was_ordered() -> None:
    with running("reports", "sleep", "60") as process:
        wait_watched(process)
        os.kill(process.pid, signal.SIGTERM)
        assert process.communicate()[1] == "hangdoc: the end is reported, signal 15\n"
        assert process.returncode == 143


def test_signals_that_come_together_arrive_once() -> None:
    """As from scancel: SIGCONT and SIGTERM, to every process."""
    with running("watches", *NOTES) as process:
        assert line(process).startswith("ready")
        until(lambda: len(children(process.pid)) == 2)
        os.kill(process.pid, signal.SIGSTOP)
        os.killpg(process.pid, signal.SIGTERM)
        os.killpg(process.pid, signal.SIGHUP)
        os.killpg(process.pid, signal.SIGCONT)
        assert sorted((line(process), line(process), line(process))) == ["signal 1", "signal 15", "signal 18"]
        os.kill(process.pid, signal.SIGUSR2)
        assert line(process) == f"signal {signal.SIGUSR2:d}"
        assert process.communicate("")[0] == ""


def test_a_signal_after_the_end_ends_the_wait_for_the_watch() -> None:
    with running("reports", "sh", "-c", "read line; exit 3") as process:
        wait_watched(process)
        watcher = children(process.pid)[0]
        (command,) = children(watcher)
        os.kill(watcher, signal.SIGSTOP)
        assert process.stdin is not None
        process.stdin.write("now\n")
        process.stdin.flush()
        until(lambda: state(command) == "Z")
        began_s = time.monotonic()
        while process.poll() is None:
            os.kill(process.pid, signal.SIGINT)  # the first may come before hangdoc has noticed the end
            time.sleep(0.05)
        assert process.returncode == 3
        assert time.monotonic() - began_s < 4  # not the 5 s for the report


def test_hangdoc_killed_leaves_the_command_running() -> None:
    with running("watches", *NOTES) as process:
        assert line(process).startswith("ready")
        until(lambda: len(children(process.pid)) == 2)
        watcher, witness = children(process.pid)
        (command,) = children(watcher)
        process.kill()
        process.wait()
        until(lambda: state(watcher) in ("gone", "Z") and state(witness) in ("gone", "Z"))
        os.kill(command, signal.SIGUSR1)
        assert line(process) == f"signal {signal.SIGUSR1:d}"
        os.kill(command, signal.SIGKILL)


# --- a terminal -----------------------------------------------------------------------------------


class Terminal:
    """A real terminal with an interactive bash on it."""

    def __init__(self) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(environment(), PS1="$ ", TERM="dumb")
            os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
        self.seen = ""

    def write(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def expect(self, pattern: str, within_s: float = 20.0) -> re.Match[str]:
        """The next match in what appears; what comes before it is forgotten."""
        os.set_blocking(self.fd, False)
        limit_s = time.monotonic() + within_s
        while not (found := re.search(pattern, self.seen)):
            assert time.monotonic() < limit_s, f"no {pattern!r} in {self.seen!r}"
            try:
                self.seen += os.read(self.fd, 65536).decode()
            except BlockingIOError:
                time.sleep(0.01)
        self.seen = self.seen[found.end() :]
        return found

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    opened = Terminal()
    try:
        yield opened
    finally:
        opened.close()


def test_a_terminal_stays_one(terminal: Terminal) -> None:
    command = " ".join(supervised("watches", *NOTES))
    terminal.write(f"{command}; echo code $?\n")
    terminal.expect("ready True True")
    terminal.write("\x03")
    terminal.expect(r"signal 2\r\n")
    terminal.write("\x1c")
    terminal.expect(r"signal 3\r\n")
    assert "signal 2" not in terminal.seen
    terminal.write("\x04")
    terminal.expect(r"code 7\r\n")
    assert "signal" not in terminal.seen


def test_ctrl_z_stops_the_command_and_fg_continues_it(terminal: Terminal) -> None:
    command = " ".join(supervised("watches", *NOTES))
    terminal.write(f"{command}\n")
    terminal.expect("ready")
    for _ in range(2):
        terminal.write("\x1a")
        terminal.expect("Stopped")
        terminal.write("jobs; fg\n")
        terminal.expect(r"\[1\]\+ +Stopped")
        terminal.expect(r"signal 18\r\n")  # SIGCONT
    terminal.write("\x03")
    terminal.expect(r"signal 2\r\n")
    terminal.write("\x04")
    terminal.write("echo code $?\n")
    terminal.expect(r"code 7\r\n")


def test_ctrl_c_ends_a_command_that_does_not_catch_it(terminal: Terminal) -> None:
    # dash would lose a Ctrl-C that comes between its `echo` and the next program.
    command = supervised("reports", sys.executable, "-c", "import time; print('go', flush=True); time.sleep(60)")
    terminal.write(f"{shlex.join(command)}; echo code $?\n")
    terminal.expect(r"go\r\n")
    terminal.write("\x03")
    terminal.expect("KeyboardInterrupt")
    terminal.expect(r"code 130|\$ ")  # bash ends its own list as well


def test_a_terminal_that_hangs_up_ends_the_command(terminal: Terminal, tmp_path: Path) -> None:
    told = tmp_path / "told"
    script = f"echo $$ >{told}.new; mv {told}.new {told}; sleep 60"
    terminal.write(f"{' '.join(supervised('watches'))} sh -c '{script}'\n")
    until(told.exists)
    command = int(told.read_text())
    os.kill(terminal.pid, signal.SIGHUP)
    until(lambda: state(command) in ("gone", "Z"))
