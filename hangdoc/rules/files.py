"""Files of playbooks: a user's directory may contain anything."""

from __future__ import annotations

import os
import stat
from pathlib import Path

FILE = "playbook.yaml"
MAX_PLAYBOOKS = 500  # of one directory
MAX_BYTES = 256 * 1024  # of a file


class UnreadableFile(OSError):
    """A file that hangdoc refuses to read: one sentence."""


def find_files(directory: Path) -> list[Path]:
    """Every `ID/playbook.yaml` in order of name, even beyond MAX_PLAYBOOKS; raises OSError."""
    files = (Path(entry.path, FILE) for entry in sorted(os.scandir(directory), key=lambda entry: entry.name))
    return [file for file in files if os.path.lexists(file)]


def read_file(file: Path, limit: int) -> bytes:
    """A regular file of at most `limit` bytes; raises OSError, UnreadableFile for any other.

    Other kinds of files are not even opened: a FIFO would block, and opening a device can trigger it.
    """
    _require_regular(os.stat(file))
    with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as opened:
        _require_regular(os.fstat(opened.fileno()))
        data = opened.read(limit + 1)
    if len(data) > limit:
        raise UnreadableFile(f"is larger than {limit} bytes")
    return data


def _require_regular(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise UnreadableFile("cannot be read: not a regular file")
