"""Stacks and locals of real processes; what may not be paused is not paused."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hangdoc.evidence import Frame, Stacks, Target
from hangdoc.introspect import py_spy
from hangdoc.system import programs
from probes import Request, Tier
from probes.stacks import PROBE, StacksProbe
from tests.support.polling import at_rest
from tests.support.probe_targets import Program, every_python, started

PROGRAM = "stacks_program.py"


def look(program: Program, tier: Tier = Tier.LOOK, still: bool = False, children: tuple[int, ...] = ()) -> Stacks:
    seen = StacksProbe().observe(program.request(tier, still, children))
    assert seen.unseen == ()
    stacks = seen.by_pid[program.pid]
    assert isinstance(stacks, Stacks)
    return stacks


def frame(stacks: Stacks, function: str, thread: str = "MainThread") -> Frame:
    (stack,) = (stack for stack in stacks.threads if stack.name == thread)
    return next(frame for frame in stack.frames if frame.function == function)


@every_python
def test_threads_frames_and_locals(python: str) -> None:
    with started(PROGRAM, python=python) as program:
        tasks = {int(task) for task in os.listdir(f"/proc/{program.pid}/task")}  # the one that said "ready" may end now
        stacks = look(program)
    assert {stack.tid for stack in stacks.threads} <= tasks
    (main,) = (stack for stack in stacks.threads if stack.name == "MainThread")
    assert main.tid == program.pid
    # The name of a function does not depend on the interpreter's version.
    assert [f.function for f in main.frames][:3] == ["wait", "fit", "<module>"]
    assert main.frames[0].file.endswith(PROGRAM)
    assert main.frames[0].line is not None
    assert main.frames[-1].variables is None  # py-spy cannot show a module's
    fit = {v.name: v for v in frame(stacks, "fit").variables or ()}
    told = {name: (v.kind, v.number, v.length) for name, v in fit.items()}
    assert told == {
        "self": ("object", None, None),
        "shard": ("list", None, 12),
        "api_token": ("str", None, 17),
        "step": ("int", 7, None),
        "rate": ("float", 0.5, None),
        "done": ("bool", 0, None),
        "nothing": ("none", None, None),
        "name": ("str", None, 6),
        "pair": ("tuple", None, 2),
        "table": ("dict", None, 1),
        "large": ("int", None, None),
        "endless": ("float", None, None),
        "long": ("str", None, 300),
        "hostile": ("str", None, 19),
    }  # not `kept`, which an inner function holds: py-spy shows no cells
    assert fit["api_token"].text == "<redacted>"
    assert len(fit["long"].text) <= 120
    assert [name for name, v in fit.items() if v.argument] == ["self", "shard", "api_token"]
    helper = {v.name: v.length for v in frame(stacks, "fit", "helper").variables or ()}
    assert helper["shard"] == 3


@pytest.mark.parametrize(
    ("tier", "still", "native"), [(Tier.LOOK, True, False), (Tier.EXAMINE, False, False), (Tier.EXAMINE, True, True)]
)
def test_native_frames_cost_a_pause_and_are_taken_only_when_allowed(tier: Tier, still: bool, native: bool) -> None:
    with started(PROGRAM) as program:
        stacks = look(program, tier, still)
        assert program.state() in "RS"
    assert stacks.native is native
    assert any(f.native for s in stacks.threads for f in s.frames) is native
    assert {v.name for v in frame(stacks, "fit").variables or ()} >= {"shard", "step"}


def test_a_stopped_process_is_seen_and_stays_stopped() -> None:
    with started(PROGRAM) as program:
        os.kill(program.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, program.pid, os.WSTOPPED)
        stacks = look(program, Tier.EXAMINE, still=True)
        assert program.state() == "T"
    assert not stacks.native
    assert frame(stacks, "wait").line is not None


def test_a_native_dump_that_is_killed_leaves_the_process_running() -> None:
    binary = programs.py_spy()
    assert binary
    rng = random.Random(1)
    held = 0
    with started(PROGRAM) as program:
        for _ in range(25):
            spy = subprocess.Popen(
                [binary, "dump", "--native", "--pid", str(program.pid)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            until = time.monotonic() + 1 + rng.random() / 20
            while spy.poll() is None and program.state() != "t" and time.monotonic() < until:
                pass
            held += program.state() == "t"
            spy.kill()
            spy.wait()
            time.sleep(0.01)
            assert program.state() in "RS"
    assert held > 0, "never caught it while it was held: the test shows nothing"


def test_helpers_of_a_rank_are_looked_at_only_when_it_is_examined() -> None:
    with started("forks_program.py") as program:
        assert look(program, Tier.LOOK, children=(program.said,)).children == ()
        at_rest(program.said)
        ((pid, threads),) = look(program, Tier.EXAMINE, children=(program.said, 2**22 + 5)).children
    assert pid == program.said
    assert "load_samples" in [f.function for f in threads[0].frames]


def test_an_unreadable_rank_is_unseen_and_hides_no_other() -> None:
    sleeper = subprocess.Popen(["sleep", "100"])
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    try:
        with started(PROGRAM) as program:
            pids = [program.pid, 2**22 + 7, sleeper.pid, zombie.pid]
            seen = PROBE.observe(Request([Target(p, 1, "here", i) for i, p in enumerate(pids)], Tier.LOOK))
    finally:
        sleeper.kill()
        sleeper.wait()
        zombie.wait()
    assert set(seen.by_pid) == {program.pid}
    whys = {unseen.rank: unseen.why for unseen in seen.unseen}
    assert "has ended" in whys[1]
    assert "not a Python process" in whys[2]
    assert "zombie" in whys[3]
    assert all("backtrace" not in why and "\n" not in why for why in whys.values())


def test_another_debugger_takes_the_native_frames_only() -> None:
    libc = ctypes.CDLL(None)
    with started(PROGRAM) as program:
        assert libc.ptrace(0x4206, program.pid, None, None) == 0  # PTRACE_SEIZE
        try:
            seen = PROBE.observe(program.request(Tier.EXAMINE, still=True))
        finally:
            libc.ptrace(0x4207, program.pid, None, None)  # PTRACE_INTERRUPT: only what is stopped can be detached
            os.waitpid(program.pid, 0)
            libc.ptrace(17, program.pid, None, None)  # PTRACE_DETACH
    assert program.pid in seen.by_pid
    (unseen,) = seen.unseen
    assert f"PID {os.getpid()} is debugging it" in unseen.why


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_anothers_process_names_the_owner() -> None:
    binary = programs.py_spy()
    assert binary
    with started(PROGRAM) as program:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.setuid(65534)
            try:
                py_spy.PySpy(binary).dump(program.pid)
            except py_spy.Refused as refused:
                os.write(writer, str(refused).encode())
            os._exit(0)
        os.close(writer)
        why = os.fdopen(reader).read()
        os.waitpid(child, 0)
    if "could not be started" in why:
        pytest.skip("py-spy lies where another user may not go")
    assert "belongs to user 0" in why


def test_without_py_spy_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "py_spy", lambda: None)
    seen = PROBE.observe(Request([Target(1, 1, "here", 0), Target(2, 1, "here", 1)], Tier.LOOK))
    assert [u.why for u in seen.unseen] == ["py-spy is missing: `pip install py-spy`"]


def fake(folder: Path, script: str) -> str:
    path = folder / "py-spy"
    path.write_text(f"#!/bin/sh\ncd {folder}\n{script}")
    path.chmod(0o755)
    return str(path)


THREAD = '{"thread_id":1,"thread_name":null,"os_thread_id":1,"active":true,"owns_gil":false,"frames":[]}'


def test_a_torn_read_is_tried_again(tmp_path: Path) -> None:
    binary = fake(tmp_path, f"echo x >> tries; [ $(wc -l < tries) -lt 3 ] && exit 1; echo '[{THREAD}]'")
    assert len(py_spy.PySpy(binary).dump(os.getpid())) == 1


def main_thread(*functions: str, active: str = "true") -> str:
    frames = ",".join(f'{{"name":"{name}","filename":"train.py"}}' for name in functions)
    named = THREAD.replace("null", '"MainThread"').replace('"active":true', f'"active":{active}')
    return f"[{named.replace('[]', f'[{frames}]')}]"


@pytest.mark.parametrize(
    ("first", "tries"),
    [
        (main_thread("forward"), 2),  # its callers returned meanwhile
        (main_thread(), 2),
        (main_thread("forward", "<module>"), 1),
        (main_thread("wait", active="false"), 1),  # it stands still: embedded in a program
    ],
)
def test_a_stack_that_was_cut_is_read_once_more(first: str, tries: int, tmp_path: Path) -> None:
    binary = fake(
        tmp_path, f"echo x >> tries; [ $(wc -l < tries) -gt 1 ] && echo '{main_thread('fit')}' || echo '{first}'"
    )
    (thread,) = py_spy.PySpy(binary).dump(os.getpid())
    assert len((tmp_path / "tries").read_text().split()) == tries
    assert (thread["frames"][0]["name"] == "fit") is (tries == 2)  # whatever the second read shows


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("sleep 30", "did not answer within"),
        ("echo nonsense", "wrote no JSON"),
        ("echo '[]'", "no Python thread"),
        ("""echo '[{"other": 1}]'""", "other fields"),
        ("printf 'Error: odd\\n\\nStack backtrace:\\n 0: core' >&2; exit 1", "PID {pid}: odd; try again"),
        ("echo 'Error: Permission denied (os error 13)' >&2; exit 1", "was refused"),
    ],
)
def test_what_py_spy_says_becomes_one_sentence(
    script: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(py_spy, "TIMEOUT_S", 0.3)
    monkeypatch.setattr("hangdoc.introspect.deep_stacks.read", lambda pid: None)  # we may not read it either
    with pytest.raises(py_spy.Refused) as refused:
        py_spy.PySpy(fake(tmp_path, script)).dump(os.getpid())
    assert why.format(pid=os.getpid()) in str(refused.value)
    assert "backtrace" not in str(refused.value)


def test_a_deep_recursion_is_cut_in_the_middle() -> None:
    code = "import time\ndef f(n):\n if n: f(n-1)\n else:\n  print(1, flush=True); time.sleep(99)\nf(700)"
    with started("-c", code, python=sys.executable) as program:
        (stack,) = look(program).threads
    assert len(stack.frames) == 250
    assert stack.frames[-1].function == "<module>"
