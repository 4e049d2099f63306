"""Analysis `world`: who should be there and who is."""

from __future__ import annotations

from dataclasses import dataclass

from hangdoc.analysis import Case, Key
from hangdoc.evidence import AGENT, limits


@dataclass(frozen=True, slots=True)
class WorldJob:
    size: int | None  # world size, where a rank knows it
    present: int  # ranks whose process lives
    gone: tuple[int, ...]  # ranks that were watched and ended
    missing: tuple[int, ...] | None  # ranks never seen, where the size is known; none where they are too many to name
    hosts: int
    lost: tuple[str, ...] = ()  # hosts of the fleet that are not seen


@dataclass(slots=True)
class WorldAnalysis:
    name: str = "world"
    order: int = 5
    rank_facts: type | None = None
    job_facts: type | None = WorldJob

    def derive(self, case: Case) -> tuple[dict[Key, None], WorldJob]:
        ranks = case.ranks.values()
        sizes = [size for r in ranks if (size := limits.valid_world_size(r.target.world_size)) is not None]
        known = {r.target.rank for r in ranks if r.target.rank is not None}
        size = max(sizes, default=None)
        return {}, WorldJob(
            size=size,
            present=sum(r.alive is not False for r in ranks),
            gone=tuple(sorted(r.target.rank for r in ranks if r.alive is False and r.target.rank is not None)),
            missing=limits.absent_ranks(size, known) if size is not None else None,
            hosts=len({r.target.host for r in ranks}),
            lost=tuple(
                sorted(
                    {lack.host for shot in case.history for lack in shot.unseen if lack.probe == AGENT and lack.host}
                )
            ),
        )


ANALYSIS = WorldAnalysis()
