"""A command under hangdoc's supervisor, with a stub in place of the watch: `supervised.py WATCH COMMAND...`.

WATCH is what the watcher does: ends | fails | crashes | hangs | watches (and hangs) | reports.
"""

import os
import signal
import sys
import time

from hangdoc.launch.supervisor import Command, supervise

WATCH = sys.argv[1]


def say(text: str) -> None:
    os.write(2, f"hangdoc: {text}\n".encode())


def watch(command: Command) -> None:
    if WATCH == "fails":
        raise ValueError("a bug")
    if WATCH == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    if WATCH in ("watches", "reports"):
        command.watched()
        say("watching")
    if WATCH == "reports":
        with open(f"/proc/{command.pid}/stat") as file:
            while file.seek(0) == 0 and file.read().rpartition(")")[2].split()[0] not in "ZX":
                time.sleep(0.02)
        say(f"the end is reported, signal {command.ordered}")
    while WATCH in ("hangs", "watches"):
        time.sleep(1)


sys.exit(supervise(tuple(sys.argv[2:]), watch, say, finish_s=0.3 if WATCH == "watches" else 5.0))
