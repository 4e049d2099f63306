"""Accounts of processes: a user namespace of a user's own does not change the account."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hangdoc.fleet.agent_presence import show_token, visible_tokens
from hangdoc.system.account import account

NAMESPACE = ["unshare", "--user", "--map-root-user"]


@contextmanager
def running(command: list[str], user: int | None = None) -> Iterator[int]:
    """A process that has said that it is there, and waits."""
    script = ["sh", "-c", "echo ready; exec sleep 60"]
    process = subprocess.Popen(
        [*command, *script], user=user, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            pytest.skip(f"no user namespace can be made: {process.communicate()[1]}")
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def test_account_of_our_own_process() -> None:
    assert account(os.getpid()) == str(os.getuid())
    assert account(2**22 + 1) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
@pytest.mark.parametrize(
    ("command", "user", "expected"),
    [
        ([], 64999, "64999"),
        (NAMESPACE, 64999, "64999"),  # root in there, and 64999 all the same
        (NAMESPACE, None, "0 in a namespace of root"),
    ],
)
def test_account_of_other_processes(command: list[str], user: int | None, expected: str) -> None:
    with running(command, user) as pid:
        assert account(pid) == expected


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
@pytest.mark.parametrize(("user", "seen"), [(None, True), (64999, False)])
def test_an_agent_is_shown_unless_another_user_may_have_taken_its_name(user: int | None, seen: bool) -> None:
    token = "0123456789ab"
    name = f"printf hd:{token} > /proc/self/comm; echo ready; read forever"
    process = subprocess.Popen(
        ["bash", "-c", name.replace("/self/", "/$$/")],
        user=user,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert visible_tokens([token, "ffffffffffff"]) == ((token,) if seen else ())
    finally:
        process.kill()
        process.communicate()
    assert visible_tokens([token]) == ()


def test_an_agent_shows_itself() -> None:
    before = Path("/proc/self/comm").read_text().strip()
    try:
        show_token("a" * 12)
        assert visible_tokens(["a" * 12]) == ("a" * 12,)
    finally:
        with open("/proc/self/comm", "w", encoding="ascii") as file:
            file.write(before)
