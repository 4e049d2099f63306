"""Analysis `world`: which ranks the job should have, and which were seen."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hangdoc.analysis import Analysis, Case, Key
from hangdoc.evidence import AGENT, limits

# Of ssh, kubectl and the collector: nothing came back. "Permission denied" or a missing command is an answer.
_NO_ANSWER = re.compile(
    r"timed out|no route to host|host is (?:down|unreachable)|i/o timeout|has been silent", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class WorldJob:
    """The ranks and hosts of the job."""

    size: int | None  # world size; None: no rank knows it
    present: int  # number of ranks with a living process
    gone: tuple[int, ...]  # ranks that were watched and have ended
    missing: tuple[int, ...] | None  # ranks never seen; None: size unknown; (): also if there are too many to list
    hosts: int  # number of hosts with a rank
    lost: tuple[str, ...] = ()  # hosts of the fleet that do not report
    silent: tuple[str, ...] = ()  # of these, hosts from which no answer comes at all


class WorldAnalysis(Analysis[None, WorldJob]):
    job_facts = WorldJob

    def derive(self, case: Case) -> tuple[dict[Key, None], WorldJob]:
        ranks = case.ranks.values()
        sizes = [size for r in ranks if (size := limits.valid_world_size(r.target.world_size)) is not None]
        known = {r.target.rank for r in ranks if r.target.rank is not None}
        size = max(sizes, default=None)
        lost = _lost(case)
        return {}, WorldJob(
            size=size,
            present=sum(r.alive is not False for r in ranks),
            gone=tuple(sorted(r.target.rank for r in ranks if r.alive is False and r.target.rank is not None)),
            missing=limits.absent_ranks(size, known) if size is not None else None,
            hosts=len({r.target.host for r in ranks}),
            lost=tuple(sorted(lost)),
            silent=tuple(sorted(host for host, why in lost.items() if _NO_ANSWER.search(why))),
        )


def _lost(case: Case) -> dict[str, str]:
    """Hosts whose newest snapshot says only why nothing was seen there, with the reason."""
    newest = {shot.host: shot for shot in case.history}
    return {host: lack.why for host, shot in newest.items() for lack in shot.unseen if lack.probe == AGENT}


ANALYSIS = WorldAnalysis()
