"""The live watch: a screen that is redrawn on a terminal, plain or JSON lines elsewhere."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING

from rich.text import Text

from hangdoc.formatting import seconds
from hangdoc.render.page import GAP, NARROW, Page
from hangdoc.render.rank_groups import name
from hangdoc.render.sanitize import clean
from hangdoc.render.terminal import lines, ranks, status_text
from hangdoc.render.verdict_text import job_name, job_text
from hangdoc.verdict import EXIT, Verdict

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

    from hangdoc.watch.run import Event

CLEARING = frozenset({"started", "healthy", "recovered"})  # events that make an older verdict obsolete
EVENTS = 5  # newest events on the screen
RULE = 80  # columns of the line around a verdict beside the output of a job
FAILED = 8  # newest failed jobs that stay on the screen after their end
STYLES = {
    "healthy": "green",
    "recovered": "green",
    "stall": "red",
    "verdict": "red",
    "rank_exited": "red",
    "node_lost": "red",
}


class Closed(Exception):
    """The output has no reader any more."""


class Lines:
    """Events as lines, for pipes and files; `text` renders one event."""

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
    """A terminal: the state of each job, its verdict while it holds, the newest events. The last picture stays."""

    def __init__(self, console: Console, gone: Callable[[], bool]) -> None:
        self.code = 0
        self._console, self._gone = console, gone
        self._states: dict[str, Verdict] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._events: deque[Event] = deque(maxlen=EVENTS)
        self._failed: list[str] = []  # ids of failed jobs that have ended
        self._live: Live | None = None

    def emit(self, event: Event) -> None:
        self._events.append(event)
        job = event.verdict.job.id if event.verdict else str(event.data.get("job", ""))
        if event.kind == "verdict" and event.verdict is not None:
            self.code = EXIT[event.verdict.status]
            self._verdicts[job] = event.verdict
            self._states[job] = event.verdict
        elif event.kind in CLEARING:
            self._verdicts.pop(job, None)
        elif event.kind == "job_ended":
            self._end(job)
        self._draw()

    def status(self, state: Verdict) -> None:
        self._states[state.job.id] = state
        self._draw()

    def picture(self) -> Page:
        """The whole picture, however long."""
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
            _write_event(page, event, "  ")
        return page

    def _end(self, job: str) -> None:
        """Remove an ended job from the screen; the newest failed jobs stay, with their verdicts."""
        failed = job in self._verdicts and self._verdicts[job].status == "failed"
        self._failed = [*(id for id in self._failed if id != job), *([job] if failed else [])]
        gone = [*self._failed[:-FAILED], *([] if failed else [job])]
        self._failed = self._failed[-FAILED:]
        for id in gone:
            self._verdicts.pop(id, None)
            self._states.pop(id, None)

    def _draw(self) -> None:
        if self._gone():
            raise Closed
        if self._live is None:  # only once there is something to show; until then, progress goes to stderr
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


class Aside:
    """Beside the output of a job, on its stderr: verdicts and recoveries, set apart; nothing is drawn again."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def emit(self, event: Event) -> None:
        page = Page(self._console)
        if event.verdict is not None and event.verdict.status != "unknown":  # a job that ends passes through that
            page.lines += lines(event.verdict, self._console)
            if incident := event.data.get("incident"):
                page.paragraph(
                    f"incident {clean(str(incident))}: hangdoc incidents show {clean(str(incident))}", 2, "dim"
                )
        elif event.kind == "recovered":
            _write_event(page, event)
        else:
            return
        rule = Text("-" * min(self._console.width, RULE), "dim")
        page.lines = [Text(), Text("hangdoc ", "bold").append_text(rule[8:]), *page.lines, rule, Text()]
        with self._console.capture() as shown:
            page.print()
        # In one piece, so that the job's own lines stay outside.
        self._console.file.write(shown.get())
        self._console.file.flush()


def event_parts(event: Event) -> list[Text]:
    """Time of day in UTC, kind, and detail."""
    clock = f"{time_of_day}Z" if (time_of_day := clean(event.time).partition("T")[2][:8]) else clean(event.time)
    kind = Text(clean(event.kind).replace("_", " ").ljust(11), STYLES.get(event.kind, ""))
    return [Text(clock, "dim"), kind, Text(clean(_detail(event)))]


def _write_event(page: Page, event: Event, indent: str = "") -> None:
    """The detail wraps beside time and kind, or below them on a narrow terminal."""
    clock, kind, detail = event_parts(event)
    head = Text.assemble(indent, clock, GAP, kind, GAP)
    if page.console.width >= NARROW:
        page.beside(head, detail)
    else:
        page.parts([clock, kind, detail], len(indent))


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
    """The view for stdout: lines of JSON, a screen, or plain lines."""
    if json:
        from hangdoc.render.json import event_line

        return Lines(event_line, write, gone)
    shown = console()
    if sys.stdout.isatty() and not shown.is_dumb_terminal:
        return Screen(shown, gone)

    def plain(event: Event) -> str:
        page = Page(shown)
        _write_event(page, event)
        if event.kind == "verdict" and event.verdict is not None:
            page.lines += lines(event.verdict, shown)
            page.blank()
        return "\n".join(line.plain for line in page.lines)

    return Lines(plain, write, gone)
