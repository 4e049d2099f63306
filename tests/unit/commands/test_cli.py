"""The command line as its user meets it: real processes, pipes, terminals and signals over a stub engine."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hangdoc import __version__, cli
from hangdoc.commands.app import app
from hangdoc.commands.options import parse_ask
from hangdoc.commands.watch import parse_pids
from tests.support.pace import slowness
from tests.support.paths import PROGRAMS, ROOT

STUB = [sys.executable, str(PROGRAMS / "stub_cli.py")]
QUIET = {"NO_COLOR", "FORCE_COLOR", "COLUMNS", "HANGDOC_DEBUG", "TTY_COMPATIBLE"}


def environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in QUIET}
    return {**kept, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", **more}


def hangdoc(scene: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*STUB, scene, *arguments], capture_output=True, text=True, timeout=30, env=environment(**more), check=False
    )


# --- usage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["wach"], "Did you mean 'watch'"),
        (["watch", "--jsn"], "--json"),
        (["watch", "--pids", "12,abc"], "'abc' is not a PID; give numbers, as in: --pids 4276,4277"),
        (["watch", "--pids", "-5"], "'-5' is not a PID"),
        (["watch", "--pids", "0"], "'0' is not a PID"),
        (["watch", "--pids", ","], "leave --pids out"),
        (["watch", "--pids"], "--pids"),
        (["watch", "4276"], "give PIDs with --pids, as in: hangdoc watch --pids 4276"),
        (["watch", "--interval", "0"], "--interval"),
        (
            ["watch", "--ask", "ping,everything"],
            "unknown request 'everything'; choose from store, recorder, ping, dns, or all",
        ),
        (["watch", "--via", "srun", "--jobid", "$(id)"], "--jobid '$(id)' is not a Slurm job ID"),
        (["watch", "--playbooks", "/does/not/exist"], "/does/not/exist"),
        (["watch", "--"], "give a command after --, as in: hangdoc watch -- torchrun train.py"),
        (["watch", "--pids", "5", "--", "true"], "--pids: not with -- COMMAND"),
        (["watch", "--once", "--json", "--", "true"], "--once, --json: not with -- COMMAND: its stdout"),
        (["watch", "--nodes", "n1", "--", "true"], "--via/--nodes: not with -- COMMAND"),
        (["watch", "--via", "srun", "--kill-after", "5", "--", "true"], "--via srun --kill-after: not with -- COMMAND"),
        (["watch", "--kil-after", "5", "--", "true"], "--kill-after"),
        (["watch", "--kill-after", "5"], "hangdoc ends only a job that it started; add -- COMMAND"),
        (["watch", "--no-incidents", "--on-hang", "true"], "give one of --on-hang and --no-incidents"),
        (["watch", "--once", "--on-hang", "true"], "--once reports no incident"),
        (["report"], "SOURCE"),
        (["report", "/does/not/exist"], "/does/not/exist"),
        (["report", "/tmp", "--json", "--markdown"], "not both"),
        (["runbook", "no-such-playbook"], "no playbook 'no-such-playbook'"),
        (["demo", "no-such-playbook"], "no playbook 'no-such-playbook'"),
        ([], "Usage: hangdoc"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_64_and_says_what_to_do(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == cli.USAGE
    captured = capsys.readouterr()
    assert told in captured.err
    assert captured.out == ""
    assert "Traceback" not in captured.err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == f"hangdoc {__version__}\n"


@pytest.mark.parametrize("name", ["watch", "report", "runbook", "demo", "doctor"])
def test_help_has_an_example(name: str) -> None:
    result = CliRunner().invoke(app, [name, "--help"])
    assert result.exit_code == 0
    assert f"\n  hangdoc {name}" in result.stdout


@pytest.mark.parametrize(
    ("groups", "rest", "pids"),
    [
        ([], [], ()),
        (["1,2,3"], [], (1, 2, 3)),
        (["1 2", "3,"], [], (1, 2, 3)),
        (["1"], ["2", "3"], (1, 2, 3)),
        (["2,1,2"], [], (2, 1)),
    ],
)
def test_pids_in_any_form(groups: list[str], rest: list[str], pids: tuple[int, ...]) -> None:
    assert parse_pids(groups, rest) == pids


@pytest.mark.parametrize(
    ("groups", "asked"),
    [
        ([], set()),
        (["ping"], {"ping"}),
        (["ping,dns", "recorder"], {"ping", "dns", "recorder"}),
        (["all"], {"ping", "dns", "recorder", "store"}),
    ],
)
def test_what_may_be_sent(groups: list[str], asked: set[str]) -> None:
    assert parse_ask(groups) == asked


def test_completion_of_commands_and_playbooks() -> None:
    asked = {
        "hangdoc wat": "watch",
        "hangdoc runbook uneven": "uneven-batches",
        "hangdoc watch --on-hang-": "--on-hang-timeout",
    }
    for words, offered in asked.items():
        given = {"_HANGDOC_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        assert hangdoc("uneven", **given).stdout.split() == [offered]


# --- results --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scene", "code"), [("healthy", 0), ("uneven", 2), ("dead_link", 2), ("unknown", 3), ("both", 2)]
)
def test_once_exits_by_the_verdict(scene: str, code: int) -> None:
    done = hangdoc(scene, "watch", "--once")
    assert done.returncode == code
    assert "\x1b" not in done.stdout + done.stderr
    assert done.stderr.splitlines() == ["hangdoc: looking for training ranks on this host", "hangdoc: watching 3 ranks"]


def test_json_is_one_object_a_job_on_stdout_alone() -> None:
    done = hangdoc("both", "watch", "--once", "--json")
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    assert [verdict["status"] for verdict in verdicts] == ["healthy", "stalled"]
    assert verdicts[1]["findings"][0]["culprits"][0]["rank"] == 2


def test_columns_is_honoured() -> None:
    done = hangdoc("dead_link", "watch", "--once", COLUMNS="40")
    assert max(map(len, done.stdout.splitlines())) <= 40


def test_report_in_each_form(tmp_path: Path) -> None:
    assert "culprit  rank 2" in hangdoc("uneven", "report", str(tmp_path)).stdout
    assert hangdoc("uneven", "report", str(tmp_path), "--markdown").stdout.startswith("# STALLED 41 s: ")
    done = hangdoc("uneven", "report", str(tmp_path), "--json")
    assert json.loads(done.stdout)["status"] == "stalled"
    assert done.returncode == 2
    done = hangdoc("uneven", "report", str(tmp_path), "--html", str(tmp_path / "page.html"))
    assert "culprit  rank 2" in done.stdout
    assert "uneven-batches" in (tmp_path / "page.html").read_text()


def test_live_events_as_json_lines() -> None:
    done = hangdoc("uneven", "watch", "--json")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["event"] for event in events] == ["started", "verdict"]
    assert events[1]["verdict"]["status"] == "stalled"
    assert done.returncode == 2


def test_live_events_as_plain_lines() -> None:
    done = hangdoc("uneven", "watch")
    assert done.stdout.startswith("01:37:00Z  started      job none: ranks 0-2\n")
    assert "culprit  rank 2" in done.stdout
    assert "\x1b" not in done.stdout


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scene", "told"),
    [
        ("refused", "hangdoc: no training rank on this host; select a process with `hangdoc watch --pids PID`"),
        ("disk", "hangdoc: No space left on device: /x"),
        (
            "bug",
            "hangdoc: internal error, please report it: ZeroDivisionError: a bug; HANGDOC_DEBUG=1 shows the traceback",
        ),
    ],
)
def test_failure_is_a_sentence_and_3(scene: str, told: str) -> None:
    done = hangdoc(scene, "watch", "--once")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.splitlines()[-1] == told
    assert "Traceback" not in done.stderr


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANGDOC_DEBUG", "1")
    with pytest.raises(Exception, match="no playbook"):
        cli.run(["runbook", "no-such-playbook"])


def shell(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", script, "-", *STUB], capture_output=True, text=True, timeout=30, env=environment(), check=False
    )


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("long watch --once", 2),
        ("long watch --once --json", 2),
        ("uneven --help", 0),
        ("uneven runbook", 0),
    ],
)
@pytest.mark.parametrize("reader", ["head -c 1", "true"])
def test_closed_pipe_is_quiet_and_keeps_the_exit_code(arguments: str, code: int, reader: str) -> None:
    done = shell(f'"$1" "$2" {arguments} | {reader} >/dev/null; exit ${{PIPESTATUS[0]}}')
    assert done.returncode == code
    assert [line for line in done.stderr.splitlines() if not line.startswith("hangdoc: ")] == []


def test_live_watch_ends_soon_when_nobody_reads_even_without_an_event() -> None:
    began = time.monotonic()
    done = shell('"$1" "$2" healthy watch | head -n 1; exit ${PIPESTATUS[0]}')
    assert (done.returncode, done.stdout) == (0, "01:37:00Z  started      job none: ranks 0-2\n")
    assert time.monotonic() - began < 10 * slowness()


def test_both_streams_closed() -> None:
    assert shell('"$1" "$2" uneven watch --once 2>&1 | true; exit ${PIPESTATUS[0]}').returncode == 2
    assert shell('exec "$1" "$2" uneven watch --once >&- 2>&-').returncode == 2


@pytest.mark.parametrize(
    "arguments", ["watch --once", "watch --once --json", "watch", "watch --json", "--version", "runbook"]
)
def test_full_disk_is_said_once(arguments: str) -> None:
    done = shell(f'exec "$1" "$2" uneven {arguments} >/dev/full')
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1] == "hangdoc: No space left on device: standard output"
    assert "Traceback" not in done.stderr


@pytest.mark.slow("each command starts twice")
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("watch --once", 2),
        ("watch --once --json", 2),
        ("watch", 2),
        ("watch --json", 2),
        ("report stub_cli.py", 2),
        ("--version", 0),
        ("wach", 64),
    ],
)
@pytest.mark.parametrize("stderr", ["2>/dev/full", "2>&-"])
def test_a_full_disk_behind_stderr_costs_nothing_on_stdout(arguments: str, code: int, stderr: str) -> None:
    well = shell(f'cd {PROGRAMS} && exec "$1" "$2" uneven {arguments} 2>/dev/null')
    done = shell(f'cd {PROGRAMS} && exec "$1" "$2" uneven {arguments} {stderr}')
    assert (well.returncode, done.returncode) == (code, code)
    assert done.stdout == well.stdout
    assert bool(done.stdout) is (code != 64)


@pytest.mark.parametrize("arguments", ["watch --once", "watch --once --json", "watch", "watch --json", "--version"])
def test_a_full_disk_behind_both_streams(arguments: str) -> None:
    assert shell(f'exec "$1" "$2" uneven {arguments} >/dev/full 2>&1').returncode == 3


def test_text_that_the_encoding_cannot_show() -> None:
    done = hangdoc("hostile", "watch", "--once", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("arguments", [("hang", "watch", "--once"), ("healthy", "watch")])
def test_signal_ends_it_quietly(arguments: tuple[str, ...], number: int, code: int) -> None:
    process = subprocess.Popen(
        [*STUB, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("hangdoc: looking")
    time.sleep(0.2)
    process.send_signal(number)
    _, error = process.communicate(timeout=10)
    assert process.returncode == code
    assert "Traceback" not in error


def handles_sigterm(pid: int) -> bool:
    """Whether hangdoc's own handlers are in place; until then Ctrl-C is the interpreter's, which may drop it."""
    caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert caught
    return bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.02, 0.04, 0.06, 0.08, 0.12, 0.16, 0.25])
def test_interrupt_at_any_moment_of_the_start(delay_s: float) -> None:
    process = subprocess.Popen(
        [*STUB, "hang", "watch", "--once"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    while not handles_sigterm(process.pid):
        time.sleep(0.001)
    time.sleep(delay_s)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "Traceback" not in error


def test_signals_are_handled_before_anything_slow_is_imported() -> None:
    code = "import sys, hangdoc.cli; sys.exit('typer' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=environment(), check=False).returncode == 0


# --- terminals ------------------------------------------------------------------------------------


def terminal(*arguments: str, columns: int = 80, interrupt_on: str = "", **more: str) -> tuple[int, str]:
    """Run on a pseudo-terminal; Ctrl-C is typed once `interrupt_on` has appeared."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [*STUB, *arguments], stdin=slave, stdout=slave, stderr=slave, env=environment(**more), start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(slave)
    text = b""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not select.select([master], [], [], 0.1)[0]:
            continue
        try:
            chunk = os.read(master, 65536)
        except OSError:
            break
        if not chunk:
            break
        text += chunk
        if interrupt_on and interrupt_on in text.decode(errors="replace"):
            os.write(master, b"\x03")
            interrupt_on = ""
    os.close(master)
    return process.wait(5), text.decode(errors="replace")


def test_colour_and_dim_progress_on_a_terminal() -> None:
    code, text = terminal("uneven", "watch", "--once")
    assert code == 2
    assert "\x1b[1;31mSTALLED 41 s" in text
    assert "\x1b[2mhangdoc: watching 3 ranks\x1b[0m" in text


def test_no_colour_where_it_is_not_wanted() -> None:
    _, text = terminal("uneven", "watch", "--once", NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*m", text)
    _, text = terminal("uneven", "watch", "--once", TERM="dumb")
    assert "\x1b" not in text


def test_forty_columns() -> None:
    _, text = terminal("uneven", "watch", "--once", columns=40, NO_COLOR="1")
    result = text[text.index("STALLED") :]
    assert max(len(line) for line in result.replace("\r", "").split("\n")) <= 40


def test_ctrl_c_in_the_live_screen_restores_the_terminal() -> None:
    code, text = terminal("healthy", "watch", interrupt_on="HEALTHY")
    assert code == 130
    assert text.count("\x1b[?1049h") == text.count("\x1b[?1049l") == 1
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert "HEALTHY" in text[text.index("\x1b[?1049l") :]
    assert "Traceback" not in text


def test_live_screen_ends_with_the_verdict() -> None:
    code, text = terminal("uneven", "watch")
    assert code == 2
    assert "culprit" in text[text.index("\x1b[?1049l") :]
