"""The command line of a process as text for people."""

from __future__ import annotations

from hangdoc.redaction.text import redact_words
from hangdoc.system import procfs

LONGEST = 200  # characters


def command_text(pid: int) -> str | None:
    """The command line, redacted and shortened; None: the process is gone or not readable."""
    words = procfs.strings(f"/proc/{pid}/cmdline")
    text = " ".join(redact_words(words)) if words else (procfs.text(f"/proc/{pid}/comm") or "").strip()
    return (text if len(text) <= LONGEST else text[: LONGEST - 3] + "...") or None
