"""Notes each signal that it gets, a line each, until its stdin ends; then exits with 7.

The first line: whether stdin is a terminal, and whether this process is in its foreground group.
"""

import os
import signal
import sys

front = os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
for number in (1, 2, 3, 10, 12, 14, 15, 18, 28, signal.SIGRTMIN + 3):
    if signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, lambda number, frame: os.write(1, f"signal {number}\n".encode()))
print("ready", os.isatty(0), front, flush=True)
while os.read(0, 100):
    pass
sys.exit(7)
