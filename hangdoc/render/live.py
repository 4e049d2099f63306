"""The live watch: one screen that is redrawn on a terminal, plain or JSON lines elsewhere."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING

from rich.text import Text

from hangdoc.formatting import seconds
from hangdoc.render.page import Page
from hangdoc.render.rank_groups import name
from hangdoc.render.sanitize import clean
from hangdoc.render.terminal import lines, ranks, status_text
from hangdoc.render.verdict_text import job_name, job_text
from hangdoc.verdict import EXIT, Verdict

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

    from hangdoc.watch.run import Event

OVER = frozenset({"started", "healthy", "recovered"})  # an older verdict no longer holds
EVENTS = 5  # last events on the screen
FAILED = 8  # last jobs that failed and are over, on the screen
STYLES = {
    "healthy": "green",
    "recovered": "green",
    "stall": "red",
    "verdict": "red",
    "rank_exited": "red",
    "node_lost": "red",
}


class Closed(Exception):
    """Nobody reads the output any more."""


class Lines:
    """Events as lines, for pipes and files. `text` makes one or more lines of an event."""

    def __init__(self, text: Callable[[Event], str], write: Callable[[str], None], gone: Callable[[], bool]) -> None:
        self.code = 0
        self._text, self._write, self._gone = text, write, gone

    def emit(self, event: Event) -> None:
        if event.verdict is not None:
            self.code = EXIT[event.verdict.status]
        self._write(self._text(event))

    def status(self, _: Verdict) -> None:
        if self._gone():
            raise Closed

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return None


class Screen:
    """A terminal: the jobs' state, the verdict while it holds, the last events. The last picture stays."""

    def __init__(self, console: Console, gone: Callable[[], bool]) -> None:
        self.code = 0
        self._console, self._gone = console, gone
        self._states: dict[str, Verdict] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._events: deque[Event] = deque(maxlen=EVENTS)
        self._failed: list[str] = []  # jobs that are over
        self._live: Live | None = None

    def emit(self, event: Event) -> None:
        self._events.append(event)
        job = event.verdict.job.id if event.verdict else str(event.data.get("job", ""))
        if event.kind == "verdict" and event.verdict is not None:
            self.code = EXIT[event.verdict.status]
            self._verdicts[job] = event.verdict
            self._states[job] = event.verdict
        elif event.kind in OVER:
            self._verdicts.pop(job, None)
        elif event.kind == "job_ended":
            self._over(job)
        self._draw()

    def status(self, state: Verdict) -> None:
        self._states[state.job.id] = state
        self._draw()

    def picture(self) -> Page:
        """All there is to show, however long."""
        page = Page(self._console)
        for job, state in self._states.items():
            if page.lines:
                page.blank()
            if (verdict := self._verdicts.get(job)) is not None:
                page.lines += lines(replace(verdict, stalled_for_s=state.stalled_for_s), self._console)
                continue
            head = status_text(state.status, state.stalled_for_s)
            page.parts([head, f"job {job_name(state.job.id)}", job_text(state.job), clean(state.note)])
            ranks(page, state.job)
        if self._events:
            page.blank()
        for event in self._events:
            page.parts(event_parts(event), 2)
        return page

    def _over(self, job: str) -> None:
        """A job has ended: what made the last of those that failed end is shown as long as we are here."""
        failed = job in self._verdicts and self._verdicts[job].status == "failed"
        self._failed = [*(one for one in self._failed if one != job), *([job] if failed else [])]
        gone = [*self._failed[:-FAILED], *([] if failed else [job])]
        self._failed = self._failed[-FAILED:]
        for one in gone:
            self._verdicts.pop(one, None)
            self._states.pop(one, None)

    def _draw(self) -> None:
        if self._gone():
            raise Closed
        if self._live is None:  # not before there is something to show: until then the progress is on stderr
            from rich.live import Live

            self._live = Live(
                console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
            )
            self._live.start()
        self._live.update(self._fitted(), refresh=True)

    def _fitted(self) -> Text:
        shown = self.picture().lines
        room = max(self._console.height - 1, 3)
        if len(shown) > room:
            shown = [*shown[: room - 1], Text(f"... {len(shown) - room + 1} more lines: hangdoc watch --once", "dim")]
        return Text("\n").join(shown)

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
        if not self._gone():
            self.picture().print()


def event_parts(event: Event) -> list[Text]:
    """Time of day, kind, and what the event says."""
    clock = clean(event.time).partition("T")[2][:8] or clean(event.time)
    kind = Text(clean(event.kind).replace("_", " ").ljust(11), STYLES.get(event.kind, ""))
    return [Text(clock, "dim"), kind, Text(clean(_detail(event)))]


def event_text(event: Event) -> str:
    """The event as one line without styles."""
    return " ".join(part.plain for part in event_parts(event))


def _detail(event: Event) -> str:
    data, verdict = event.data, event.verdict
    job = f"job {job_name(verdict.job.id if verdict else str(data.get('job', 'none')))}"
    if verdict is not None:
        return f"{job}: {verdict.findings[0].summary if verdict.findings else verdict.note}"
    if event.kind == "started":
        return f"{job}: {name((rank if rank >= 0 else None, None) for rank in data.get('ranks', ()))}"
    if event.kind == "stall":
        return f"{job}: no progress for {seconds(data.get('seconds'))}"
    if event.kind == "recovered":
        return f"{job}: makes progress again after {seconds(data.get('seconds'))}"
    if event.kind == "rank_exited":
        how = f": {data['exit']}" if data.get("exit") else ""
        return f"{job}: {name([(data.get('rank'), None)])} (pid {data.get('pid')}) ended{how}"
    if event.kind == "node_lost":
        return f"no data from {data.get('host')}: {data.get('why')}"
    if event.kind == "job_ended":
        return f"{job} has ended"
    if "text" in data:
        return str(data["text"])
    return f"{job}: {data.get('note') or ', '.join(f'{key} {value}' for key, value in data.items())}"


def view(
    console: Callable[[], Console],
    write: Callable[[str], None],
    gone: Callable[[], bool],
    json: bool,
) -> Screen | Lines:
    """The view that suits stdout."""
    if json:
        from hangdoc.render.json import event_line

        return Lines(event_line, write, gone)
    shown = console()
    if sys.stdout.isatty() and not shown.is_dumb_terminal:
        return Screen(shown, gone)

    def plain(event: Event) -> str:
        page = Page(shown)
        page.parts(event_parts(event))
        if event.kind == "verdict" and event.verdict is not None:
            page.lines += lines(event.verdict, shown)
            page.blank()
        return "\n".join(line.plain for line in page.lines)

    return Lines(plain, write, gone)
