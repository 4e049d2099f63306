"""Receivers of alerts that tests start: real HTTP servers on loopback, which behave as the test says."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Behaviour = Callable[["Request"], None]


class Request:
    """One request, and the means to answer it."""

    def __init__(self, handler: BaseHTTPRequestHandler, number: int) -> None:
        self.handler = handler
        self.number = number  # from 0
        self.method = handler.command
        self.path = handler.path
        self.headers = dict(handler.headers.items())
        size = int(handler.headers.get("Content-Length", 0))
        self.body = handler.rfile.read(size)

    @property
    def value(self) -> Any:
        return json.loads(self.body)

    def answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.handler.send_response(status)
        for name, text in (headers or {}).items():
            self.handler.send_header(name, text)
        self.handler.send_header("Content-Length", str(len(body)))
        self.handler.end_headers()
        self.handler.wfile.write(body)

    def hang_up(self) -> None:
        """End the connection without an answer."""
        self.handler.close_connection = True


class AlertReceiver:
    """The requests so far, and those that it took for good."""

    def __init__(self, behave: Behaviour | None) -> None:
        self.requests: list[Request] = []
        self.taken: list[Any] = []  # bodies, in order
        self.ended = threading.Event()  # of the test: what hangs may go on
        self.behave = behave or (lambda request: self.take(request))
        self.url = ""
        self._lock = threading.Lock()

    def take(self, request: Request) -> None:
        """Keep the body and say so."""
        self.keep(request)
        request.answer(200)

    def keep(self, request: Request) -> None:
        with self._lock:
            self.taken.append(request.value if request.body else None)

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        with self._lock:
            number = len(self.requests)
            request = Request(handler, number)
            self.requests.append(request)
        self.behave(request)


@contextmanager
def receiver(behave: Behaviour | None = None, tls: tuple[Path, Path] | None = None) -> Iterator[AlertReceiver]:
    """A receiver on a free port; `tls`: certificate and key."""
    found = AlertReceiver(behave)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                found.handle(self)
            except OSError:  # the sender is gone
                self.close_connection = True

        do_GET = do_POST

        def log_message(self, *arguments: object) -> None:
            """Nothing: the tests look at the requests."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, request: object, client_address: object) -> None:
            """A sender that leaves is part of the tests."""

    server = Server(("127.0.0.1", 0), Handler)
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    found.url = f"http{'s' * bool(tls)}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
