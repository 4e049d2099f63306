"""Analysis `saves`: a rank that began to save a checkpoint, and had not finished when the others gave up waiting.

Where one rank writes the checkpoint alone, the others wait in the barrier behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

from hangdoc.analysis import Case, Detector, Key
from hangdoc.analysis.logs.log_events import TIMEOUTS, JobLogs, caused_by_peer, job_logs
from hangdoc.evidence.logs import LogEvent

BEGUN, ENDED = "saving", "saved"


@dataclass(frozen=True, slots=True)
class SaveFacts:
    """One rank. None: no line of this rank shows a save without an end, or no other rank gave up."""

    unfinished: str | None = None  # line with which it began


class SaveDetector(Detector[SaveFacts, None]):
    rank_facts = SaveFacts

    def derive(self, case: Case) -> tuple[dict[Key, SaveFacts], None]:
        facts = dict.fromkeys(case.ranks, SaveFacts())
        logs = job_logs(case)
        if logs is None:
            return facts, None
        gave_up = {key for key, _ in logs.of_ranks(*TIMEOUTS)}
        gave_up |= {key for key, event in logs.of_ranks("exception") if caused_by_peer(event)}
        for key, event in _begun(logs).items():
            if key in facts and key not in gave_up and gave_up and not _goes_on(logs, event):
                facts[key] = SaveFacts(event.text)
        return facts, None


def _begun(logs: JobLogs) -> dict[Key, LogEvent]:
    """The last beginning of a save of each rank, without those that it finished."""
    found = {key: event for key, event in logs.of_ranks(BEGUN)}
    for key, event in logs.of_ranks(ENDED):
        if key in found and event.line > found[key].line:
            del found[key]
    return found


def _goes_on(logs: JobLogs, begun: LogEvent) -> bool:
    """True if a save ended, or a counter grew, after this line of the same file."""
    return any(event.source == begun.source and event.line > begun.line for event in logs.all("progress", ENDED))


ANALYSIS = SaveDetector()
