"""OOM counters of cgroups: of this machine, and made up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hangdoc.system import cgroups
from hangdoc.system.cgroups import Mount, OomCounter, oom_counter, reread


def test_counter_of_our_own_process() -> None:
    found = oom_counter(os.getpid(), cgroups.own_mounts())
    assert found is not None
    assert found.kills >= 0
    assert reread(found) == found


@pytest.mark.parametrize(
    ("controllers", "name", "text"),
    [
        ({"memory"}, "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
        (set(), "memory.events", "low 0\nhigh 0\nmax 7\noom 9\noom_kill 3\noom_group_kill 0\n"),
    ],
    ids=["version 1", "version 2"],
)
def test_counter_of_the_process_s_cgroup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, controllers: set[str], name: str, text: str
) -> None:
    folder = tmp_path / "job" / "rank-1"
    folder.mkdir(parents=True)
    (folder / name).write_text(text)
    mount = Mount(str(tmp_path), "/", frozenset(controllers))
    monkeypatch.setattr(cgroups, "memberships", lambda text, known: [(mount, "/job/rank-1")])
    found = oom_counter(os.getpid(), [mount])
    assert found == OomCounter(str(folder / name), 3)
    (folder / name).write_text(text.replace("oom_kill 3", "oom_kill 5"))
    assert reread(found) == OomCounter(str(folder / name), 5)
    (folder / name).unlink()
    assert reread(found) is None


def test_counter_of_the_host_if_the_cgroup_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vmstat").write_text("nr_free_pages 1\noom_kill 12\n")
    monkeypatch.setattr(cgroups, "_HOST", str(tmp_path / "vmstat"))
    assert oom_counter(os.getpid(), []) == OomCounter(str(tmp_path / "vmstat"), 12)
    (tmp_path / "vmstat").unlink()
    assert oom_counter(os.getpid(), []) is None
