"""Ranks that NCCL found on the GPU of another: whether any of them stands out."""

from __future__ import annotations

from hangdoc.analysis.logs.log_events import JobLogs, number


def by_design(logs: JobLogs, per_host: int | None) -> bool:
    """True if the launch or the script put ranks onto one GPU, so that no rank is more at fault than another.

    Either every rank took the same GPU, or there are more ranks on a host than GPUs, and `rank % count` starts over:
    each pair is the same number of ranks apart, and closer than the ranks of the host.
    """
    events = list(logs.all("duplicate_gpu"))
    found = {frozenset((number(event, "rank") or 0, number(event, "rank_b") or 0)) for event in events}
    pairs = sorted(tuple(sorted(pair)) for pair in found if len(pair) == 2)
    sharing = {rank for pair in pairs for rank in pair}
    if len(sharing) > 2 and len(sharing) == logs.size:
        return True
    if per_host is None or not pairs or logs.size not in (None, per_host):
        return False
    if sharing == set(range(per_host)) and len({event.fields.get("gpu") for event in events}) == 1:
        return True
    apart = {last - first for first, last in pairs}
    return len(pairs) > 1 and len(apart) == 1 and apart.pop() > 1 and max(sharing) < per_host
