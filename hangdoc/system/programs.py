"""Programs that hangdoc starts: which file that is, and who else may change it."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

MOST_LINKS = 40  # on the way to a file: more than the kernel follows (path_resolution(7))


def find(name: str, also: Sequence[str] = ()) -> str | None:
    """The program of that name on the PATH, or in the folders `also`; None where there is none.

    For root only one that nobody else may change: under sudo, PATH may be the caller's own.
    """
    path = os.pathsep.join((*os.get_exec_path(), *also))
    if os.geteuid() != 0:
        return shutil.which(name, path=path)
    found = (shutil.which(name, path=folder) for folder in path.split(os.pathsep) if os.path.isabs(folder))
    return next((one for one in found if one is not None and only_root_may_change(one)), None)


def py_spy() -> str | None:
    """The py-spy binary: beside this interpreter, else on the PATH."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if os.access(beside, os.X_OK) else find("py-spy")


def only_root_may_change(path: str) -> bool:
    """Nobody but root may change the file, or put another one in its place."""
    try:
        return all(owner == 0 and not open_to_others for owner, open_to_others in path_owners(path))
    except OSError:
        return False


def path_owners(path: str) -> Iterator[tuple[int, bool]]:
    """Owner, and whether others than him and root may write to it, of every folder, link and file on the way to `path`.

    Raises OSError where there is no such file.
    """
    rest, at, links = os.path.abspath(path).split("/")[1:], "/", 0
    yield _of(os.lstat("/"))
    while rest:
        name = rest.pop(0)
        if name in ("", "."):
            continue
        at = os.path.dirname(at) if name == ".." else os.path.join(at, name)
        found = os.lstat(at)
        yield _of(found)
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > MOST_LINKS:
                raise OSError(f"too many links on the way to {path}")
            to = os.readlink(at)
            at = "/" if to.startswith("/") else os.path.dirname(at)
            rest = to.split("/") + rest


def _of(found: os.stat_result) -> tuple[int, bool]:
    mode = found.st_mode
    if stat.S_ISLNK(mode) or (stat.S_ISDIR(mode) and mode & stat.S_ISVTX):  # of /tmp others cannot take files away
        return found.st_uid, False
    return found.st_uid, bool(mode & stat.S_IWOTH or (mode & stat.S_IWGRP and found.st_gid != 0))
