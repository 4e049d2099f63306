"""Post-mortem: recorded evidence through the same analysis and playbooks as the live watch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from hangdoc.errors import HangdocError
from hangdoc.recording import NotARecording, Recording, read
from hangdoc.sampler import of_job
from hangdoc.verdict import Verdict
from hangdoc.watchdog import judge_with


def replay(
    sources: Sequence[Path], playbooks: Sequence[Path] = (), say: Callable[[str], None] = lambda text: None
) -> tuple[Verdict, ...]:
    """The verdict of every job in the recordings; raises HangdocError where nothing recorded is found."""
    judge = judge_with(playbooks, say)
    recordings = [recording for source in sources for recording in _recorded(source)]
    for problem in (problem for recording in recordings for problem in recording.problems):
        say(problem)
    history = [shot for recording in recordings for shot in recording.snapshots]
    jobs = dict.fromkeys(rank.target.job for shot in history for rank in shot.ranks)
    if not jobs:
        names = ", ".join(str(source) for source in sources)
        raise HangdocError(f"no snapshot in {names}: make a recording with `hangdoc watch --record DIR`")
    return tuple(judge.verdict(judge.facts([of_job(shot, job) for shot in history])) for job in jobs)


def _recorded(source: Path) -> tuple[Recording, ...]:
    try:
        return read(source)
    except (NotARecording, OSError) as error:
        raise HangdocError(f"{error}; make a recording with `hangdoc watch --record DIR`") from error
