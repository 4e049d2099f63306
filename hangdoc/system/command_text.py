"""The command line of a process as text for people."""

from __future__ import annotations

import os

from hangdoc.redaction.text import redact_words
from hangdoc.system import procfs


def command_text(pid: int, longest: int = 200, folder: bool = True) -> str | None:
    """The command line, redacted and cut to `longest` characters; None: the process is gone or not readable.

    `folder`: keep the folder of the program.
    """
    words = redact_words(procfs.strings(f"/proc/{pid}/cmdline") or ((procfs.text(f"/proc/{pid}/comm") or "").strip(),))
    if not folder:
        words = (os.path.basename(words[0]), *words[1:])
    text = " ".join(" ".join(words).split())
    return (text if len(text) <= longest else text[: longest - 3] + "...") or None
