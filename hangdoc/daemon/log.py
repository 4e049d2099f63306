"""The daemon's log: one line for each event on stderr, with priorities if the journal reads it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import TextIO

from hangdoc.redaction.text import redact_text
from hangdoc.render.sanitize import clean

ERROR, WARNING, NOTICE, INFO = 3, 4, 5, 6  # sd-daemon(3)
NAMES = {ERROR: "error", WARNING: "warning", NOTICE: "notice", INFO: "info"}
REPEAT_S = 3600.0  # the same line is written at most this often
MAX_REMEMBERED = 256  # lines


class Log:
    """Writes masked, single lines; any thread may call it."""

    def __init__(self, stream: TextIO, journal: bool) -> None:
        self._stream, self._journal = stream, journal
        self._lock = threading.Lock()
        self._written: dict[str, float] = {}  # line -> when, monotonic clock

    def error(self, text: str) -> None:
        self._write(ERROR, text)

    def warning(self, text: str) -> None:
        self._write(WARNING, text)

    def notice(self, text: str) -> None:
        self._write(NOTICE, text)

    def info(self, text: str) -> None:
        self._write(INFO, text)

    def once(self, text: str) -> None:
        """A warning that is not repeated within REPEAT_S."""
        now_s = time.monotonic()
        if now_s - self._written.get(text, -REPEAT_S) >= REPEAT_S:
            self._written = {line: at_s for line, at_s in self._written.items() if now_s - at_s < REPEAT_S}
            if len(self._written) < MAX_REMEMBERED:
                self._written[text] = now_s
                self.warning(text)

    def _write(self, priority: int, text: str) -> None:
        line = clean(redact_text(text))
        if self._journal:
            line = f"<{priority}>{line}"
        else:
            line = f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ} {NAMES[priority]}: {line}"
        with self._lock:
            print(line, file=self._stream, flush=True)


def is_journal(environment: Mapping[str, str], descriptor: int) -> bool:
    """True if the journal reads this descriptor: JOURNAL_STREAM is its device and inode (systemd.exec(5))."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"
