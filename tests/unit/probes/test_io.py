"""Probe `io` on real processes: what they and their helpers read, write and wait for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from hangdoc.evidence import FileCall, Frame, Io, RankEvidence, Snapshot, Stack, Stacks, Target, Variable
from probes import Probe, Request, Tier
from probes.cpu import PROBE as CPU
from probes.io import PROBE, IoProbe
from tests.support.other_user import stranger
from tests.support.polling import at_rest, until
from tests.support.probe_targets import Program, started

READY = "import json, os, sys, time; sys.path.insert(0, '.'); print(json.dumps(os.getpid()), flush=True)\n"


class Watch:
    """Rounds of the probes `cpu` and `io` at one process, as the sampler makes them."""

    def __init__(self, program: Program) -> None:
        self.target = structs.replace(program.target(), start_ticks=_start_ticks(program.pid))
        self.probe = IoProbe()
        self.before: Snapshot | None = None

    def round(self, tier: Tier = Tier.PULSE, stacks: Stacks | None = None) -> Io:
        request = Request([self.target], tier, previous=self.before)
        records: dict[str, Any] = {"cpu": CPU.observe(request).by_pid[self.target.pid]}
        if stacks:
            records["stacks"] = stacks
        found = self.probe.observe(replace(request, records={self.target.pid: records}))
        assert found.unseen == ()
        records["io"] = found.by_pid[self.target.pid]
        self.before = Snapshot("here", 0.0, "", (RankEvidence(self.target, True, records),))
        assert isinstance(records["io"], Io)
        return records["io"]

    def until(self, good: Callable[[Io], object], **how: Any) -> Io:
        return until(lambda: self.round(**how), good)


def _start_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def standing(io: Io) -> FileCall:
    (call,) = (call for call in io.calls if call.fd != 0)
    return call


def test_is_a_probe() -> None:
    assert isinstance(PROBE, Probe)


# --- calls ----------------------------------------------------------------------------------------


def test_a_read_of_a_fifo_and_its_other_end(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    code = f"import subprocess; w = subprocess.Popen('exec sleep 60 > {fifo}', shell=True)\n"
    with started("-c", f"{READY}{code}open({str(fifo)!r}, 'rb', buffering=0).read(10)") as program:
        watch = Watch(program)
        seen = watch.until(lambda io: "sleep 60" in [peer.command for call in io.calls for peer in call.peers or ()])
        (helper,) = seen.helpers
        os.kill(helper.pid, 9)
    call = standing(seen)
    assert (call.call, call.path, call.kind, call.writes, call.state) == ("read", str(fifo), "fifo", False, "S")
    assert (call.pid, call.tid) == (program.pid, program.pid)
    assert [(peer.pid, peer.command, peer.own) for peer in call.peers or ()] == [(helper.pid, "sleep 60", True)]
    assert call.mount is not None


def test_peers_are_looked_for_only_where_a_thread_stays(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with started("-c", f"{READY}open({str(fifo)!r}, 'wb')") as program:
        first = Watch(program).until(lambda io: io.calls)
        watch = Watch(program)
        again = watch.until(lambda io: io.calls and io.calls[0].peers is not None)
    assert standing(first).peers is None
    call = standing(again)
    assert (call.call, call.path, call.writes, call.fd, call.peers) == ("open", str(fifo), True, None, ())


@pytest.mark.parametrize("folder", ["absolute", "relative"])
def test_the_path_of_an_open_is_made_absolute(folder: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    at = tmp_path / "fifo" if folder == "absolute" else "./fifo"
    code = f"os.chdir({str(tmp_path)!r}); os.open({str(at)!r}, os.O_RDONLY)"
    with started("-c", READY + code) as program:
        call = standing(Watch(program).until(lambda io: io.calls))
    assert (call.call, call.path, call.kind, call.writes) == ("open", str(tmp_path / "fifo"), "fifo", False)


def test_a_write_to_a_full_pipe_of_another_program() -> None:
    code = "import subprocess; subprocess.Popen(['sleep', '60'], stdin=subprocess.PIPE).stdin.write(b'x' * 10**6)"
    with started("-c", READY + code) as program:
        call = standing(Watch(program).until(lambda io: io.calls and io.calls[0].peers))
        for peer in call.peers or ():
            os.kill(peer.pid, 9)
    assert (call.call, call.kind, call.writes) == ("write", "pipe", True)
    assert call.path.startswith("pipe:[")
    assert [peer.command for peer in call.peers or ()] == ["sleep 60"]


def test_a_thread_that_computes_is_in_no_call() -> None:
    with started("-c", READY + "while True: pass") as program:
        assert Watch(program).round().calls == ()


ON_TERMINAL = """
import pty, select, socket
os.dup2(pty.openpty()[1], 0)
pair = socket.socketpair()
idle, wake = os.pipe()[0], pair[0]
def wait(poll, *fds):
    for fd in fds:
        poll.register(fd, select.POLLIN)
    poll.poll()
"""


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("os.read(0, 1)", "read"),
        ("input()", "read"),
        ("open(os.ttyname(0)).read()", "read"),
        ("select.select([0], [], [])", "poll"),  # as readline does
        ("wait(select.poll(), 0)", "poll"),
        ("wait(select.epoll(), 0, wake)", "poll"),  # as an event loop does
    ],
)
def test_a_wait_for_a_terminal(code: str, call: str) -> None:
    with started("-c", READY + ON_TERMINAL + code) as program:
        at_rest(program.pid)
        (seen,) = Watch(program).round().calls
    assert (seen.pid, seen.tid, seen.call, seen.kind, seen.writes) == (
        program.pid,
        program.pid,
        call,
        "terminal",
        False,
    )
    assert seen.path.startswith("/dev/pts/")
    assert seen.fd == 0 or "ttyname" in code


@pytest.mark.parametrize(
    "code",
    [
        "select.select([0], [], [], 60)",  # ends by itself
        "select.select([idle], [], [])",
        "select.select([0, idle, wake], [], [])",  # a server that takes commands as well
        "wait(select.epoll(), 0, wake, idle)",
        "wait(select.poll(), wake)",
    ],
)
def test_a_wait_that_something_else_ends(code: str) -> None:
    with started("-c", READY + ON_TERMINAL + code) as program:
        at_rest(program.pid)
        assert Watch(program).round().calls == ()


def needs_fuse(function: Any) -> Any:
    missing = os.geteuid() != 0 or not os.path.exists("/dev/fuse")
    return pytest.mark.skipif(missing, reason="a mount needs root and /dev/fuse")(function)


@needs_fuse
@pytest.mark.parametrize(
    ("call", "state"),
    [("read", "D"), ("fault", "D"), ("open", "S")],
)
def test_a_mount_that_does_not_answer(call: str, state: str, tmp_path: Path) -> None:
    def stands(io: Io) -> list[FileCall]:
        return [one for one in io.calls if (one.pid, one.call, one.state) == (program.pid, call, state)]

    with started("fuse_mount.py", str(tmp_path), call) as program:
        (seen,) = stands(Watch(program).until(stands))
        began = time.monotonic()
        Watch(program).round(Tier.LOOK)
        waited_s = time.monotonic() - began
        os.kill(program.said, 9)  # with its server the mount goes, and who waits for it
    assert waited_s < 2
    assert (seen.path, seen.mount, seen.filesystem) == (str(tmp_path / "job.py"), str(tmp_path), "fuse.shop")
    assert not seen.writes


# --- helpers --------------------------------------------------------------------------------------

WORKER = """
import multiprocessing, threading
def work():
    {}
multiprocessing.get_context("fork").Process(target=work, daemon=True).start()
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("code", "sleeps"),
    [
        ("time.sleep(60)", "time"),
        ("multiprocessing.Event().wait()", "semaphore"),
        ("os.read(os.pipe()[0], 1)", "file"),
        ("lock = threading.Lock(); lock.acquire(); lock.acquire()", "lock"),
        ("import select; select.select([os.pipe()[0]], [], [], 60)", "poll"),
        ("import select; select.select([], [], [], 60)", "time"),  # as Python 3.10 sleeps
    ],
)
def test_in_what_a_helper_sleeps(code: str, sleeps: str) -> None:
    with started("-c", READY + WORKER.format(code)) as program:
        watch = Watch(program)
        seen = watch.until(lambda io: [(h.sleeps, h.state) for h in io.helpers] == [(sleeps, "S")])
        again = watch.until(lambda io: io.helpers[0].locked == (sleeps == "lock"))
        (helper,) = seen.helpers
        os.kill(helper.pid, 9)
    assert again.helpers[0].pid == helper.pid
    assert (helper.switches or 0) > 0


def test_a_lock_that_another_thread_could_release_is_no_deadlock() -> None:
    other = "threading.Thread(target=time.sleep, args=(60,)).start()"
    code = f"lock = threading.Lock(); lock.acquire(); {other}; lock.acquire()"
    with started("-c", READY + WORKER.format(code)) as program:
        watch = Watch(program)
        watch.until(lambda io: [h.sleeps for h in io.helpers] == ["lock"])
        rounds = [watch.round() for _ in range(5)]
        os.kill(rounds[0].helpers[0].pid, 9)
    assert not any(helper.locked for io in rounds for helper in io.helpers)


def test_a_helper_blocked_in_a_read(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with started("-c", READY + WORKER.format(f"open({str(fifo)!r}, 'rb')")) as program:
        seen = Watch(program).until(lambda io: io.calls and io.calls[0].peers is not None)
        (helper,) = seen.helpers
        os.kill(helper.pid, 9)
    (call,) = seen.calls
    assert (call.pid, call.call, call.path, call.peers) == (helper.pid, "open", str(fifo), ())


# --- bytes and data -------------------------------------------------------------------------------


def test_bytes_read_and_written(tmp_path: Path) -> None:
    code = f"f = open({str(tmp_path / 'out')!r}, 'wb'); f.write(b'x' * 100_000); f.flush(); os.fsync(f.fileno())\n"
    sign = tmp_path / "sign"
    os.mkfifo(sign)
    waits = f"open({str(sign)!r}).read()\n"
    with started("-c", f"import os, time; print(1, flush=True)\n{waits}{code}time.sleep(60)") as program:
        at_rest(program.pid)
        watch = Watch(program)
        before = watch.round()
        sign.write_bytes(b"")
        after = watch.until(lambda io: (io.written or 0) >= (before.written or 0) + 100_000)
    assert (after.written or 0) - (before.written or 0) == 100_000
    assert after.stored is not None
    assert after.fetched is not None


def test_open_data_files_and_how_many_lie_beside_them(tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    data.mkdir()
    other.mkdir()
    for i in range(7):
        (data / f"{i}.bin").write_bytes(b"x")
    (other / "1").write_bytes(b"")
    (other / "2").write_bytes(b"")
    (tmp_path / "train.log").write_bytes(b"")
    code = f"held = [open(path) for path in ({str(data / '3.bin')!r}, {str(tmp_path / 'train.log')!r})]\n"
    frame = Frame("train", str(tmp_path / "train.py"), 3, variables=(Variable("root", f"'{other}'", kind="str"),))
    with started("-c", f"{code}{READY}time.sleep(60)") as program:
        stacks = Stacks((Stack(program.pid, "MainThread", (frame,)),))
        watch = Watch(program)
        assert watch.round().files == (), "a pulse costs as little as it can"
        watch.round(Tier.LOOK, stacks)
        seen = watch.round(Tier.LOOK, stacks)
    assert seen.files == (str(data / "3.bin"),)
    assert {(folder.path, folder.entries) for folder in seen.folders} == {(str(data), 7), (str(other), 2)}


def test_a_folder_behind_a_symbolic_link_is_not_asked(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    frame = Frame("f", str(tmp_path / "a.py"), 1, variables=(Variable("x", f"'{tmp_path}/link'", kind="str"),))
    with started("-c", f"{READY}time.sleep(60)") as program:
        stacks = Stacks((Stack(program.pid, "MainThread", (frame,)),))
        watch = Watch(program)
        watch.round(Tier.LOOK, stacks)
        assert watch.round(Tier.LOOK, stacks).folders == ()


def test_a_folder_that_the_ranks_user_may_not_list_is_not_listed_for_him(tmp_path: Path) -> None:
    for folder in (tmp_path, *list(tmp_path.parents)[:-2]):
        folder.chmod(0o755)
    names = {"open": 0o755, "closed": 0o700}
    for name, mode in names.items():
        (tmp_path / name).mkdir(mode)
        (tmp_path / name / "file").touch()
    variables = tuple(Variable(name, f"'{tmp_path / name}'", kind="str") for name in names)
    frame = Frame("f", str(tmp_path / "a.py"), 1, variables=variables)
    with stranger("import time\nprint('ready', flush=True)\ntime.sleep(60)\n") as other:
        stacks = Stacks((Stack(other.pid, "MainThread", (frame,)),))
        watch = Watch(Program(other.pid, None, other.process))
        watch.round(Tier.LOOK, stacks)
        seen = watch.round(Tier.LOOK, stacks)
    assert [folder.path for folder in seen.folders] == [str(tmp_path / "open")]


def test_an_ended_process_is_no_error() -> None:
    with started("-c", f"{READY}time.sleep(60)") as program:
        target = structs.replace(program.target(), start_ticks=_start_ticks(program.pid))
        cpu = CPU.observe(Request([target], Tier.PULSE)).by_pid
    found = PROBE.observe(Request([target], Tier.LOOK, records={program.pid: {"cpu": cpu[program.pid]}}))
    assert found.by_pid == {}
    (unseen,) = found.unseen
    assert (unseen.probe, unseen.pid) == ("io", program.pid)


def test_what_cpu_did_not_see_is_left_out() -> None:
    target = Target(1, 1, "here", 0)
    assert PROBE.observe(Request([target], Tier.PULSE)).by_pid == {}
