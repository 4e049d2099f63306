"""The files of a directory of playbooks. The directory is a user's: it may hold anything."""

from __future__ import annotations

import os
import stat
from pathlib import Path

FILE = "playbook.yaml"
MAX_PLAYBOOKS = 500  # of one directory


class UnfitError(OSError):
    """A file that is not read: one sentence."""


def found(directory: Path) -> list[Path]:
    """Every `ID/playbook.yaml`, by name, more than MAX_PLAYBOOKS where there are; raises OSError."""
    files = (Path(entry.path, FILE) for entry in sorted(os.scandir(directory), key=lambda entry: entry.name))
    return [file for file in files if os.path.lexists(file)]


def read(file: Path, limit: int) -> bytes:
    """A file of at most `limit` bytes; raises OSError, UnfitError for what is too large or no regular file.

    What is no regular file is not even opened: a FIFO would block, and to open a device can set it off.
    """
    _require_regular(os.stat(file))
    with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as opened:
        _require_regular(os.fstat(opened.fileno()))
        data = opened.read(limit + 1)
    if len(data) > limit:
        raise UnfitError(f"is larger than {limit} bytes")
    return data


def _require_regular(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise UnfitError("cannot be read: not a regular file")
