"""The command line of a process as text for people."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from hangdoc.redaction.text import redact_words
from hangdoc.system import procfs

_FOLDERS = re.compile(r"^/\S*/(?=[^\s/]+$)")  # of a word that is a path and nothing else


def command_text(pid: int, longest: int = 200, folder: bool = True) -> str | None:
    """The command line, redacted and cut to `longest` characters; None: the process is gone or not readable.

    One that is too long loses the folders of its files first, since their names say more. `folder`: keep the folder of
    the program.
    """
    words = redact_words(procfs.strings(f"/proc/{pid}/cmdline") or ((procfs.text(f"/proc/{pid}/comm") or "").strip(),))
    if not folder:
        words = (os.path.basename(words[0]), *words[1:])
    text = _line(words)
    if len(text) > longest:
        text = _line(_FOLDERS.sub(".../", word) for word in words)
    return (text if len(text) <= longest else text[: longest - 3] + "...") or None


def _line(words: Iterable[str]) -> str:
    return " ".join(" ".join(words).split())
