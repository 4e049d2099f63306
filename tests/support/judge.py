"""The shipped playbooks, compiled once a session, which takes a second, and reports judged by them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from hangdoc.diagnose import Judge
from hangdoc.postmortem.report import Report, report
from hangdoc.watch.run import judge_with


@cache
def judge() -> Judge:
    return judge_with((), print)


def reported(*sources: Path) -> Report:
    """What `hangdoc report` makes of them."""
    return report(sources, judge=judge())
