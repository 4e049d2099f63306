"""Functions that tests run in hangdoc's sandbox; imported there without site packages."""

from __future__ import annotations

import threading
import time


def busy_afterwards(text: bytes, seconds: float) -> int:
    """Answers at once, while a thread of its own goes on using the CPU."""

    def work() -> None:
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass

    threading.Thread(target=work, daemon=True).start()
    return len(text)
