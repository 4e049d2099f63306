"""The checks on this very host, and each of them where the host is otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from hangdoc.doctor import checks as doctor
from hangdoc.doctor.checks import Check, checks
from hangdoc.system import procfs, programs


def test_every_check_says_something_and_every_failed_one_what_to_do() -> None:
    before = set(procfs.numbers("/proc"))
    found = {check.name: check for check in checks()}
    assert len(found) == 18
    assert all(check.detail for check in found.values())
    assert all(check.fix and "\n" not in check.fix for check in found.values() if check.ok is not True)
    assert found["python"].ok
    assert found["py-spy"].ok
    assert found["sock_diag"].ok
    left = [" ".join(procfs.strings(f"/proc/{pid}/cmdline") or ()) for pid in set(procfs.numbers("/proc")) - before]
    assert not [command for command in left if "hangdoc!" in command]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_reads_a_process_that_is_not_its_child() -> None:
    found = {check.name: check for check in checks()}
    if found["ptrace right"].ok is not True:
        pytest.skip("root without CAP_SYS_PTRACE")
    assert found["read another process"].ok
    assert found["process_vm_readv"].ok


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can drop capabilities")
def test_without_capabilities_the_fix_is_root() -> None:
    """The checks run by an unprivileged user: no traceback, and the fix is to run as root."""
    script = (
        "import os; from hangdoc.doctor.checks import checks; from hangdoc.introspect import py_spy;"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534);"
        "[print(c.name, c.ok, c.fix, sep='|') for c in checks()]"
    )
    answer = subprocess.run([sys.executable, "-B", "-c", script], capture_output=True, text=True, check=False)
    lines = {line.split("|")[0]: line.split("|")[1:] for line in answer.stdout.splitlines()}
    assert lines["network namespaces"] == ["None", "run hangdoc as root (CAP_SYS_ADMIN)"], answer.stderr
    assert lines["kernel stack"][0] == "None"


@pytest.mark.parametrize(
    ("check", "files", "ok", "part"),
    [
        (doctor._ptrace_right, {"/proc/sys/kernel/yama/ptrace_scope": "0\n"}, True, "yama scope 0"),
        (doctor._ptrace_right, {"/proc/sys/kernel/yama/ptrace_scope": "1\n"}, False, "yama scope 1"),
        (doctor._ptrace_right, {"/proc/sys/kernel/yama/ptrace_scope": "3\n"}, False, "yama scope 3"),
        (doctor._ptrace_right, {}, True, "no yama"),
        (doctor._pid_namespace, {"/proc/self/ns/pid": "pid:[4026532245]"}, None, "a container's"),
        (doctor._pid_namespace, {"/proc/self/ns/pid": "pid:[4026531836]"}, True, "the host's own"),
    ],
)
def test_other_hosts(
    check: Callable[[], Check], files: dict[str, str], ok: bool | None, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procfs, "text", files.get)
    monkeypatch.setattr(procfs, "link", files.get)
    monkeypatch.setattr(doctor, "_has", lambda capability: False)
    found = check()
    assert found.ok is ok
    assert part in found.detail


def test_py_spy_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "py_spy", lambda: None)
    found = {check.name: check for check in checks()}
    assert found["py-spy"].ok is False
    assert "pip install" in found["py-spy"].fix
    assert found["read another process"].ok is None


def test_unexpected_exception_is_a_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Check:
        raise RuntimeError("oh")

    monkeypatch.setattr(doctor, "_cgroup", broken)
    assert next(check for check in checks() if check.name == "cgroup").detail == "check failed: RuntimeError: oh"


@pytest.mark.parametrize(
    ("rights", "ok", "missing"),
    [
        ({2, 19}, True, ()),
        ({19}, None, ("CAP_DAC_READ_SEARCH",)),
        ({2}, None, ("CAP_SYS_PTRACE",)),
        (set(), None, ("CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH")),
    ],
)
def test_each_missing_right_is_named_with_what_it_costs(
    rights: set[int], ok: bool | None, missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_has", lambda capability: capability in rights)
    found = doctor._other_users()
    assert found.ok is ok
    assert all(name in found.detail for name in missing)
    assert found.detail.count("CAP_") == len(missing)
