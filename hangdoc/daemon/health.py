"""Whether the daemon works: fed by finished rounds and by nothing else; told to systemd and to `/healthz`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import msgspec

from hangdoc.daemon.notify import Notifier
from hangdoc.errors import HangdocError

STEP_S = 30.0  # one step of a round: longer than every deadline inside; then the round is abandoned
STALE_S = 60.0  # without a finished round, the daemon is unhealthy
REQUEST_S = 1.0  # for one HTTP request, so that a silent client blocks nobody
LOOPBACK = "127.0.0.1"

Page = tuple[int, str, bytes]  # HTTP status, content type, body


class Abandoned(BaseException):
    """Raised in a thread that was given up when it finally goes on; not an Exception, so that nothing handles it."""


class Steps:
    """What the thread that runs the rounds is doing, for the thread that watches it."""

    def __init__(self) -> None:
        self.owner: threading.Thread | None = None
        self._running: tuple[str, float] | None = None  # the innermost step, and when it began

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """One step of a round. Raises Abandoned if the round was given up meanwhile."""
        self.check()
        outer, self._running = self._running, (what, time.monotonic())
        try:
            yield
        finally:
            self.check()
            self._running = outer and (outer[0], time.monotonic())

    def check(self) -> None:
        """Raises Abandoned if another thread runs the rounds now."""
        if threading.current_thread() is not self.owner:
            raise Abandoned

    def hand_over(self, thread: threading.Thread) -> None:
        """From now on, `thread` runs the rounds."""
        self.owner, self._running = thread, None

    def overdue(self, now_s: float) -> str | None:
        """The step that takes longer than STEP_S; None: all is well."""
        running = self._running
        return running[0] if running and now_s - running[1] > STEP_S else None


class Liveness:
    """When the last round finished, and what has blocked one."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._began_s = self._finished_s = time.monotonic()
        self._blocked: str | None = None
        self.rounds = 0

    def finished(self) -> None:
        """A round has finished."""
        self._finished_s, self._blocked = time.monotonic(), None
        self.rounds += 1
        self._notifier.alive()

    def blocked(self, what: str) -> None:
        """A round was abandoned in this step."""
        self._blocked = what

    def page(self) -> Page:
        """The answer to `/healthz`: 200 while rounds finish, else 503 with the reason."""
        age_s = time.monotonic() - self._finished_s
        ok = self.rounds > 0 and age_s < STALE_S and self._blocked is None
        status = "ok" if ok else "starting" if not self.rounds and age_s < STALE_S else "blocked"
        body = {"status": status, "rounds": self.rounds, "last_round_age_s": round(age_s, 1), "blocked": self._blocked}
        return 200 if ok else 503, "application/json", msgspec.json.encode(body) + b"\n"


class HealthServer:
    """Serves pages on loopback from a thread of its own. One request at a time, each at most REQUEST_S."""

    def __init__(self, port: int, pages: Mapping[str, Callable[[], Page]]) -> None:
        """Raises HangdocError if the port is taken."""

        class Handler(BaseHTTPRequestHandler):
            timeout = REQUEST_S

            def do_GET(self) -> None:
                page = pages.get(self.path.partition("?")[0])
                status, kind, body = page() if page else (404, "text/plain", b"not found\n")
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:
                """Nothing: a scrape every few seconds is no event."""

        class Server(HTTPServer):
            def server_bind(self) -> None:  # without the lookup of our own name
                self.socket.bind(self.server_address)
                self.server_address = self.socket.getsockname()
                self.server_name, self.server_port = LOOPBACK, self.server_address[1]

            def handle_error(self, request: object, client_address: object) -> None:
                """Nothing: the client has gone."""

        try:
            self._server = Server((LOOPBACK, port), Handler)
        except OSError as error:
            raise HangdocError(f"cannot listen on {LOOPBACK}:{port}: {error.strerror}; choose another port") from None
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(1.0,), name="health", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
