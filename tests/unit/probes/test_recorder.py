"""Probe `recorder`: answers of an untrusted debug server."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from hangdoc.system.process_sockets import Endpoint
from probes import recorder
from probes.recorder import MAX_ENTRY_BYTES, NEWEST, _fetch, parse

ENTRY = {
    "process_group": ["0", "default_pg"],
    "collective_seq_id": 7,
    "p2p_seq_id": 0,
    "is_p2p": False,
    "profiling_name": "gloo:all_reduce",
    "input_sizes": [[4, 4]],
    "input_dtypes": ["Float"],
    "retired": True,
}


@contextmanager
def answering(pieces: Iterable[bytes]) -> Iterator[Endpoint]:
    """A server that answers its first client so."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            link = server.accept()[0]
            with link:
                link.recv(65536)
                with suppress(OSError):  # it does not read to the end
                    for piece in pieces:
                        link.sendall(piece)

        threading.Thread(target=serve, daemon=True).start()
        yield Endpoint("127.0.0.1", server.getsockname()[1])


def trace(**change: Any) -> bytes:
    return json.dumps({"version": "2.10", "entries": [ENTRY], "pg_status": {}, **change}).encode()


def test_an_ordinary_answer() -> None:
    body = trace(pg_status={"0": {"last_enqueued_collective": 7, "last_completed_collective": 6}})
    with answering((b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body), body)) as server:
        found = parse(_fetch(server))
    assert (found.version, found.enqueued, found.completed) == ("2.10", {"0": 7}, {"0": 6})
    (entry,) = found.entries
    assert (entry.op, entry.sequence, entry.sizes, entry.dtypes) == ("all_reduce", 7, "[[4, 4]]", ("Float",))


@pytest.mark.parametrize("status", [b"301 Moved", b"302 Found", b"307 Temporary Redirect", b"500 Oops", b"204 None"])
def test_a_redirect_or_a_failure_is_no_answer(status: bytes) -> None:
    head = b"HTTP/1.1 " + status + b"\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    with answering((head,)) as server, pytest.raises(ValueError, match="it answers with HTTP status"):
        _fetch(server)


def test_an_answer_without_an_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MAX_BYTES", 1 << 16)
    with answering((b"HTTP/1.1 200 OK\r\n\r\n", *[b" " * 4096] * 40)) as server, pytest.raises(ValueError, match="MiB"):
        _fetch(server)


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: "])
def test_an_answer_that_drips_is_cut_off(monkeypatch: pytest.MonkeyPatch, head: bytes) -> None:
    monkeypatch.setattr(recorder, "TIMEOUT_S", 0.3)
    left = threading.Event()

    def drip() -> Iterator[bytes]:
        yield head
        while not left.wait(0.05):
            yield b" "

    began = time.monotonic()
    try:
        with answering(drip()) as server, pytest.raises(TimeoutError):
            _fetch(server)
    finally:
        left.set()
    assert time.monotonic() - began < 3


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        trace(entries=3),
        trace(entries=[[]]),
        trace(entries=[{**ENTRY, "process_group": []}]),
        trace(entries=[{**ENTRY, "profiling_name": "x" * MAX_ENTRY_BYTES}]),
        trace(entries=[{**ENTRY, "collective_seq_id": 1 << 70}]),  # no recording could hold it
        trace(pg_status=[1, 2]),
    ],
)
def test_nonsense_is_refused(raw: bytes) -> None:
    with pytest.raises(Exception, match=r"."):
        parse(raw)


def test_only_the_newest_are_read() -> None:
    junk = ["no entry"] * 10_000
    assert len(parse(trace(entries=[*junk, *[ENTRY] * NEWEST])).entries) == NEWEST
