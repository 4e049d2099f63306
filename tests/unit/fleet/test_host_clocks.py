"""No clock of two hosts is ever compared: what is said of a job does not change with how its hosts' clocks stand.

The ranks of recorded jobs are spread over hosts, each seen in snapshots of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import playbooks
from hangdoc.analysis.network.links import Links
from hangdoc.evidence import Connection, RankEvidence, Snapshot, Sockets, Stack, Stacks, Variable
from hangdoc.evidence.record import field_names
from hangdoc.recording.recorder import read
from hangdoc.verdict import Finding, Verdict
from tests.support.judge import judge
from tests.support.paths import RECORDINGS

HOSTS = ("node-a", "node-b", "node-c")


@cache
def looks(name: str) -> tuple[Snapshot, ...]:
    captured = playbooks.ROOT / name / "capture.jsonl.zst"
    (recording,) = read(captured if captured.exists() else RECORDINGS / f"{name}.jsonl.zst")
    return recording.snapshots


def names() -> list[str]:
    captured = [folder for folder in playbooks.folders() if (folder / "capture.jsonl.zst").exists()]
    recorded = [file.name.removesuffix(".jsonl.zst") for file in sorted(RECORDINGS.glob("*.zst"))]
    return [folder.name for folder in captured] + recorded


# --- one host becomes several ---------------------------------------------------------------------


def host_of(rank: RankEvidence, hosts: int) -> int:
    """Those without a number, as launchers that wait, stay on the first."""
    return (rank.target.rank or 0) % hosts


def spread(history: Sequence[Snapshot], hosts: int) -> list[list[Snapshot]]:
    """By host what is seen of it, oldest first."""
    pids = {rank.target.pid: host_of(rank, hosts) for shot in history for rank in shot.ranks}
    owners = {
        (one.local, one.local_port, one.remote, one.remote_port): pids[rank.target.pid]
        for shot in history
        for rank in shot.ranks
        if isinstance(record := rank.records.get("sockets"), Sockets)
        for one in record.connections
    }
    return [[part(shot, number, pids, owners) for shot in history] for number in range(hosts)]


def part(shot: Snapshot, number: int, pids: Mapping[int, int], owners: Mapping[Any, int]) -> Snapshot:
    ranks = [
        replace(rank, target=replace(rank.target, host=HOSTS[number]), records=moved(rank.records, number, owners))
        for rank in shot.ranks
        if pids[rank.target.pid] == number
    ]
    unseen = tuple(lack for lack in shot.unseen if lack.pid is None or pids.get(lack.pid, 0) == number)
    return replace(shot, host=HOSTS[number], ranks=tuple(ranks), unseen=unseen)


def moved(records: Mapping[str, Any], number: int, owners: Mapping[Any, int]) -> dict[str, Any]:
    sockets = records.get("sockets")
    if not isinstance(sockets, Sockets):
        return dict(records)
    return {**records, "sockets": replace(sockets, connections=tuple(map(Mover(number, owners), sockets.connections)))}


class Mover:
    """Gives a connection between two hosts the addresses that they would have."""

    def __init__(self, number: int, owners: Mapping[Any, int]) -> None:
        self.number, self.owners = number, owners

    def __call__(self, one: Connection) -> Connection:
        there = self.owners.get((one.remote, one.remote_port, one.local, one.local_port))
        if there in (None, self.number):
            return one
        return replace(one, local=f"10.7.0.{self.number + 1}", remote=f"10.7.0.{there + 1}", peer_pid=None)


# --- clocks that stand elsewhere ------------------------------------------------------------------


def shifted(shot: Snapshot, by_s: float) -> Snapshot:
    return replace(shot, at_s=shot.at_s + by_s, ranks=tuple(later(rank, by_s) for rank in shot.ranks))


def later(rank: RankEvidence, by_s: float) -> RankEvidence:
    """The instants in a rank's records, which are the host's own."""
    end, stacks = rank.end, rank.records.get("stacks")
    if end is not None and end.at_s is not None:
        end = replace(end, at_s=end.at_s + by_s)
    if not isinstance(stacks, Stacks):
        return replace(rank, end=end)
    threads = tuple(dated(stack, by_s) for stack in stacks.threads)
    return replace(rank, end=end, records={**rank.records, "stacks": replace(stacks, threads=threads)})


def dated(stack: Stack, by_s: float) -> Stack:
    frames = (
        replace(frame, variables=tuple(due(v, by_s) for v in frame.variables))
        if frame.variables and frame.function == "next_rendezvous"
        else frame
        for frame in stack.frames
    )
    return replace(stack, frames=tuple(frames))


def due(variable: Variable, by_s: float) -> Variable:
    if variable.name != "deadline" or variable.number is None:
        return variable
    return replace(variable, number=variable.number + by_s)


def interleaved(by_host: Sequence[Sequence[Snapshot]], order: Sequence[int]) -> Iterator[Snapshot]:
    """Each host's snapshots in their order; `order` says whose comes next, where that one has more."""
    queues = [iter(shots) for shots in by_host]
    for number in order:
        yield from [shot] if (shot := next(queues[number % len(queues)], None)) else []
    for queue in queues:
        yield from queue


# --- what is said ---------------------------------------------------------------------------------


def told(verdict: Verdict) -> list[Any]:
    job = sorted((line.rank or 0, line.host, line.phase, line.op, line.site) for line in verdict.job.ranks)
    return [verdict.status, verdict.note, job, *map(told_of, verdict.findings)]


def told_of(finding: Finding) -> list[Any]:
    culprits = sorted((one.rank is None, one.rank or 0, one.host, one.site) for one in finding.culprits)
    return [finding.playbook, finding.confidence, finding.summary, culprits, finding.reasons, finding.evidence]


def apart(a: Any, b: Any, at: str) -> Iterator[str]:
    """Where two facts are not the same; what is computed from instants may be off by a rounding."""
    if isinstance(a, Links):
        a, b = tuple(a), tuple(b)
    kind: Any = type(a)
    if names := field_names(kind):
        for name in names:
            if name != "job":
                yield from apart(getattr(a, name), getattr(b, name), f"{at}.{name}")
    elif isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        for number, (one, other) in enumerate(zip(a, b, strict=True)):
            yield from apart(one, other, f"{at}[{number}]")
    elif not (a == b or (isinstance(a, float) and b == pytest.approx(a, rel=1e-6, abs=1e-6))):
        yield f"{at}: {a} and {b}"


@pytest.mark.slow("judges every recording again and again")
@pytest.mark.parametrize("name", names())
@settings(max_examples=4, deadline=None, derandomize=True)
@given(
    hosts=st.sampled_from([2, 3]),
    shifts=st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3),
    order=st.lists(st.integers(0, 5), max_size=30),
)
def test_clocks_are_never_compared(name: str, hosts: int, shifts: list[float], order: list[int]) -> None:
    by_host = spread(looks(name), hosts)
    before = judge().facts([shot for round in zip(*by_host, strict=True) for shot in round])
    late = [[shifted(shot, by_s) for shot in shots] for shots, by_s in zip(by_host, shifts, strict=False)]
    after = judge().facts(list(interleaved(late, order)))
    assert list(apart(before.ranks, after.ranks, "ranks")) == []
    assert list(apart(before.job, after.job, "job")) == []
    assert told(judge().verdict(after)) == told(judge().verdict(before))


def test_a_dead_link_to_a_host_that_is_lost_names_that_host() -> None:
    """Nothing is seen of it: its address stands for it, and its rank is the only one that is not seen."""
    shots = [replace(shot, ranks=tuple(r for r in shot.ranks if r.target.rank == 0)) for shot in looks("dead-link")]
    best = judge().verdict(judge().facts(shots)).findings[0]
    assert best.playbook == "dead-link"
    assert [(culprit.rank, culprit.pid is None) for culprit in best.culprits] == [(0, False), (1, True)]
    assert best.culprits[1].host is not None
    assert f"lead to {best.culprits[1].host}" in best.summary
    assert "?" not in best.summary
