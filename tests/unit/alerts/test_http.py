"""The client: who the receiver must be, and how we get to it."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

from hangdoc.alerts.config import Secret
from hangdoc.alerts.http import Client, Login, SendError, url_problem
from hangdoc.errors import HangdocError
from tests.support import requirements
from tests.support.alert_receivers import Request, receiver
from tests.support.polling import until

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    requirements.met(requirements.commands(("openssl",), "openssl"))
    folder = tmp_path_factory.mktemp("tls")
    made = (folder / "cert.pem", folder / "key.pem")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=receiver"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(made[0]), "-keyout", str(made[1])]
    subprocess.run([*command.split(), *names], check=True, capture_output=True)
    return made


def test_a_certificate_must_be_trusted(certificate: tuple[Path, Path]) -> None:
    with receiver(tls=certificate) as there:
        with pytest.raises(SendError, match="its certificate is not trusted"):
            Client(10).send(there.url, b"{}")
        assert there.requests == []
        assert Client(10, str(certificate[0])).send(there.url, b"{}").status == 200
        other_name = there.url.replace("127.0.0.1", "localhost")
        with pytest.raises(SendError, match="its certificate is not trusted"):
            Client(10, str(certificate[0])).send(other_name, b"{}")
        assert len(there.taken) == 1


def test_a_tls_handshake_has_the_same_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(SendError, match=r"no answer within 0\.3 s"):
            Client(0.3).send(url, b"{}")


def test_a_receiver_without_tls() -> None:
    with receiver() as there, pytest.raises(SendError, match=r"TLS|SSL") as caught:
        Client(10).send(there.url.replace("http://", "https://"), b"{}")
    assert "certificate" not in str(caught.value)


def test_the_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("http://", "http://me:secret@"))
        assert Client(10).send("http://receiver.invalid/hook?a=b", b"{}").status == 200
        (request,) = proxy.requests
        assert request.path == "http://receiver.invalid/hook?a=b"
        sent = {name.lower(): text for name, text in request.headers.items()}
        assert sent["proxy-authorization"] == "Basic " + base64.b64encode(b"me:secret").decode()
        with receiver() as there:
            monkeypatch.setenv("no_proxy", "127.0.0.1")
            assert Client(10).send(there.url, b"{}").status == 200
            assert (len(proxy.requests), len(there.requests)) == (1, 1)


def test_secrets_are_read_for_each_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    client = Client(10, login=Login(token=Secret(file=str(file))))
    with receiver() as there:
        with pytest.raises(HangdocError, match="token: No such file"):
            client.send(there.url, b"{}")
        for token in ("one", "two"):
            file.write_text(token)
            client.send(there.url, b"{}")
        monkeypatch.setenv("HANGDOC_TEST_PASSWORD", "pass")
        Client(10, login=Login("me", Secret(variable="HANGDOC_TEST_PASSWORD"))).send(there.url, b"{}")
        file.write_text("a\r\nX-Evil: yes")
        with pytest.raises(SendError, match="ValueError"):
            client.send(there.url, b"{}")
    sent = [request.headers["Authorization"] for request in there.requests]
    assert sent == ["Bearer one", "Bearer two", "Basic " + base64.b64encode(b"me:pass").decode()]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1:1/secret", "Connection refused"),
        ("http://hangdoc.invalid/secret", "its name is unknown"),
        ("ftp://host/secret", "not an address"),
        ("http://user:secret@host/", "an address with a password"),
    ],
)
def test_an_error_names_no_address(url: str, why: str) -> None:
    with pytest.raises(SendError, match=why) as caught:
        Client(10).send(url, b"{}")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host",
        "http://",
        "http://h:99999/",
        "http://h:0/",
        "http://[::1/",
        "http://h/a b",
        "http://h/\n",
        "http://ü/",
    ],
)
def test_what_is_no_address(url: str) -> None:
    assert url_problem(url).startswith("not an address")


@pytest.mark.parametrize("url", ["http://h", "https://h:1/a?b=c", "http://[::1]:9093/"])
def test_what_is_an_address(url: str) -> None:
    assert url_problem(url) == ""


@pytest.mark.parametrize(
    ("wish", "seconds"), [("3", 3.0), ("99999999", 3600.0), ("-1", None), ("nan", None), ("Fri, 1", None), ("", None)]
)
def test_how_long_a_receiver_may_make_us_wait(wish: str, seconds: float | None) -> None:
    with receiver(lambda request: request.answer(429, headers={"Retry-After": wish})) as there:
        assert Client(10).send(there.url, b"{}").retry_after_s == seconds


def test_requests_leave_no_file_and_no_thread_behind() -> None:
    """Answered, cut off and refused ones."""

    def behave(request: Request) -> None:
        if request.number % 3 == 1:
            request.hang_up()
        else:
            request.answer(200 + 303 * (request.number % 3 == 2), b"x" * 10_000)

    def left() -> tuple[int, int]:
        senders = [one for one in threading.enumerate() if isinstance(one, threading.Timer)]
        return len(senders), len(os.listdir("/proc/self/fd"))

    with socket.create_server(("127.0.0.1", 0)) as silent, receiver(behave) as there:
        client, slow = Client(10), Client(0.1)
        client.send(there.url, b"{}")
        before = until(left, lambda found: found[0] == 0)
        for number in range(1, 31):
            with nullcontext() if number % 3 != 1 else pytest.raises(SendError):
                client.send(there.url, b"{}")
        with pytest.raises(SendError):
            slow.send(f"http://127.0.0.1:{silent.getsockname()[1]}", b"{}")
        until(left, lambda found: found <= before)
