"""A running `hangdoc daemon`, small jobs without torch for it to watch, and a receiver of its alerts."""

from __future__ import annotations

import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.benchmarks import short_jobs
from tests.support.cli import HANGDOC
from tests.support.paths import ROOT
from tests.support.polling import until


class Receiver:
    """A webhook that keeps the CloudEvents it gets; `fails` of them are refused with 503, by chance."""

    def __init__(self, fails: float = 0.0) -> None:
        self.events: list[dict[str, Any]] = []
        self.fails = fails
        chance = random.Random(18)
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                refused = chance.random() < receiver.fails
                if not refused:
                    receiver.events.append(json.loads(body))
                self.send_response(503 if refused else 204)
                self.end_headers()

            def log_message(self, format: str, *arguments: object) -> None:
                """The events are enough."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def kinds(self) -> dict[str, Counter[str]]:
        """By incident: how often it was fired, updated, resolved. An event that came twice counts once."""
        found: dict[str, Counter[str]] = {}
        for event in {event["id"]: event for event in tuple(self.events)}.values():
            kind = event["type"].removeprefix("hangdoc.incident.")
            found.setdefault(event["subject"], Counter())[kind] += 1
        return found


class Daemon:
    """A running daemon, and the lines of its log."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None, prefix: Sequence[str] = ()) -> None:
        """`prefix`: a command that starts it, with other rights."""
        self.lines: list[str] = []
        self.runtime = tempfile.TemporaryDirectory(
            prefix="hangdoc-run-"
        )  # its socket: daemons of tests run side by side
        self.process = subprocess.Popen(
            [*prefix, *HANGDOC, "daemon", "--config", f"{folder}/hangdoc.toml", "--state", f"{folder}/state"],
            cwd=ROOT, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "RUNTIME_DIRECTORY": self.runtime.name, **(environment or {})},
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    def says(self, *words: str, within_s: float = 60.0) -> str:
        """The first line of the log with all these words; fails if there is none."""
        until(lambda: self.process.poll() is not None or self._find(words), within_s=within_s)
        line = self._find(words)
        assert line, f"{words} is nowhere in:\n" + "\n".join(self.lines)
        return line

    def _find(self, words: tuple[str, ...]) -> str:
        return next((line for line in tuple(self.lines) if all(word in line for word in words)), "")

    def end(self, how: int = signal.SIGTERM, within_s: float = 10.0) -> int:
        self.process.send_signal(how)
        return self.process.wait(within_s)


@contextmanager
def daemon(
    folder: Path, config: str = "", environment: Mapping[str, str] | None = None, labels: Sequence[str] = ()
) -> Iterator[Callable[[], Daemon]]:
    """A function that starts a daemon on `folder`; it watches the jobs of `job(folder)`, and those with these labels.

    Ends the daemons that still run.
    """
    watched = json.dumps([script(folder).name, *labels])
    (folder / "hangdoc.toml").write_text(f"[jobs]\nlabels = {watched}\n{config}")
    started: list[Daemon] = []

    def start() -> Daemon:
        started.append(Daemon(folder, environment))
        return started[-1]

    try:
        yield start
    finally:
        for one in started:
            one.process.kill()
            one.process.wait()


def script(folder: Path) -> Path:
    """What the ranks of `job(folder)` run, under a name of its own: the daemons of other tests do not watch them."""
    known = next(folder.glob("short_*.py"), None)
    if known is None:
        known = folder / f"short_{secrets.token_hex(4)}.py"
        shutil.copy(short_jobs.SCRIPT, known)
    return known


@contextmanager
def job(folder: Path, ranks: int = 2, **environment: str) -> Iterator[short_jobs.Job]:
    """A healthy job that makes steps, until the body ends; its name is in `name`."""
    for _ in range(20):
        try:
            found = short_jobs.started(folder, random.randrange(1, 10_000), ranks, script(folder), environment)
            break
        except OSError:  # the port is taken
            continue
    try:
        yield found
    finally:
        for rank in found.ranks:
            rank.kill()
            rank.wait()
