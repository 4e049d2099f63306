"""Errors that a user can act on."""

from __future__ import annotations


class HangdocError(Exception):
    """An expected failure: a sentence with the fault and the remedy, and the exit code (3: unknown)."""

    def __init__(self, message: str, code: int = 3) -> None:
        super().__init__(message)
        self.code = code


class UsageError(HangdocError):
    """An invalid command line: exit code 64."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 64)
