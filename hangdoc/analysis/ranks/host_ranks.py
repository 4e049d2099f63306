"""The ranks of a host that is at fault as a whole: its port, its power, its cores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hangdoc.analysis import Case, Suspect
from hangdoc.evidence.placement import HostRanks, short_name


def ranks_of_host(case: Case, host: str) -> tuple[int, ...]:
    """The ranks of a host, if a text states all of them."""
    return case.once("host ranks", lambda: _stated(case)).get(short_name(host), ())


def ranks_per_host(case: Case) -> int | None:
    """How many ranks a text states that each host has."""
    records = (shot.records.get("placement") for shot in case.history)
    sizes = {one.per_host for one in records if isinstance(one, HostRanks)} - {None}
    return sizes.pop() if len(sizes) == 1 else None


def on_hosts(case: Case, suspects: Iterable[Suspect]) -> tuple[Suspect, ...]:
    """The suspects; in place of a host, its ranks if a text states all of them."""
    found: dict[Suspect, None] = {}
    for one in suspects:
        ranks = ranks_of_host(case, one.host) if one.host and one.rank is None and one.pid is None else ()
        found.update(dict.fromkeys([Suspect(rank, None, one.host) for rank in ranks] or [one]))
    return tuple(found)


def _stated(case: Case) -> Mapping[str, tuple[int, ...]]:
    """What all texts state; nothing of a host that two of them place otherwise."""
    found: dict[str, tuple[int, ...]] = {}
    for shot in case.history:
        record = shot.records.get("placement")
        for host, ranks in record.ranks.items() if isinstance(record, HostRanks) else ():
            found[host] = ranks if found.get(host, ranks) == ranks else ()
    return found
