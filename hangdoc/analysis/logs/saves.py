"""Analysis `saves`: a rank that began to save a checkpoint, and had not finished when the others gave up waiting.

Where one rank writes the checkpoint alone, the others wait in the barrier behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

from hangdoc.analysis import Case, Detector, Key
from hangdoc.analysis.logs.log_events import TIMEOUTS, JobLogs, caused_by_peer, job_logs
from hangdoc.evidence.logs import LogEvent

KIND = "saving"


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
        for key, event in dict(logs.of_ranks(KIND)).items():  # the last of each rank
            if key in facts and key not in gave_up and gave_up and not _goes_on(logs, event):
                facts[key] = SaveFacts(event.text)
        return facts, None


def _goes_on(logs: JobLogs, begun: LogEvent) -> bool:
    """True if the save ended, or a counter grew after this line of the same file."""
    counted = (event for event in logs.all("progress") if event.source == begun.source)
    return "ended" in begun.fields or any(event.line > begun.line for event in counted)


ANALYSIS = SaveDetector()
