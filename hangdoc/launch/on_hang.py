"""`--on-hang`: runs a shell command of the user once for each incident, in the background."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hangdoc.formatting import name_ranks, seconds
from hangdoc.incident.log import Change
from hangdoc.incident.record import IncidentRecord
from hangdoc.incident.step import turn
from hangdoc.redaction.text import redact_text
from hangdoc.render.sanitize import clean

TIMEOUT_S = 60.0
MAX_OUTPUT = 64 << 10  # bytes of its output that are shown
MAX_VALUE = 4096  # characters of a variable; execve(2) refuses one of 128 KiB
MAX_INCIDENTS = 1000  # remembered
VERDICT = "verdict.json"  # in the folder of the incident

Say = Callable[[str], None]


class OnHang:
    """Listens to incidents and runs the command for each that is diagnosed as a hang.

    `folder` gives the folder of an incident, in which the verdict is left as a file.
    """

    def __init__(self, command: str, folder: Callable[[str], Path], say: Say, timeout_s: float = TIMEOUT_S) -> None:
        self._command, self._folder, self._say, self._timeout_s = command, folder, say, timeout_s
        self._done: dict[str, None] = {}  # ids of incidents, oldest first
        self._running: list[threading.Thread] = []

    def notify(self, change: Change) -> None:
        """Run the command, unless it has run for this incident; returns at once and raises nothing."""
        incident = change.incident
        if incident.id in self._done or not is_hang(incident):
            return
        self._done[incident.id] = None
        if len(self._done) > MAX_INCIDENTS:
            del self._done[next(iter(self._done))]
        if incident.step and not _is_first(incident, self._folder(incident.id)):
            return
        environment = {**os.environ, **variables(incident, self._folder(incident.id), self._say)}
        self._running = [thread for thread in self._running if thread.is_alive()]
        hook = Hook(self._command, "--on-hang", "--on-hang-timeout", self._timeout_s, self._say)
        thread = threading.Thread(target=hook.run, args=(environment,), name="on-hang", daemon=True)
        thread.start()
        self._running.append(thread)

    def wait(self) -> None:
        """Wait for the commands that still run; each ends by its deadline."""
        for thread in self._running:
            thread.join()


@dataclass(frozen=True, slots=True)
class Hook:
    """A shell command of the user or the site. `name` and `option` are for messages."""

    command: str
    name: str
    option: str  # gives it longer
    timeout_s: float
    say: Say

    def run(self, environment: Mapping[str, str]) -> None:
        """Run it to its end or its deadline; its output is shown, bounded. Raises nothing."""
        try:
            # A session of its own: Ctrl-C is for the job, and at the deadline everything that it started is ended.
            process = subprocess.Popen(
                ["/bin/sh", "-c", self.command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            self.say(f"{self.name} could not be started: {error.strerror or error}")
            return
        assert process.stdout is not None
        until_s = time.monotonic() + self.timeout_s
        finished = self._show(process.stdout.fileno(), until_s)
        try:
            code = process.wait(max(0.0, until_s - time.monotonic()) if finished else 0.0)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self.say(f"{self.name} was ended after {seconds(self.timeout_s)}; {self.option} gives it longer")
        else:
            if code:
                how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
                self.say(f"{self.name} failed: {how}")
        finally:
            process.stdout.close()

    def _show(self, pipe: int, until_s: float) -> bool:
        """Show its output, line by line; False: the time is up."""
        rest, shown = b"", 0
        while (left_s := until_s - time.monotonic()) > 0:
            if not select.select([pipe], [], [], left_s)[0]:
                continue
            piece = os.read(pipe, 1 << 14)
            *whole, rest = (rest + piece).split(b"\n") if piece else [rest, b""]
            for line in whole:
                if line and shown < MAX_OUTPUT:
                    self.say(f"{self.name.lstrip('-')}: {line.decode(errors='replace')}")
                shown += len(line) + 1
            if not piece:
                return True
            rest = rest[-MAX_OUTPUT:]
        return False


def _is_first(incident: IncidentRecord, folder: Path) -> bool:
    """False if another task of the step has run its command for this incident."""
    try:
        with turn(folder.parent, incident.step) as ours:
            return ours.call(incident.id)
    except OSError:
        return True  # not kept together: each task is on its own


def is_hang(incident: IncidentRecord) -> bool:
    """True for a stall, and for a failure with a known cause: ranks of a job that starts again fail without one."""
    found = bool(incident.verdicts and incident.verdicts[-1].get("findings"))
    return bool(incident.verdicts) and (incident.status == "stalled" or (incident.status == "failed" and found))


def variables(incident: IncidentRecord, folder: Path, say: Say) -> dict[str, str]:
    """What the command gets in its environment; the values are masked, of one line and bounded."""
    verdict = incident.verdicts[-1]
    first: Mapping[str, Any] = next(iter(verdict.get("findings", ())), {})
    values = {
        "INCIDENT": incident.id,
        "INCIDENT_DIR": str(folder),
        "STATUS": incident.status,
        "PLAYBOOK": first.get("playbook", ""),
        "CLASS": first.get("class", ""),
        "CONFIDENCE": first.get("confidence", ""),
        "SUMMARY": first.get("summary") or verdict.get("note", ""),
        "CULPRITS": _culprits(first),
        "VERDICT": _write(verdict, folder, say),
    }
    return {f"HANGDOC_{name}": clean(redact_text(str(value)))[:MAX_VALUE] for name, value in values.items()}


def _culprits(finding: Mapping[str, Any]) -> str:
    """`rank 2 on node17`, `ranks 0-1 on node3; rank 9 on node4`."""
    ranks: dict[str, list[int]] = {}
    for culprit in finding.get("culprits", ()):
        if culprit.get("rank") is not None:
            ranks.setdefault(culprit.get("host") or "", []).append(culprit["rank"])
    return "; ".join(name_ranks(numbers) + (f" on {host}" if host else "") for host, numbers in ranks.items())


def _write(verdict: Mapping[str, Any], folder: Path, say: Say) -> str:
    """Path of a file with the verdict; "" if it cannot be written."""
    import json

    from hangdoc.system.private_files import replace_file

    try:
        replace_file(folder / VERDICT, json.dumps(verdict, indent=2).encode() + b"\n")
    except OSError as error:
        say(f"the verdict for --on-hang could not be written to {folder}: {error.strerror or error}")
        return ""
    return str(folder / VERDICT)
