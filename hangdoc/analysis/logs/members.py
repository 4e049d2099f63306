"""Analysis `members`: a host that counts fewer members of its group than the other hosts do.

In an elastic group, the counts change for a while as members come and go. So the host must never have counted as many
as most hosts always do.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hangdoc.analysis import Case, Detector, Key, Suspect
from hangdoc.analysis.logs.log_events import job_logs, number
from hangdoc.analysis.thresholds import COMPARABLE_RANKS

KIND = "members_counted"
MAX_SUSPECTS = 16


@dataclass(frozen=True, slots=True)
class MembersJob:
    """None or empty: all hosts count the same, or nothing shows how many."""

    apart: tuple[Suspect, ...] = ()  # hosts that count fewer members than most hosts
    why: str | None = None  # "volta-2 counts 1, most hosts 2"


class MembersDetector(Detector[object, MembersJob]):
    job_facts = MembersJob

    def derive(self, case: Case) -> tuple[dict[Key, object], MembersJob]:
        logs = job_logs(case)
        counts: dict[str, tuple[int, int]] = {}
        for event in logs.all(KIND) if logs else ():
            least, most = number(event, "least"), number(event, "most")
            if least is not None and most is not None and (owner := event.fields.get("owner")):
                counts[owner] = least, most
        steady = Counter(least for least, most in counts.values() if least == most)
        if len(counts) < COMPARABLE_RANKS or not steady:
            return {}, MembersJob()
        usual, hosts = steady.most_common(1)[0]
        fewer = {host: most for host, (_, most) in counts.items() if most < usual}
        if not fewer or hosts <= len(counts) / 2 or hosts + len(fewer) < len(counts):
            return {}, MembersJob()
        shown = ", ".join(f"{host} counts {most}" for host, most in list(fewer.items())[:4])
        suspects = tuple(Suspect(None, None, host) for host in fewer)[:MAX_SUSPECTS]
        return {}, MembersJob(suspects, f"{shown}, most hosts {usual}")


ANALYSIS = MembersDetector()
