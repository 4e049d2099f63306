"""Markers by folder, and the signals with which the tests start their children."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from types import FrameType

import pytest

from hangdoc.system import node_socket

MARKS = {
    "replay": ("replay",),
    "live": ("live",),
    "live/fleet": ("fleet",),
    "live/frameworks": ("frameworks", "quiet"),
    "live/hostile": ("hostile",),
}


@pytest.fixture(autouse=True, scope="session")
def _state() -> Iterator[None]:
    """Incidents of the watches that the tests start go to a folder of the tests, and end with them.

    Nor do these watches ask a daemon that this machine, or a test beside, may have.
    """
    with tempfile.TemporaryDirectory(prefix="hangdoc-state-", ignore_cleanup_errors=True) as folder:
        given = {"HANGDOC_STATE": folder, node_socket.VARIABLE: "off"}
        os.environ.update(given)
        yield
        for name in given:
            del os.environ[name]


def pytest_configure() -> None:
    """Let signals reach the children, though the shell of `make test &` starts us with SIGINT and SIGQUIT ignored, and
    nohup with SIGHUP.

    An ignored signal stays ignored across exec; one with a handler gets its default action back.
    """
    handlers = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGQUIT: _do_nothing,
        signal.SIGHUP: _do_nothing,
    }
    for number, handler in handlers.items():
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """For a signal that would be ignored."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with what its folder is for."""
    tests = config.rootpath / "tests"
    for item in items:
        folder = item.path.parent.relative_to(tests)
        for part in (folder, *folder.parents):
            for mark in MARKS.get(part.as_posix(), ()):
                item.add_marker(mark)
