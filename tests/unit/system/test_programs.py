"""Programs that root may take from its PATH, and the user as whom it may run another user's Python."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hangdoc.doctor.bf16 import NOBODY, user_of
from hangdoc.system import programs

OTHER = 1234
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of others")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that everybody may enter, in one that is root's."""
    for one in (tmp_path, *tmp_path.parents):
        if one != Path("/tmp") and one != Path("/"):
            one.chmod(0o755)
    return tmp_path


def program(at: Path) -> Path:
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_text("#!/bin/sh\n")
    at.chmod(0o755)
    return at


def test_only_root_may_change(folder: Path) -> None:
    assert programs.only_root_may_change(str(program(folder / "bin" / "tool")))
    assert not programs.only_root_may_change(str(folder / "bin" / "missing"))


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o775])
def test_a_folder_that_others_may_write_to(folder: Path, mode: int) -> None:
    tool = program(folder / "a" / "bin" / "tool")
    os.chown(folder / "a", 0, OTHER)
    (folder / "a").chmod(mode)
    assert not programs.only_root_may_change(str(tool))
    (folder / "a").chmod(mode | 0o1000)  # as /tmp: what is root's stays root's there
    assert programs.only_root_may_change(str(tool))


def test_links_are_followed_component_by_component(folder: Path) -> None:
    tool = program(folder / "good" / "tool")
    link = folder / "link"
    link.symlink_to("evil/hop")
    (folder / "evil").mkdir()
    (folder / "evil" / "hop").symlink_to("../good/tool")
    assert programs.only_root_may_change(str(link))
    os.chown(folder / "evil", OTHER, OTHER)
    assert programs.only_root_may_change(str(tool))
    assert not programs.only_root_may_change(str(link)), "its owner may put another link there"
    (folder / "loop").symlink_to("loop")
    assert not programs.only_root_may_change(str(folder / "loop"))


def test_root_uses_only_programs_of_root(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, evil = program(folder / "own" / "tool"), program(folder / "evil" / "tool")
    os.chown(evil.parent, OTHER, OTHER)
    monkeypatch.chdir(evil.parent)
    monkeypatch.setenv("PATH", f":.:{evil.parent}:{own.parent}")
    assert programs.find("tool") == str(own)
    monkeypatch.setenv("PATH", f"{evil.parent}")
    assert programs.find("tool") is None
    assert programs.find("tool", (str(own.parent),)) == str(own)


def test_as_which_user_a_python_runs(folder: Path) -> None:
    python = program(folder / "venv" / "bin" / "python")
    assert user_of(str(python)) == NOBODY, "everybody may get at its modules, or leave some there"
    os.chown(folder / "venv", OTHER, OTHER)
    assert user_of(str(python)) == OTHER, "the file is root's, the folder beside which its modules are is not"
    os.chown(python, OTHER + 1, OTHER)
    assert user_of(str(python)) == NOBODY
    for one in (folder / "venv", python):
        os.chown(one, 0, 0)
    (folder / "venv").chmod(0o700)
    assert user_of(str(python)) is None, "only root gets there"
    (folder / "open").symlink_to(folder / "venv")
    assert user_of(str(folder / "open" / "bin" / "python")) is None
    assert user_of(str(folder / "nowhere")) == NOBODY
