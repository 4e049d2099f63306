"""What goes wrong in practice: each gets a clear sentence, its exit code, no traceback, and the job is left alone."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import site
import struct
import subprocess
import sys
import termios
import time
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hangdoc.demo.harness import Trial, running
from hangdoc.discovery.ranks import discover
from hangdoc.watch.sampler import Sampler
from probes import Tier
from tests.support.cli import HANGDOC
from tests.support.pace import slowness
from tests.support.paths import HEALTHY, ROOT
from tests.support.process_state import assert_untouched
from tests.support.requirements import commands, met
from tests.support.started import started

OTHER_USER = 65532  # has no process of its own, unlike `nobody`, as whom the hostile tests run jobs side by side
SITE = "train (leaves_early.py"  # where rank 0 of the hung job waits


@pytest.fixture(autouse=True)
def _left_alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test does to hangdoc, the ranks of the hung job live, run and are not traced after it."""
    yield
    if "hung" in request.fixturenames:
        pids = request.getfixturevalue("hung").rank_pids()
        assert len(pids) == 2
        assert_untouched(pids)


@dataclass(frozen=True)
class Told:
    code: int
    out: str
    progress: str

    @property
    def last(self) -> str:
        return self.progress.splitlines()[-1]


def hangdoc(*arguments: object, under: Sequence[str] = (), command: Sequence[str] = HANGDOC, **more: str) -> Told:
    """Run the real command, perhaps `under` a program that takes rights away."""
    done = subprocess.run(
        [*under, *command, *map(str, arguments)],
        cwd=ROOT, env=environment(**more), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr + done.stdout
    return Told(done.returncode, done.stdout, done.stderr)


def environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("HANGDOC_DEBUG", "COLUMNS")}
    return {**kept, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", **more}


def needs(*tools: str) -> None:
    """Rights can be taken away by root only, with tools of the system."""
    met(None if os.geteuid() == 0 else "needs root, to take rights away")
    met(commands(tools, "util-linux"))


# --- PIDs -----------------------------------------------------------------------------------------


def test_pid_that_does_not_exist() -> None:
    told = hangdoc("watch", "--once", "--pids", 2**22 + 1)
    assert told.code == 3
    assert told.last.endswith("does not exist on this host; `hangdoc watch` without --pids finds the ranks")


def test_process_that_is_not_python() -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        told = hangdoc("watch", "--once", "--pids", sleeper.pid)
        assert told.code == 3
        assert f"PID {sleeper.pid} (sleep) is not a Python process" in told.last
        assert told.last.endswith("give a rank's PID")
        assert_untouched([sleeper.pid])
        sleeper.kill()


def test_zombie() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        told = hangdoc("watch", "--once", "--pids", child.pid)
        assert told.code == 3
        assert re.search(rf"PID {child.pid} is a zombie: .* PID {os.getpid()}, .*; give a running one$", told.last)


def test_one_good_pid_among_bad_ones(hung: Trial) -> None:
    told = hangdoc("watch", "--once", "--pids", 2**22 + 1, hung.launcher_pid)
    assert told.code == 2
    assert "does not exist" in told.progress
    assert SITE in told.out


def test_rank_of_another_user(hung: Trial) -> None:
    """Its files may be read, so that the interpreter can be started wherever it lies; processes may not."""
    needs("setpriv")
    other = ["setpriv", f"--reuid={OTHER_USER}", f"--regid={OTHER_USER}", "--clear-groups"]
    other += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    for pid in (hung.launcher_pid, hung.rank_pids()[0]):
        told = hangdoc("watch", "--once", "--pids", pid, under=other)
        assert told.code == 3
        assert told.last == f"hangdoc: PID {pid} (of user 0) may not be read; run hangdoc as root"
    told = hangdoc("watch", "--once", under=other)
    assert told.code == 3
    assert re.search(r"PID \d+ looks like a training rank, but may not be read; run hangdoc as root", told.last)


def test_no_ranks_at_all() -> None:
    needs("unshare")
    for options in (["--once"], []):
        told = hangdoc("watch", *options, under=["unshare", "--pid", "--fork", "--mount-proc"])
        assert told.code == 3
        assert told.last == "hangdoc: no training rank runs on this host; start the job, or give PIDs with --pids"


def test_job_that_dies_while_watched() -> None:
    with started(partial(running, HEALTHY / "steady.py", 2), "loss") as dying:
        watch = launched("watch", "--once", "--pids", dying.launcher_pid)
        told_until(watch, "watching 2 ranks")
        time.sleep(1.5)
        for process in dying.processes():
            process.kill()
        out, error = watch.communicate(timeout=20)
    assert watch.returncode == 2, out
    assert "FAILED" in out
    assert "killed by signal 9 (SIGKILL)" in out
    assert "Traceback" not in error


def test_reused_pid_is_not_taken_for_the_rank(hung: Trial) -> None:
    targets = discover([hung.launcher_pid]).targets
    assert len(targets) == 2
    stale = replace(targets[0], start_ticks=targets[0].start_ticks - 1)
    shot = Sampler("here", [stale, targets[1]]).round(Tier.LOOK)
    assert [rank.alive for rank in shot.ranks] == [False, True]
    assert shot.ranks[0].records == {}
    assert "stacks" in shot.ranks[1].records


# --- rights ---------------------------------------------------------------------------------------


def test_without_the_right_to_trace(hung: Trial) -> None:
    """Root in a container without SYS_PTRACE: ranks are found, what is hidden is said once, and nothing is made up."""
    needs("setpriv")
    told = hangdoc("watch", "--once", "--pids", hung.launcher_pid, under=["setpriv", "--bounding-set=-sys_ptrace"])
    assert told.code == 3
    said = " ".join(told.out.split())
    assert "UNKNOWN" in said
    assert "could not see: stacks of ranks 0-1: reading the process was refused; give hangdoc CAP_SYS_PTRACE" in said
    assert "`--cap-add SYS_PTRACE`" in said


def test_with_fewer_rights_still(hung: Trial) -> None:
    """Not even the environment may be read: the sentence does not tell root to become root."""
    needs("setpriv")
    bare = ["setpriv", "--bounding-set=-all,+dac_override,+kill,+setuid,+setgid"]
    told = hangdoc("watch", "--once", "--pids", hung.rank_pids()[0], under=bare)
    assert told.code == 3
    assert "may not be read; give hangdoc CAP_SYS_PTRACE, in a container with `--cap-add SYS_PTRACE`" in told.last


REFUSE = """
import ctypes, os, struct, sys
refused = (101, 310, 311)  # ptrace, process_vm_readv, process_vm_writev on x86-64
code = [(0x20, 0, 0, 0), *((0x15, len(refused) - i, 0, n) for i, n in enumerate(refused))]
code += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050001)]
filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in code))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, struct.pack("HxxxxxxQ", len(code), ctypes.addressof(filters)), 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of the system calls are those of x86-64")
def test_ptrace_forbidden_by_seccomp(hung: Trial) -> None:
    """As under a container's old profile: the stall is told from plain stacks, and what was refused is said."""
    told = hangdoc("watch", "--once", "--pids", hung.launcher_pid, under=[sys.executable, "-c", REFUSE])
    assert told.code == 2
    said = " ".join(told.out.split())
    assert SITE in said
    assert "could not see: stacks of ranks 0-1: no native frames: reading the process was refused" in said


def test_without_py_spy(hung: Trial, tmp_path: Path) -> None:
    """An environment that lacks only that: the rest of the evidence is still there."""
    venv.create(tmp_path, symlinks=True)
    path = os.pathsep.join([str(ROOT), *site.getsitepackages(), site.getusersitepackages()])
    bare = [str(tmp_path / "bin" / "python"), *HANGDOC[1:]]
    told = hangdoc("watch", "--once", "--pids", hung.launcher_pid, command=bare, PYTHONPATH=path, PATH="/usr/bin:/bin")
    assert told.code == 3
    assert "could not see: stacks: py-spy is missing: `pip install py-spy`" in " ".join(told.out.split())


# --- playbooks ------------------------------------------------------------------------------------


def playbook(folder: Path, id: str = "mine", name: str = "", **changes: Any) -> Path:
    """A playbook of a user's own, one line a field, so that it is known where a mistake stands."""
    fields = {
        "id": id,
        "class": "collective_wait",
        "title": "Mine",
        "needs": "[stacks]",
        "select": "{stuck: stall.still}",
        "when": "job.stall.stalled and count(stuck) > 99",
        "culprits": "stuck",
        "confidence": "{base: low}",
        "summary": "Something of mine.",
        "evidence": "[]",
        "actions": "[look]",
        **changes,
    }
    path = folder / (name or id) / "playbook.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{key}: {value}\n" for key, value in fields.items()))
    return path


def test_broken_playbooks_are_named_and_the_others_go_on(hung: Trial, tmp_path: Path) -> None:
    typo = playbook(tmp_path, "typo", when="job.stall.staled")
    kind = playbook(tmp_path, "kind", when="job.stall.seconds + title > 3")
    key = playbook(tmp_path, "key", sumary="x")
    level = playbook(tmp_path, "level", confidence="{base: 7}")
    yaml = playbook(tmp_path, "yaml", title="[")
    folder = playbook(tmp_path, "renamed", "other-name")
    twin, again = playbook(tmp_path, "twin"), playbook(tmp_path / "more", "twin")
    shipped = playbook(tmp_path, "rank-left")
    mine = ["--playbooks", tmp_path, "--playbooks", tmp_path / "more"]
    told = hangdoc("watch", "--once", "--pids", hung.launcher_pid, *mine)
    assert told.code == 2
    assert SITE in told.out
    lines = [line.removeprefix("hangdoc: ") for line in told.progress.splitlines() if str(tmp_path) in line]
    for path, at, words in (
        (typo, "6", "staled"),
        (kind, "6", "title"),
        (key, "12", "sumary"),
        (level, "8", "confidence"),
        (yaml, "[345]", "not YAML"),
        (folder, "1", "differs from the folder name"),
        (again, "1", f"the id 'twin' is already used by {twin}:1, which takes precedence"),
        (shipped, "1", "the id 'rank-left' is already used by"),
    ):
        of_this = [line for line in lines if line.startswith(f"{path}:")]
        assert len(of_this) == 1, (path, lines)
        assert re.match(rf"{re.escape(str(path))}:{at}: ", of_this[0]), of_this
        assert words in of_this[0]
    assert not any(line.startswith(f"{twin}:") for line in lines), "the first of the two stays in force"


# --- the output -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "code"), [("--once", 2), ("--once --json", 2), ("--json", 0), ("", 0)])
def test_output_closed_early(hung: Trial, options: str, code: int) -> None:
    """`| head -1`: it ends by itself, without a word about the pipe."""
    script = f'"$0" -m hangdoc.cli watch --pids {hung.launcher_pid} {options} | head -1; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(
        ["bash", "-c", script, sys.executable],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == code
    assert len(done.stdout.splitlines()) == 1
    assert all(line.startswith("hangdoc: ") for line in done.stderr.splitlines()), done.stderr


def test_terminal_of_40_columns(hung: Trial) -> None:
    code, text = on_terminal("watch", "--once", "--pids", hung.launcher_pid)
    assert code == 2
    assert SITE in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 40, text


def test_live_on_a_terminal_of_40_columns_until_ctrl_c(hung: Trial) -> None:
    code, text = on_terminal("watch", "--pids", hung.launcher_pid, interrupt_on="barrier")
    assert code == 130
    assert text.count("\x1b[?1049h") == text.count("\x1b[?1049l") == 1, "the screen is given back"
    left = text[text.index("\x1b[?1049l") :]
    assert max(len(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line)) for line in left.splitlines()) <= 40, left


def on_terminal(*arguments: object, interrupt_on: str = "") -> tuple[int, str]:
    """Stdout and the keyboard are a terminal of 40 columns; Ctrl-C is typed once `interrupt_on` has appeared."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    process = subprocess.Popen(
        [*HANGDOC, *map(str, arguments)], stdin=slave, stdout=slave, stderr=subprocess.PIPE, cwd=ROOT,
        env=environment(NO_COLOR="1"), start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(slave)
    text = b""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if not select.select([master], [], [], 0.1)[0]:
            continue
        try:
            chunk = os.read(master, 65536)
        except OSError:
            break
        text += chunk
        if interrupt_on and interrupt_on.encode() in text:
            os.write(master, b"\x03")
            interrupt_on = ""
    _, error = process.communicate(timeout=10)
    os.close(master)
    assert b"Traceback" not in error, error.decode()
    return process.returncode, text.decode().replace("\r", "")


# --- Ctrl-C ---------------------------------------------------------------------------------------


def launched(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*HANGDOC, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env=environment(), start_new_session=True,
    )  # fmt: skip


def told_until(process: subprocess.Popen[str], words: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return
    raise AssertionError(f"never said {words!r}")


@pytest.mark.parametrize(
    ("words", "after_s"),
    [
        *(("looking at", after) for after in (0.0, 0.03, 0.08)),  # modules are imported, processes listed
        *(("watching", after) for after in (0.0, 0.1, 1.0)),  # first look, playbooks, between two looks
        *(("examining", after) for after in (0.0, 0.2, 0.5)),  # native dumps: the ranks are paused
    ],
)
def test_ctrl_c_at_any_moment(hung: Trial, words: str, after_s: float) -> None:
    """Typed on a terminal it reaches the whole process group, helpers included."""
    process = launched("watch", "--once", "--pids", hung.launcher_pid)
    try:
        told_until(process, words)
        time.sleep(after_s)
        ended = process.poll() is not None
        if not ended:
            os.killpg(process.pid, signal.SIGINT)
        pressed = time.monotonic()
        _, error = process.communicate(timeout=20)
        assert time.monotonic() - pressed < 4 * slowness()
        assert process.returncode == (2 if ended else 130)
        assert "Traceback" not in error
        assert "Exception ignored" not in error
    finally:
        process.kill()
