"""Failures that a user can do something about."""

from __future__ import annotations


class HangdocError(Exception):
    """An expected failure: a sentence that says what is wrong and what to do, and the exit code (3: cannot tell)."""

    def __init__(self, message: str, code: int = 3) -> None:
        super().__init__(message)
        self.code = code


class UsageError(HangdocError):
    """The command line asks for something that does not exist: exit code 64."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 64)
