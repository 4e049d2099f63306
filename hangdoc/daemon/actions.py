"""[actions]: the site's own command, such as drain, requeue or cancel, for an incident whose fault is clear.

It runs once for an incident, only for a high-confidence cause whose playbook blames the job or the node, and only a few
times an hour. What was done is kept in a file, so that a restart repeats nothing; daemons that share the file share
the limit.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hangdoc.daemon.config import ActionsConfig
from hangdoc.incident.log import Change
from hangdoc.incident.record import IncidentRecord
from hangdoc.launch.on_hang import MAX_VALUE, Hook, is_hang, variables
from hangdoc.redaction.text import redact_text
from hangdoc.render.sanitize import clean
from hangdoc.system.private_files import open_folder, read_file, replace_file
from hangdoc.verdict import CONFIDENCES

HOUR_S = 3600.0
KEPT_S = 7 * 24 * HOUR_S  # an incident is continued for so long
MAX_KEPT = 1_000
MAX_RUNNING = 8
MAX_BYTES = 1 << 20
LOCK_S = 5.0  # for another daemon to let go of the file
FILE, LOCK = "actions.json", "actions.lock"
PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "SLURM_CONF")  # others may hold secrets


class Actions:
    """Hears of incidents, and decides."""

    def __init__(
        self,
        config: ActionsConfig,
        root: Path,
        folder: Callable[[str], Path],
        fault: Callable[[str], str | None],
        say: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`root`: the state folder. `folder`: that of an incident. `fault`: whom a playbook blames, by its ID."""
        self.config = config
        self._root, self._folder, self._fault, self._say, self._clock = root, folder, fault, say, clock
        self._refused: dict[str, None] = {}  # incidents for which the limit was named
        self._busy: set[str] = set()
        self._running: list[threading.Thread] = []

    def notify(self, change: Change) -> None:
        """An incident was opened or became firmer: run the command if all conditions hold. Returns at once."""
        config, incident = self.config, change.incident
        if not config.command or change.kind == "closed" or not is_hang(incident):
            return
        finding: Mapping[str, Any] = next(iter(incident.verdicts[-1].get("findings", ())), {})
        playbook = str(finding.get("playbook", ""))
        if self._fault(playbook) != config.kind or not _is_certain(finding, config.min_confidence):
            return
        self._running = [thread for thread in self._running if thread.is_alive()]
        if incident.id in self._busy or len(self._running) >= MAX_RUNNING:
            return
        self._busy.add(incident.id)
        # In a thread of its own, since a shared folder may be on a dead mount, which must not block the rounds.
        thread = threading.Thread(target=self._act, args=(config, incident, finding), name="action", daemon=True)
        thread.start()
        self._running.append(thread)

    def _act(self, config: ActionsConfig, incident: IncidentRecord, finding: Mapping[str, Any]) -> None:
        note = _note(config.kind, incident, finding)
        try:
            free = self._count(config, incident.id, note)
        except (OSError, ValueError) as error:
            self._say(f"{incident.id}: no action: {_place(config, self._root)} cannot be used: {error}")
            free = None
        if free is False and incident.id not in self._refused:
            self._refused[incident.id] = None
            most = f"{config.max_per_hour} action{'s' * (config.max_per_hour != 1)}"
            self._say(f"{incident.id}: no action: {most} in the last hour, which is the limit: {note}")
        if free and config.dry_run:
            self._say(f"{incident.id}: dry run, this would run now: {clean(config.command, 200)}: {note}")
        elif free:
            self._say(f"{incident.id}: running the site's command: {note}")
            passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
            hook = Hook(config.command, "the action", "`timeout_s` in [actions]", config.timeout_s, self._say)
            hook.run({**passed, **self._variables(config.kind, incident, finding, note)})
        self._busy.discard(incident.id)

    def wait(self, seconds: float) -> None:
        """Wait for the commands that still run, for at most so long."""
        until_s = time.monotonic() + seconds
        for thread in self._running:
            thread.join(max(0.0, until_s - time.monotonic()))

    def _variables(self, kind: str, incident: IncidentRecord, finding: Mapping[str, Any], note: str) -> dict[str, str]:
        more = {
            "FAULT": kind,
            "NOTE": note,
            "HOSTS": ",".join(_hosts(finding)),
            "JOB": incident.job,
            "SLURM_JOB": incident.slurm_job or "",
            "USER": incident.user or "",
        }
        return {
            **variables(incident, self._folder(incident.id), self._say),
            **{f"HANGDOC_{name}": clean(redact_text(value))[:MAX_VALUE] for name, value in more.items()},
        }

    # --- the limit --------------------------------------------------------------------------------

    def _count(self, config: ActionsConfig, id: str, note: str) -> bool | None:
        """Count an action for this incident: True. False: the limit is reached. None: it was taken before.

        Raises OSError or ValueError if nobody can tell: then there is no action.
        """
        place, now_s = _place(config, self._root), self._clock()
        with _locked(place):
            done = _read(place / FILE)
            if any(one["incident"] == id for one in done):
                return None
            recent = sum(now_s - float(one["at"]) < HOUR_S for one in done)
            if recent >= config.max_per_hour:
                return False
            kept = [one for one in done if now_s - float(one["at"]) < KEPT_S][-MAX_KEPT + 1 :]
            entry = {"incident": id, "at": now_s, "note": note, "dry_run": config.dry_run}
            replace_file(place / FILE, json.dumps([*kept, entry], indent=1).encode() + b"\n")
        return True


def _place(config: ActionsConfig, root: Path) -> Path:
    return Path(config.shared_dir) if config.shared_dir else root


def _is_certain(finding: Mapping[str, Any], least: str) -> bool:
    confidence = finding.get("confidence")
    return confidence in CONFIDENCES and CONFIDENCES.index(confidence) >= CONFIDENCES.index(least)


def _hosts(finding: Mapping[str, Any]) -> Sequence[str]:
    """The hosts of the culprits."""
    return tuple(dict.fromkeys(str(one["host"]) for one in finding.get("culprits", ()) if one.get("host")))


def _note(kind: str, incident: IncidentRecord, finding: Mapping[str, Any]) -> str:
    """One line for the reason of a drained node or the comment of a job: whose fault it was, and what happened."""
    where = ", ".join(_hosts(finding))
    text = f"[{kind}] {finding.get('title', '')} ({finding.get('playbook', '')}{f', {where}' if where else ''})"
    return clean(redact_text(f"{text}; hangdoc {incident.id}"))[:MAX_VALUE]


def _read(path: Path) -> list[dict[str, Any]]:
    """What was done. Raises OSError or ValueError: a damaged file stops all actions rather than the limit."""
    try:
        done = json.loads(read_file(path, MAX_BYTES))
    except FileNotFoundError:
        return []
    if not isinstance(done, list) or not all(
        isinstance(one, dict) and isinstance(one.get("at"), (int, float)) and isinstance(one.get("incident"), str)
        for one in done
    ):
        raise ValueError(f"{path} is damaged; remove it to start again")
    return done


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Hold the lock of the file. Raises OSError if another daemon holds it for too long."""
    with open_folder(place, make=True) as folder:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(LOCK, flags, 0o600, dir_fd=folder)
    try:
        until_s = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)
