"""Failures that the user can fix."""

from __future__ import annotations


class HangdocError(Exception):
    """An expected failure: one sentence with the problem and its remedy, and the exit code (3: cannot tell)."""

    def __init__(self, message: str, code: int = 3) -> None:
        super().__init__(message)
        self.code = code


class UsageError(HangdocError):
    """The command line names something that does not exist: exit code 64."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 64)
