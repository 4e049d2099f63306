"""Finds the programs that hangdoc starts, and checks who may change them."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

MAX_LINKS = 40  # symbolic links followed on one path, as in the kernel (path_resolution(7))


def find(name: str, also: Sequence[str] = ()) -> str | None:
    """Path of the program `name` on the PATH or in the folders `also`; None: not found.

    For root, only a program that nobody else may change, because under sudo PATH may come from the caller.
    """
    path = os.pathsep.join((*os.get_exec_path(), *also))
    if os.geteuid() != 0:
        return shutil.which(name, path=path)
    found = (shutil.which(name, path=folder) for folder in path.split(os.pathsep) if os.path.isabs(folder))
    return next((program for program in found if program is not None and only_root_may_change(program)), None)


def py_spy() -> str | None:
    """Path of py-spy: next to this interpreter, else on the PATH."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if os.access(beside, os.X_OK) else find("py-spy")


def only_root_may_change(path: str) -> bool:
    """True if only root may change the file or replace it."""
    try:
        return all(owner == 0 and not open_to_others for owner, open_to_others in path_owners(path))
    except OSError:
        return False


def path_owners(path: str) -> Iterator[tuple[int, bool]]:
    """Owner of each folder, link and file on `path`, and whether anyone but the owner and root may write to it.

    Raises OSError if there is no such file.
    """
    rest, at, links = os.path.abspath(path).split("/")[1:], "/", 0
    yield _ownership(os.lstat("/"))
    while rest:
        name = rest.pop(0)
        if name in ("", "."):
            continue
        at = os.path.dirname(at) if name == ".." else os.path.join(at, name)
        found = os.lstat(at)
        yield _ownership(found)
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > MAX_LINKS:
                raise OSError(f"too many links on the way to {path}")
            to = os.readlink(at)
            at = "/" if to.startswith("/") else os.path.dirname(at)
            rest = to.split("/") + rest


def _ownership(found: os.stat_result) -> tuple[int, bool]:
    mode = found.st_mode
    if stat.S_ISLNK(mode) or (
        stat.S_ISDIR(mode) and mode & stat.S_ISVTX
    ):  # in sticky folders like /tmp nobody else can replace files
        return found.st_uid, False
    return found.st_uid, bool(mode & stat.S_IWOTH or (mode & stat.S_IWGRP and found.st_gid != 0))
