"""The counters of the kernel's out-of-memory killer, of this machine and made up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hangdoc.system import oom_kills
from hangdoc.system.cgroups import Mount
from hangdoc.system.oom_kills import Counter, again, counter


def test_the_counter_of_a_process_of_this_host() -> None:
    found = counter(os.getpid(), oom_kills.mounts())
    assert found is not None
    assert found.kills >= 0
    assert again(found) == found


@pytest.mark.parametrize(
    ("controllers", "name", "text"),
    [
        ({"memory"}, "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
        (set(), "memory.events", "low 0\nhigh 0\nmax 7\noom 9\noom_kill 3\noom_group_kill 0\n"),
    ],
    ids=["version 1", "version 2"],
)
def test_the_group_s_own_counter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, controllers: set[str], name: str, text: str
) -> None:
    folder = tmp_path / "job" / "rank-1"
    folder.mkdir(parents=True)
    (folder / name).write_text(text)
    mount = Mount(str(tmp_path), "/", frozenset(controllers))
    monkeypatch.setattr(oom_kills, "places", lambda text, known: [(mount, "/job/rank-1")])
    found = counter(os.getpid(), [mount])
    assert found == Counter(str(folder / name), 3)
    (folder / name).write_text(text.replace("oom_kill 3", "oom_kill 5"))
    assert again(found) == Counter(str(folder / name), 5)
    (folder / name).unlink()
    assert again(found) is None


def test_without_a_counter_the_host_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vmstat").write_text("nr_free_pages 1\noom_kill 12\n")
    monkeypatch.setattr(oom_kills, "_HOST", str(tmp_path / "vmstat"))
    assert counter(os.getpid(), []) == Counter(str(tmp_path / "vmstat"), 12)
    (tmp_path / "vmstat").unlink()
    assert counter(os.getpid(), []) is None
