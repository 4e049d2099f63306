"""One request to a receiver, which is not trusted: with a deadline for all of it, bounded answers, and no redirects.

urllib3, because it comes with detect-secrets anyway, uses the system's certificate authorities, and needs 14 MiB with
all of ssl. httpx would add six packages, and its timeouts, too, are for single reads and not for the whole exchange.
"""

from __future__ import annotations

import base64
import math
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hangdoc.alerts.config import Secret
from hangdoc.render.sanitize import clean

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, PoolManager

MAX_ANSWER = 4_096  # bytes read of an answer: enough for a reason
NO_SECRET = Secret()
MAX_WAIT_S = 3_600.0  # of Retry-After


class SendError(Exception):
    """The receiver got nothing, or did not answer: the end of a sentence."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer."""

    status: int
    retry_after_s: float | None  # None: no wish
    text: str  # its beginning, safe for a terminal


@dataclass(frozen=True, slots=True)
class Login:
    """How we say who we are."""

    username: str = ""
    password: Secret = NO_SECRET
    token: Secret = NO_SECRET

    def headers(self) -> dict[str, str]:
        """Raises HangdocError if a secret is missing."""
        if self.token:
            return {"Authorization": f"Bearer {self.token.read()}"}
        if self.username:
            pair = f"{self.username}:{self.password.read()}".encode()
            return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
        return {}


def url_problem(url: str) -> str:
    """Why a text is no address of a receiver, as a sentence with its remedy; "": it is one."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        known = False
    if not known or not url.isascii() or not url.isprintable() or " " in url:
        return "not an address; write https://HOST[:PORT]/PATH"
    if parts.username is not None or parts.password is not None:
        return "an address with a password; use `username` and `password_file`"
    return ""


class Client:
    """Sends requests one after the other, each over a connection of its own; for one thread."""

    def __init__(self, timeout_s: float, ca_file: str = "", login: Login | None = None) -> None:
        self._timeout_s = timeout_s
        self._ca_file = ca_file
        self._login = login or Login()
        self._sockets: list[socket.socket] = []  # duplicates, to end a request from outside

    def send(self, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Reply:
        """POST a body, or GET without one. Raises SendError, and HangdocError if a secret is missing."""
        from urllib3 import Timeout
        from urllib3.exceptions import HTTPError, NewConnectionError, TimeoutError

        if problem := url_problem(url):
            raise SendError(problem)
        sent = {"User-Agent": "hangdoc", "Connection": "close", **self._login.headers(), **(headers or {})}
        with self._deadline() as is_over:
            try:
                response = self._manager(url).request(
                    "POST" if body is not None else "GET",
                    url,
                    body=body,
                    headers=sent,
                    redirect=False,
                    retries=False,
                    preload_content=False,
                    decode_content=False,
                    timeout=Timeout(total=self._timeout_s),
                )
                try:
                    wish = _seconds(response.headers.get("Retry-After"))
                    return Reply(response.status, wish, _reason_given(response))
                finally:
                    response.close()
            except (HTTPError, OSError, ValueError) as error:  # ValueError: headers that are none
                # urllib3 may notice just before us; its NewConnectionError is no timeout, though derived from one.
                late = isinstance(error, TimeoutError) and not isinstance(error, NewConnectionError)
                why = f"no answer within {self._timeout_s:g} s" if late or is_over() else _reason(error)
                raise SendError(why) from None

    @contextmanager
    def _deadline(self) -> Iterator[Any]:
        """Ends the request after the timeout: urllib3's own is for each read, and a receiver may drip."""
        over = threading.Event()

        def end() -> None:
            over.set()
            for duplicate in tuple(self._sockets):
                with suppress(OSError):
                    duplicate.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(self._timeout_s, end)
        timer.daemon = True
        timer.start()
        try:
            yield over.is_set
        finally:
            timer.cancel()
            for duplicate in self._sockets:
                duplicate.close()
            self._sockets.clear()

    def _manager(self, url: str) -> PoolManager:
        """Connections through the proxy that the environment names, if it names one for this address."""
        from urllib.request import getproxies, proxy_bypass

        from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager, ProxyManager, make_headers
        from urllib3.connection import HTTPConnection, HTTPSConnection

        sockets = self._sockets

        def opened(made: socket.socket) -> socket.socket:
            sockets.append(made.dup())
            return made

        class Plain(HTTPConnection):
            def _new_conn(self) -> socket.socket:
                return opened(super()._new_conn())

        class Secure(HTTPSConnection):
            def _new_conn(self) -> socket.socket:
                return opened(super()._new_conn())

        class PlainPool(HTTPConnectionPool):
            ConnectionCls = Plain

        class SecurePool(HTTPSConnectionPool):
            ConnectionCls = Secure

        parts = urlsplit(url)
        proxies = getproxies()
        proxy = proxies.get(parts.scheme) or proxies.get("all")
        tls: dict[str, Any] = {"ca_certs": self._ca_file} if self._ca_file else {}
        if proxy and not proxy_bypass(parts.hostname or ""):
            via = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
            login = f"{via.username}:{via.password or ''}" if via.username else None
            address = via._replace(netloc=via.netloc.rpartition("@")[2]).geturl()
            headers = make_headers(proxy_basic_auth=login) if login else None
            manager: PoolManager = ProxyManager(address, proxy_headers=headers, **tls)
        else:
            manager = PoolManager(**tls)
        manager.pool_classes_by_scheme = {"http": PlainPool, "https": SecurePool}
        return manager


def _reason_given(response: BaseHTTPResponse) -> str:
    """The beginning of an answer that is no success: of one that is, only the status counts."""
    from urllib3.exceptions import HTTPError

    if 200 <= response.status < 300:
        return ""
    with suppress(HTTPError, OSError, ValueError):
        return clean(response.read(MAX_ANSWER).decode(errors="replace"), 200)
    return ""


def _seconds(text: str | None) -> float | None:
    """The wish of a Retry-After header in seconds; dates are ignored."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return min(value, MAX_WAIT_S) if math.isfinite(value) and value >= 0 else None


_REASONS = {
    "NameResolutionError": "its name is unknown",
    "ProtocolError": "the connection broke",
    "ProxyError": "the proxy refused",
}


def _reason(error: BaseException) -> str:
    """The kind of an error, without the address, which may hold a secret."""
    inner = getattr(error, "reason", None)
    found = inner if isinstance(inner, BaseException) else error
    cause = found.__cause__ or found.__context__
    if name := _REASONS.get(type(found).__name__):
        return name
    if "CERTIFICATE_VERIFY_FAILED" in f"{found} {cause}":
        return "its certificate is not trusted"
    texts = (one.strerror for one in (found, cause) if isinstance(one, OSError) and one.strerror)
    return next(texts, type(found).__name__)
