"""Analysis `common_lines`: ranks that have not printed the last line of all others (readers/_common_lines)."""

from __future__ import annotations

from dataclasses import dataclass

from hangdoc.analysis import Case, Detector, Key, Suspect
from hangdoc.analysis.logs.log_events import job_logs
from hangdoc.analysis.ranks.host_ranks import on_hosts

KIND = "line_lacks"


@dataclass(frozen=True, slots=True)
class CommonLinesJob:
    """None or empty: there is no such line."""

    lacking: tuple[Suspect, ...] = ()  # ranks that have not printed the line
    line: str | None = None  # the last line of the others
    others: int = 0  # ranks that have printed it
    own: str | None = None  # the last line of the first rank without it; None as well: it has printed none


class CommonLinesDetector(Detector[object, CommonLinesJob]):
    job_facts = CommonLinesJob

    def derive(self, case: Case) -> tuple[dict[Key, object], CommonLinesJob]:
        logs = job_logs(case)
        event = next(iter(logs.all(KIND)), None) if logs else None
        if event is None:
            return {}, CommonLinesJob()
        lacking = on_hosts(case, [Suspect(int(rank)) for rank in event.fields["lacking"].split(",")])
        return {}, CommonLinesJob(lacking, event.text, int(event.fields["others"]), event.fields.get("own"))


ANALYSIS = CommonLinesDetector()
