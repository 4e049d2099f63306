"""Rendezvous addresses, on real sockets and processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from hangdoc.evidence import Connection, Frame, Rendezvous, Sockets, Stack, Stacks, Target, Variable
from hangdoc.evidence.target import parse_endpoint
from hangdoc.system import procfs
from probes import Request, Tier
from probes.store import StoreProbe, is_assembling, resolve
from tests.support.probe_targets import started

LIB = "/v/lib/python3.11/site-packages/torch/distributed"
SERVER = (
    "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
)
TIME = "import datetime, time; t = datetime.timedelta(days=1, minutes=5); print(id(t), flush=True); time.sleep(30)"


def standing_in(function: str, file: str, *variables: Variable) -> Stacks:
    return Stacks((Stack(1, "MainThread", (Frame(function, file, 1, variables=variables),)),))


def me(master: str | None) -> Target:
    stat = procfs.stat(os.getpid())
    return Target(os.getpid(), stat.start_ticks if stat else 0, "here", 1, world_size=2, master=master)


def seen(target: Target, tier: Tier = Tier.EXAMINE, stacks: Stacks | None = None) -> Rendezvous | None:
    records: dict[int, dict[str, Any]] = {target.pid: {"stacks": stacks} if stacks else {}}
    return StoreProbe().observe(Request([target], tier, records=records)).by_pid.get(target.pid)


@contextmanager
def listening(*command: str) -> Iterator[tuple[int, int]]:
    """A process of a session of its own that listens: its PID and port."""
    process = subprocess.Popen([*command, sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


# --- who is asked ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "file", "assembles"),
    [
        ("init_process_group", f"{LIB}/distributed_c10d.py", True),
        ("_create_tcp_store", f"{LIB}/elastic/rendezvous/c10d_rendezvous_backend.py", True),
        ("_rendezvous", f"{LIB}/elastic/agent/server/api.py", True),
        ("all_reduce", f"{LIB}/distributed_c10d.py", False),
        ("init_process_group", "/home/me/train.py", False),
    ],
)
def test_a_look_covers_only_ranks_in_a_rendezvous(function: str, file: str, assembles: bool) -> None:
    stacks = standing_in(function, file)
    assert is_assembling(stacks) is assembles
    target = me("127.0.0.1:1")
    assert (seen(target, Tier.LOOK, stacks) is not None) is assembles
    assert seen(target, Tier.EXAMINE, stacks) is not None
    assert seen(replace(target, master=None), Tier.EXAMINE, stacks) is None


@pytest.mark.parametrize(
    ("master", "place"),
    [
        ("node-1:29500", ("node-1", 29500)),
        ("[fd00::1]:80", ("fd00::1", 80)),
        ("node-1", None),
        (":29500", None),
        ("node-1:port", None),
        ("", None),
    ],
)
def test_place(master: str, place: tuple[str, int] | None) -> None:
    assert parse_endpoint(master) == place


# --- what is there --------------------------------------------------------------------------------


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    found = seen(me(f"127.0.0.1:{free}"))
    assert found is not None
    assert (found.resolved, found.local, found.holder, found.clients) == (("127.0.0.1",), True, None, None)


def test_an_address_of_another_host() -> None:
    found = seen(me("192.0.2.1:29500"))
    assert found is not None
    assert (found.resolved, found.local, found.holder) == (("192.0.2.1",), False, None)


def test_the_rank_itself_listens_and_its_clients_are_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)):
            found = seen(me(f"localhost:{port}"))
    assert found is not None
    assert found.holder is not None
    assert (found.holder.pid, found.holder.kin, found.clients) == (os.getpid(), True, 2)


def test_a_server_on_another_address_is_none() -> None:
    with socket.create_server(("127.0.0.2", 0)) as server:
        found = seen(me(f"127.0.0.1:{server.getsockname()[1]}"))
    assert found is not None
    assert found.holder is None


def test_another_process_listens() -> None:
    with listening() as (pid, port):
        found = seen(me(f"127.0.0.1:{port}"))
    assert found is not None
    assert found.holder is not None
    assert found.holder.pid == pid
    assert "create_server" in (found.holder.command or "")
    assert found.holder.uid == os.geteuid()
    assert 0 <= (found.holder.age_s or -1) < 30


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "known"),
    [(socket.EAI_NONAME, ()), (socket.EAI_AGAIN, ()), (socket.EAI_MEMORY, None)],
)
def test_a_name_without_an_address(monkeypatch: pytest.MonkeyPatch, error: int, known: tuple[str, ...] | None) -> None:
    def refuse(*_: object) -> None:
        raise socket.gaierror(error, "no")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert resolve(os.getpid(), "trainer-0.invalid", ask=True) == known
    assert resolve(os.getpid(), "10.1.2.3") == ("10.1.2.3",)
    assert "127.0.0.1" in (resolve(os.getpid(), "localhost") or ())


def test_names_that_can_be_no_names() -> None:
    assert resolve(os.getpid(), "a" * 300, ask=True) in ((), None)


def test_no_name_service_is_asked_unless_the_user_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[str] = []

    def look_up(name: str, *_: object) -> list[object]:
        looked_up.append(name)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    target = me("trainer-0.invalid:29500")
    seen = StoreProbe().observe(Request([target], Tier.EXAMINE, records={target.pid: {}}))
    assert looked_up == []
    assert seen.by_pid[target.pid].resolved is None
    assert ["--ask dns" in lack.why for lack in seen.unseen] == [True]
    asked = StoreProbe().observe(Request([target], Tier.EXAMINE, records={target.pid: {}}, ask=frozenset({"dns"})))
    assert looked_up == ["trainer-0.invalid"]
    assert (asked.by_pid[target.pid].resolved, asked.unseen) == ((), ())


def test_a_name_is_resolved_from_the_ranks_own_connection() -> None:
    target = me("trainer-0.invalid:29500")
    for state in ("established", "syn_sent"):
        sockets = Sockets((Connection("10.0.0.1", 4711, "10.0.0.9", 29500, state),))
        seen = StoreProbe().observe(Request([target], Tier.EXAMINE, records={target.pid: {"sockets": sockets}}))
        found = seen.by_pid[target.pid]
        assert (found.resolved, found.local, seen.unseen) == (("10.0.0.9",), False, ())


# --- patience -------------------------------------------------------------------------------------


def test_the_timeout_is_read_from_memory() -> None:
    with started("-c", TIME) as program:
        target = replace(program.target(), master="127.0.0.1:1")
        variable = Variable("timeout", "<datetime.timedelta at 0x1>", address=program.said)
        found = seen(target, stacks=standing_in("init_process_group", f"{LIB}/distributed_c10d.py", variable))
        assert found is not None
        assert found.timeout_s == 86400 + 300
        wrong = Variable("timeout", "<datetime.timedelta at 0x1>", address=program.said + 4)
        found = seen(target, stacks=standing_in("init_process_group", f"{LIB}/distributed_c10d.py", wrong))
        assert found is not None
        assert found.timeout_s != 86400 + 300
