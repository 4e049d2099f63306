"""What a hostile rank can make hangdoc send: by default nothing, and never anything to anyone but the rank itself."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.other_user import Stranger, hangdoc, stranger

# A rank with a thread named like that of torch's debug server. It serves the store of its job itself, in the wire
# format of TCPStore, and whatever key is asked for, the value is argv[1] ({port}: that of its own web server).
# What its web server answers is argv[2]; every connection is counted in the file `asked`.
RANK = """
import os, socket, struct, sys, threading, time
def named():
    open(f"/proc/self/task/{threading.get_native_id()}/comm", "w").write("pt_workerserver")
    time.sleep(600)
def note(what):
    with open("asked", "a") as file:
        file.write(what + "\\n")
def exactly(link, count):
    data = b""
    while len(data) < count:
        part = link.recv(count - len(data))
        if not part:
            raise EOFError
        data += part
    return data
def store(link):
    note("store")
    try:
        exactly(link, 5)
        while True:
            kind = exactly(link, 1)[0]
            for _ in range(struct.unpack("<Q", exactly(link, 8))[0] if kind == 5 else 1):
                exactly(link, struct.unpack("<Q", exactly(link, 8))[0])
            if kind == 5:
                link.sendall(b"\\0")
            else:
                link.sendall(struct.pack("<Q", len(value)) + value)
    except (EOFError, OSError):
        pass
def web(link):
    note("web")
    try:
        link.recv(65536)
        if answer == "drip":
            link.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 100000\\r\\n\\r\\n")
            while True:
                link.sendall(b" ")
                time.sleep(0.2)
        link.sendall(answer.encode().decode("unicode_escape").encode())
        link.close()
    except OSError:
        pass
def serve(server, what):
    while True:
        link = server.accept()[0]
        threading.Thread(target=what, args=(link,), daemon=True).start()
pages = socket.create_server(("127.0.0.1", 0))
value = sys.argv[1].replace("{port}", str(pages.getsockname()[1])).encode()
answer = sys.argv[2] if len(sys.argv) > 2 else ""
keys = socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"])))
threading.Thread(target=serve, args=(pages, web), daemon=True).start()
threading.Thread(target=serve, args=(keys, store), daemon=True).start()
threading.Thread(target=named, daemon=True).start()
print("ready", flush=True)
time.sleep(600)
"""
TRIES = 4
ASKS = ("--ask", "recorder")


@dataclass
class Bystander:
    """A server of root's that no rank has anything to do with."""

    port: int
    visits: list[str] = field(default_factory=list)


@contextmanager
def bystander() -> Iterator[Bystander]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = Bystander(server.getsockname()[1])

        def serve() -> None:
            while True:
                try:
                    link, whence = server.accept()
                except OSError:
                    return
                with link:
                    link.settimeout(1.0)
                    try:
                        found.visits.append(f"{whence}: {link.recv(200)!r}")
                    except OSError:
                        found.visits.append(str(whence))

        threading.Thread(target=serve, daemon=True).start()
        yield found
        server.shutdown(socket.SHUT_RDWR)


@contextmanager
def rank(value: str, answer: str = "") -> Iterator[Stranger]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    told = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with stranger(RANK, value, answer, environment=told) as started:
        yield started


def verdict(one: Stranger, *options: str) -> dict[str, Any]:
    """Of a watch that examined the rank: on a busy host one may end before it has seen enough for that."""
    for _ in range(TRIES):
        done = hangdoc("watch", "--once", "--json", "--pids", str(one.pid), *options)
        (line,) = done.stdout.splitlines()
        found: dict[str, Any] = json.loads(line)
        if asked(one) or any(lack["probe"] == "recorder" for lack in found["unseen"]):
            return found
    raise AssertionError(f"it was never examined: {found}, {done.stderr}")


def asked(one: Stranger) -> list[str]:
    file = one.folder / "asked"
    return file.read_text().split() if file.exists() else []


def test_by_default_nothing_is_asked_of_it() -> None:
    with rank("http://127.0.0.1:{port}") as hostile:
        said = verdict(hostile)
        assert asked(hostile) == []
    assert any("--ask recorder" in lack["why"] for lack in said["unseen"]), said["unseen"]


def test_it_cannot_point_elsewhere() -> None:
    with bystander() as other, rank(f"http://127.0.0.1:{other.port}") as hostile:
        verdict(hostile, *ASKS)
        assert asked(hostile) == ["store"] * len(asked(hostile)) != [], "the test must get as far as the store"
        assert other.visits == []


def test_its_redirect_is_not_followed() -> None:
    with bystander() as other:
        answer = rf"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{other.port}/\r\nContent-Length: 0\r\n\r\n"
        with rank("http://127.0.0.1:{port}", answer) as hostile:
            verdict(hostile, *ASKS)
            assert "web" in asked(hostile), "the test must get as far as the server"
            assert other.visits == []


def test_another_name_for_its_own_port_is_not_looked_up() -> None:
    """torch's own value names a host; only its port is believed, and asked for at the rank itself."""
    with rank("http://elsewhere.invalid:{port}", r"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as hostile:
        verdict(hostile, *ASKS)
        assert "web" in asked(hostile)


def test_an_answer_that_drips_is_left() -> None:
    with rank("http://127.0.0.1:{port}", "drip") as hostile:
        said = verdict(hostile, *ASKS)
        assert "web" in asked(hostile)
    assert any(lack["probe"] == "recorder" for lack in said["unseen"]), said["unseen"]


@pytest.mark.parametrize("value", ["file:///etc/passwd", "http://127.0.0.1:99999999"])
def test_what_is_no_address_is_said(value: str) -> None:
    with rank(value) as hostile:
        said = verdict(hostile, *ASKS)
        assert "web" not in asked(hostile)
    assert any(lack["probe"] == "recorder" for lack in said["unseen"]), said["unseen"]
