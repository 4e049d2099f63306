"""The shipped playbooks, compiled once a session, which takes a second, and reports judged by them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from hangdoc.diagnose import Judge, load_judge
from hangdoc.postmortem.report import Report, report


@cache
def judge() -> Judge:
    return load_judge((), print)


def reported(*sources: Path) -> Report:
    """What `hangdoc report` makes of them."""
    return report(sources, judge=judge())
