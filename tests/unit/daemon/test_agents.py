"""The socket of the daemon: whom it answers, what they see, and what a hostile peer costs. Real sockets, real users."""

from __future__ import annotations

import os
import re
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from hangdoc.daemon import agents
from hangdoc.daemon.agents import AgentServer
from hangdoc.daemon.board import BUSY_GAP_S, EXAMINE_GAP_S, LOOK_GAP_S, Asked, Board, visible
from hangdoc.evidence import RankEvidence, Snapshot, Target, Unseen
from hangdoc.evidence.resources import Neighbour, Neighbours
from hangdoc.fleet import protocol
from hangdoc.system import node_socket, procfs
from hangdoc.system.account import account
from probes import Tier
from tests.support.other_user import STRANGER, interpreter
from tests.support.polling import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as several users")

ASK = """
import json, socket, sys
peer = socket.socket(socket.AF_UNIX)
peer.connect(sys.argv[1])
lines = peer.makefile("rb")
print(lines.readline().decode().strip())
for question in sys.argv[2:]:
    peer.sendall(question.encode() + b"\\n")
    print(lines.readline().decode().strip(), flush=True)
"""


def ask_as(user: int, path: str, *questions: str) -> list[str]:
    """The lines that a process of this user gets: a hello, and an answer for each question."""
    done = subprocess.run(
        [interpreter(), "-c", ASK, path, *questions],
        user=user, group=user, extra_groups=[], capture_output=True, text=True, timeout=30, check=False, cwd="/",
    )  # fmt: skip
    return done.stdout.splitlines()


def pids(line: str) -> set[int]:
    """PIDs of the ranks in an answer."""
    answer = protocol.parse(line.encode(), protocol.Answer)
    return {msgspec.json.decode(answer.parts[rank.target], type=Target).pid for rank in answer.ranks}


def rank(pid: int, owner: int, **records: object) -> RankEvidence:
    found = procfs.stat(pid)
    return RankEvidence(
        Target(pid, found.start_ticks if found else 1, "here", 0, job=f"of {owner}", account=str(owner)), True, records
    )


def shot(*ranks: RankEvidence, tier: str = "look", at_s: float = 0.0) -> Snapshot:
    return Snapshot("here", at_s or time.monotonic(), "2026-11-25T00:00:00+00:00", ranks, tier=tier)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that every user can enter: pytest's own are closed."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="hangdoc-socket", dir="/tmp") as made:
        os.chmod(made, 0o755)
        yield Path(made)


@pytest.fixture
def sleepers() -> Iterator[dict[int, int]]:
    """A process of root and one of another user, by user."""
    users = (0, STRANGER)
    processes = {user: subprocess.Popen(["sleep", "60"], user=user, group=user, extra_groups=[]) for user in users}
    yield {user: process.pid for user, process in processes.items()}
    for process in processes.values():
        process.kill()
        process.wait()


@pytest.fixture
def board() -> Board:
    return Board(["environ"])


@pytest.fixture
def path(folder: Path, board: Board) -> Iterator[str]:
    said: list[str] = []
    server = AgentServer(str(folder / "s"), board, frozenset({"host"}), said.append)
    yield server.path
    server.close()
    assert not said
    assert not (folder / "s").exists()


LOOK = '{"do":"look","id":1}'


def test_a_user_sees_own_ranks_only_and_root_all(path: str, board: Board, sleepers: dict[int, int]) -> None:
    board.put(shot(*(rank(pid, user) for user, pid in sleepers.items())))
    hello, answer = ask_as(STRANGER, path, LOOK)
    assert protocol.parse(hello.encode(), protocol.Hello).schema == protocol.SCHEMA
    assert pids(answer) == {sleepers[STRANGER]}
    assert not re.search(rf"(?<![\d.-]){sleepers[0]}(?![\d.-])", answer), "not as a part of another number"
    assert "of 0" not in answer
    assert pids(ask_as(0, path, LOOK)[1]) == set(sleepers.values())
    assert pids(ask_as(STRANGER - 1, path, LOOK)[1]) == set()


def test_a_process_that_has_changed_its_user_is_no_longer_shown(board: Board, sleepers: dict[int, int]) -> None:
    """A rank's account is that of its discovery; it may have become root's meanwhile."""
    lying = rank(sleepers[0], STRANGER)
    assert not visible(shot(lying), STRANGER, account, ()).ranks
    gone = replace(lying, alive=False)
    assert visible(shot(gone), STRANGER, account, ()).ranks


def test_nothing_about_others_is_shown() -> None:
    mine, other = rank(os.getpid(), 7), rank(1, 0)
    near = Neighbours((Neighbour(1, "secret.py", 1.0, 0, None), Neighbour(os.getpid(), "mine.py", 1.0, 0, None)))
    lacks = (
        Unseen("stacks", "a", 0, os.getpid()), Unseen("stacks", "b", 0, 1), Unseen("discovery", "PID 1: c"),
        Unseen("host", "d"), Unseen("host", "e", 3),
    )  # fmt: skip
    whole = replace(shot(mine, other), unseen=lacks, records={"neighbours": near})
    part = visible(whole, 7, lambda pid: "7" if pid == os.getpid() else "0", {"host"})
    assert [one.target.pid for one in part.ranks] == [os.getpid()]
    assert [lack.why for lack in part.unseen] == ["a", "d"]
    assert [one.command for one in part.records["neighbours"].processes] == ["a process of another user", "mine.py"]


def test_what_is_seen_only_once_is_in_every_round(board: Board) -> None:
    board.put(shot(rank(1, 0, environ="of the first look", stacks=1)))
    board.put(shot(rank(1, 0, stacks=2)))
    newest = board.newest()
    assert newest is not None
    assert newest.ranks[0].records == {"environ": "of the first look", "stacks": 2}
    board.put(shot(rank(2, 0)))
    board.put(shot(rank(1, 0)))
    newest = board.newest()
    assert newest is not None
    assert newest.ranks[0].records == {}, "the rank had gone"


def test_a_question_brings_a_round_and_a_closer_look_pauses_only_stalled_ranks() -> None:
    now = [100.0]
    board = Board(clock=lambda: now[0])
    board.put(shot(rank(1, 7), rank(2, 7)))
    now[0] += 10
    assert board.take(False, lambda target: True) is None
    asked = [threading.Thread(target=board.ask, args=(7, tier, {1, 2}, 1, 9.0)) for tier in (Tier.LOOK, Tier.EXAMINE)]
    for thread in asked:
        thread.start()
    until(lambda: board._wishes and board._wishes[7].tier == Tier.EXAMINE)
    assert board.take(False, lambda target: target.pid == 2) == Asked(Tier.EXAMINE, frozenset({2}))
    assert board.take(False, lambda target: True) is None, "two rounds need a gap"
    board.put(shot(rank(1, 7), tier="examine"))
    for thread in asked:
        thread.join(5)
    assert not board._wishes
    for gap_s, busy, expected in ((LOOK_GAP_S, False, Tier.LOOK), (BUSY_GAP_S, True, Tier.EXAMINE)):
        again = threading.Thread(target=board.ask, args=(7, Tier.EXAMINE, (), 2, 0.5), daemon=True)
        again.start()
        until(lambda: bool(board._wishes))
        now[0] += gap_s - 0.1
        assert board.take(busy, lambda target: True) is None
        now[0] += 0.1
        assert board.take(busy, lambda target: True) == Asked(expected), "one user, one closer look in a while"
    assert BUSY_GAP_S >= EXAMINE_GAP_S


def test_nobody_without_a_rank_causes_a_round(path: str, board: Board, sleepers: dict[int, int]) -> None:
    board.put(shot(rank(sleepers[0], 0)))
    time.sleep(1.1)
    assert pids(ask_as(STRANGER, path, LOOK, LOOK)[2]) == set()
    assert not board.due(False)


def test_without_a_round_the_answer_is_the_newest_there_is(
    path: str, board: Board, sleepers: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "ANSWER_S", 0.2)
    board.put(shot(rank(sleepers[STRANGER], STRANGER)))
    time.sleep(1.1)
    assert pids(ask_as(STRANGER, path, LOOK)[1]) == {sleepers[STRANGER]}
    assert board.due(False)


@pytest.mark.parametrize("line", ["rm -rf /", '{"do":"peers"}', '{"do":"look","id":"x"}', "[" * 5000, "x" * 70_000])
def test_what_is_no_question_ends_the_connection(path: str, line: str, board: Board) -> None:
    assert len(ask_as(STRANGER, path, line)) <= 2
    assert ask_as(STRANGER, path, '{"do":"ping"}')[1] == '{"pong":true}'


def test_connections_of_a_user_are_bounded_and_others_are_served(
    path: str, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    hold = (
        "import socket, time\n"
        f"held = [socket.socket(socket.AF_UNIX) for _ in range(20)]; [one.connect({path!r}) for one in held]\n"
        "print('ready', flush=True); time.sleep(30)"
    )
    process = subprocess.Popen(
        [interpreter(), "-c", hold], user=STRANGER, group=STRANGER, extra_groups=[], stdout=subprocess.PIPE, cwd="/"
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        until(lambda: sum(thread.name == "agent" for thread in threading.enumerate()) == agents.MAX_OF_USER)
        assert ask_as(STRANGER, path, '{"do":"ping"}')[-1:] in ([], [""])
        assert ask_as(STRANGER - 1, path, '{"do":"ping"}')[1] == '{"pong":true}'
    finally:
        process.kill()
        process.wait()
    until(lambda: not any(thread.name == "agent" for thread in threading.enumerate()))


def test_who_does_not_read_the_answers_is_left(path: str, board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "SEND_S", 0.2)
    monkeypatch.setattr(agents, "PAUSE_S", 0.0)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(path)
        peer.setblocking(False)
        began_s = time.monotonic()
        left = False
        while not left and time.monotonic() - began_s < 20:
            try:
                peer.send(b'{"do":"ping"}\n' * 100)
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:
                left = True
        assert left


# --- the socket itself ------------------------------------------------------------------------------


def test_every_user_may_connect_and_a_socket_left_behind_is_replaced(folder: Path) -> None:
    path = str(folder / "run" / "s")
    node_socket.listen(path).close()
    with node_socket.listen(path) as listener:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o666
        assert stat.S_IMODE(os.stat(folder / "run").st_mode) == 0o755
        with pytest.raises(OSError, match="another daemon listens"):
            node_socket.listen(path)
        with node_socket.connect(path, 1.0) as peer:
            assert node_socket.peer_user(peer) == 0
        listener.accept()[0].close()


def test_no_file_is_replaced(folder: Path) -> None:
    (folder / "s").write_text("mine")
    with pytest.raises(OSError, match="is no socket"):
        node_socket.listen(str(folder / "s"))
    (folder / "link").symlink_to(folder / "s")
    with pytest.raises(OSError, match="is no socket"):
        node_socket.listen(str(folder / "link"))
    assert (folder / "s").read_text() == "mine"


def test_a_folder_that_others_can_change_is_refused_on_both_sides(folder: Path) -> None:
    path = str(folder / "s")
    with node_socket.listen(path):
        os.chmod(folder, 0o777)
        with pytest.raises(PermissionError, match="can write"):
            node_socket.connect(path, 1.0)
        with pytest.raises(PermissionError, match="can write"):
            node_socket.listen(str(folder / "t"))


def test_a_stranger_who_listens_in_a_folder_of_root_is_not_trusted(folder: Path) -> None:
    """A sticky folder such as /tmp: anybody may put a socket there."""
    os.chmod(folder, 0o1777)
    path = str(folder / "s")
    serve = (
        f"import socket, time; one = socket.socket(socket.AF_UNIX); one.bind({path!r}); one.listen()\n"
        "print('ready', flush=True); time.sleep(30)"
    )
    process = subprocess.Popen(
        [interpreter(), "-c", serve], user=STRANGER, group=STRANGER, extra_groups=[], stdout=subprocess.PIPE, cwd="/"
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(PermissionError, match="another user listens"):
            node_socket.connect(path, 1.0)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("path", ["relative", "/tmp/" + "x" * 120])
def test_a_path_that_the_kernel_refuses(path: str) -> None:
    with pytest.raises(OSError, match="absolute"):
        node_socket.listen(path)


def test_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    monkeypatch.delenv(node_socket.VARIABLE, raising=False)
    assert (node_socket.served_path(), node_socket.asked_path()) == (node_socket.SERVED, node_socket.SERVED)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert node_socket.served_path() == "", "a daemon without rights of its own has nothing to give"
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/one:/run/two")
    assert node_socket.served_path() == "/run/one/hangdoc.sock"
    monkeypatch.setenv(node_socket.VARIABLE, "off")
    assert node_socket.asked_path() == ""
