"""Markers by folder, and the signals with which the tests start their children."""

from __future__ import annotations

import signal

import pytest

MARKED_FOLDERS = {"replay": "replay", "live": "live", "live/fleet": "fleet", "live/hostile": "hostile"}


def pytest_configure() -> None:
    """Let SIGINT end the children, though the shell of `make test &` starts us with SIGINT ignored.

    An ignored signal stays ignored across exec; one with a handler gets its default action back.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with what its folder is for."""
    tests = config.rootpath / "tests"
    for item in items:
        folder = item.path.parent.relative_to(tests).as_posix() + "/"
        for part, name in MARKED_FOLDERS.items():
            if folder.startswith(part + "/"):
                item.add_marker(name)
