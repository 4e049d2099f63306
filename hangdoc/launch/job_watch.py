"""Watches the ranks below a command, for as long as the command lives."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from hangdoc.errors import HangdocError
from hangdoc.formatting import seconds
from hangdoc.incident.log import Change, merged
from hangdoc.incident.record import Outcome
from hangdoc.incident.store import IncidentStore
from hangdoc.launch.kill_after import KillAfter, Process, end_tree, is_running
from hangdoc.launch.on_hang import OnHang
from hangdoc.launch.supervisor import Command
from hangdoc.system import procfs
from hangdoc.system.exits import signal_name
from hangdoc.verdict import Verdict
from hangdoc.watch.run import Event, WatchOptions, watch

ORDER_S = 600.0  # for so long after a signal, deaths are its outcome: a job may write a checkpoint before it ends


class View(Protocol):
    """What shows the events of the watch."""

    def emit(self, event: Event) -> None:
        """Show an event."""


@dataclass(slots=True)
class JobWatch:
    """The watch of one command. `options` select the ranks below it."""

    command: Command
    options: WatchOptions
    view: View
    say: Callable[[str], None]
    on_hang: OnHang | None = None
    kill_after: KillAfter | None = None
    _process: Process = field(init=False)
    _ended_by_us: bool = False

    def run(self) -> None:
        """Watch until the command has ended. A launcher that starts its ranks again is followed."""
        start = procfs.stat(self.command.pid)
        self._process = self.command.pid, start.start_ticks if start else 0
        while is_running(self._process):
            try:
                watch(self.options, self._emit, self._status, self.say, (self._heard,), self._is_ordered)
            except HangdocError:
                if is_running(self._process):
                    raise
        if self.on_hang:
            self.on_hang.wait()

    def _is_ordered(self) -> bool:
        """True if the job was asked to end, and not so long ago that it must have gone on."""
        told = self.command.ordered is not None and time.monotonic() - self.command.ordered_s < ORDER_S
        return told or self._ended_by_us

    def _emit(self, event: Event) -> None:
        if event.kind == "started":
            self.command.watched()
        if self.kill_after:
            job = event.verdict.job.id if event.verdict else str(event.data.get("job", ""))
            self.kill_after.event(event.kind, job, event.verdict)
        self.view.emit(event)

    def _status(self, state: Verdict) -> None:
        if self.kill_after is None or self._ended_by_us or not self.kill_after.is_due(state):
            return
        self._ended_by_us = True
        found = f"{state.findings[0].playbook}, stalled for {seconds(state.stalled_for_s)}"
        self.say(f"ending the job, as --kill-after {self.kill_after.after_s:g} orders: {found}")
        end_tree(self._process, self.say)

    def _heard(self, change: Change) -> None:
        """An incident has changed. One whose job was ended on order gets that outcome."""
        if self.on_hang:
            self.on_hang.notify(change)
        incident = change.incident
        if change.kind != "closed" or incident.outcome is None or self.options.incidents is None:
            return
        if self._ended_by_us and self.kill_after:
            text = f"hangdoc ended the job on the user's order (--kill-after {self.kill_after.after_s:g})."
        elif self._is_ordered() and incident.outcome.kind not in ("recovered", "ended"):
            text = f"The user or the scheduler ended the job with {signal_name(self.command.ordered or 0)}."
        else:
            return
        with suppress(OSError):
            outcome = Outcome("killed", text, incident.outcome.at)
            IncidentStore(self.options.incidents).update(replace(incident, outcome=outcome), merged)
