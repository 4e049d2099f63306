"""Processes at the other end of a pipe, and bytes moved."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hangdoc.system import open_ends, procfs
from tests.support.polling import at_rest, until


def test_both_ends_of_a_fifo(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    path = str(fifo)
    with (
        subprocess.Popen(["cat", path], stdout=subprocess.DEVNULL) as reader,
        subprocess.Popen([sys.executable, "-c", f"f = open({path!r}, 'w'); input()"], stdin=subprocess.PIPE) as writer,
    ):
        try:
            (reads,) = until(lambda: open_ends.peers({path: "r"}, {reader.pid})[path])
            at_rest(writer.pid)
            (writes,) = until(lambda: open_ends.peers({path: "w"}, ())[path])
        finally:
            writer.kill()
            reader.kill()
    assert (reads.pid, reads.own, reads.command.split()[0]) == (reader.pid, True, "cat")
    assert (writes.pid, writes.own, writes.state) == (writer.pid, False, "S")
    assert (reads.moved or 0) > 0


def test_a_fifo_that_nobody_has_open(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert open_ends.peers({str(fifo): "w"}, ()) == {str(fifo): ()}
    assert open_ends.peers({}, ()) == {}


def test_an_unnamed_pipe_by_its_number() -> None:
    reading, writing = os.pipe()
    try:
        with subprocess.Popen(["sleep", "60"], pass_fds=[writing]) as child:
            at_rest(child.pid)  # from exec on, its command line is empty for a moment
            path = os.readlink(f"/proc/self/fd/{reading}")
            found = {peer.pid: peer.command for peer in open_ends.peers({path: "w"}, ())[path]}
            child.kill()
    finally:
        os.close(reading)
        os.close(writing)
    assert found[child.pid] == "sleep 60"
    assert os.getpid() in found


def test_secrets_of_a_command_are_not_kept() -> None:
    reading, writing = os.pipe()
    try:
        words = [sys.executable, "-c", "print(flush=True); input()", "--token=hf_abcdefghijklmnopqrstuvwxyz"]
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(words, pass_fds=[writing], **streams) as child:  # type: ignore[call-overload]
            child.stdout.readline()
            path = os.readlink(f"/proc/self/fd/{reading}")
            commands = [peer.command for peer in open_ends.peers({path: "w"}, ())[path] if peer.pid == child.pid]
            child.kill()
    finally:
        os.close(reading)
        os.close(writing)
    assert len(commands) == 1
    assert "hf_" not in commands[0]


def test_bytes_that_a_process_has_moved() -> None:
    code = "import os; print(flush=True); input(); os.write(os.open('/dev/null', os.O_WRONLY), b'x' * 5000); input()"
    with subprocess.Popen([sys.executable, "-uc", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        before = procfs.moved_bytes(child.pid)
        child.stdin.write(b"\n")
        child.stdin.flush()
        after = until(lambda: procfs.moved_bytes(child.pid), lambda now: (now or 0) >= (before or 0) + 5000)
        child.kill()
    assert before is not None
    assert after is not None
    assert 5000 <= after - before < 6000
    assert procfs.moved_bytes(child.pid) is None, "the process is gone"
