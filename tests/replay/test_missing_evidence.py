"""Without the evidence of any one probe, no verdict turns from right to confidently wrong.

Every capture and recording is judged again without one probe: of all ranks, of one rank, of one host; with that probe
alone; and without native frames, which py-spy may fail to read. Missing evidence may cost the cause, or confidence. It
may not make a hung job healthy, nor blame anybody whom the whole evidence does not blame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hangdoc.evidence import RankEvidence, Snapshot, Stacks, Target
from hangdoc.recording.recorder import read
from hangdoc.verdict import Verdict
from tests.support.judge import judge
from tests.support.paths import PLAYBOOKS, RECORDINGS

FILES = [*sorted(PLAYBOOKS.glob("*/capture.jsonl.zst")), *sorted(RECORDINGS.glob("*.jsonl.zst"))]
LAYERS = {playbook.id: playbook.envelope.layer for playbook in judge().library.playbooks}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(file.parents[1]).as_posix().split(".")[0])
def test_no_verdict_becomes_confidently_wrong(file: Path) -> None:
    for recording in read(file):
        whole = judged(recording.snapshots)
        found = {
            f"{file.parent.name}/{file.name} {what}": f"{fault}: {said(whole)} -> {said(verdict)}"
            for what, missing, shots in reductions(recording.snapshots, whole)
            if (fault := wrong(whole, verdict := judged(shots), missing))
        }
        assert not found, "\n".join(f"{what}: {fault}" for what, fault in found.items())


def wrong(whole: Verdict, verdict: Verdict, missing: Sequence[str]) -> str:
    """What is confidently wrong about a verdict on less evidence; empty if nothing is."""
    if verdict.status == "healthy" and whole.status in ("stalled", "failed"):
        return "a hung job is called healthy"
    if verdict.status == "healthy" != whole.status and not any(probe in verdict.note for probe in missing):
        return f"nothing says that the job may be {whole.status}"
    best = verdict.findings[0] if verdict.findings else None
    if best is None or best.confidence == "low":
        return ""
    if not whole.findings:
        return "a finding in a healthy job"
    culprits, links = ({one for finding in whole.findings for one in named(finding)} for named in (_culprits, _links))
    if not (_culprits(best) <= culprits or (best.links and _links(best) <= links)):
        return "other culprits"
    # A symptom, or a finding that the cause explains, is less than the cause, and as true.
    explained = {one.playbook for one in whole.considered if one.why.startswith("explained by ")}
    less = {*explained, *(id for id, layer in LAYERS.items() if layer == "symptom")}
    as_true = best.playbook == whole.findings[0].playbook or (best.playbook in less and verdict.status == whole.status)
    return "" if as_true else "another cause"


def _culprits(finding: Any) -> set[tuple[int | None, str | None]]:
    return {(culprit.rank, culprit.host) for culprit in finding.culprits}


def _links(finding: Any) -> set[frozenset[str]]:
    return {frozenset((link.local, link.remote)) for link in finding.links}


def judged(shots: Sequence[Snapshot]) -> Verdict:
    return judge().verdict(judge().facts(shots))


def said(verdict: Verdict) -> str:
    findings = (
        f"{one.playbook} {one.confidence} {sorted(str(culprit.rank) for culprit in one.culprits)}: {one.summary}"
        for one in verdict.findings[:1]
    )
    return " ".join([verdict.status, *findings, verdict.note])


# --- less evidence --------------------------------------------------------------------------------


def reductions(shots: Sequence[Snapshot], whole: Verdict) -> Iterator[tuple[str, Sequence[str], Sequence[Snapshot]]]:
    """What was left out, in words and by probe, and what is left."""
    probes = sorted({probe for shot in shots for probe in chain(shot.records, *(rank.records for rank in shot.ranks))})
    targets = list({(rank.target.host, rank.target.pid): rank.target for shot in shots for rank in shot.ranks}.values())
    hosts = sorted({shot.host for shot in shots})
    if any(_has_native_frames(rank) for shot in shots for rank in shot.ranks):
        yield "without native frames", ["native"], without_native_frames(shots)
    for number, probe in enumerate(probes):
        yield f"without {probe}", [probe], reduced(shots, {probe})
        yield f"with {probe} alone", [one for one in probes if one != probe], reduced(shots, {*probes} - {probe})
        for target in some(targets, whole, number) if len(targets) > 1 else ():
            if any(rank.target == target and probe in rank.records for shot in shots for rank in shot.ranks):
                of_rank = reduced(shots, {probe}, ranks=target.__eq__, hosts=lambda _: False)
                yield f"without {probe} of rank {target.rank}", [probe], of_rank
        for host in hosts if len(hosts) > 1 else ():
            of_host = reduced(shots, {probe}, ranks=partial(_is_on, host), hosts=host.__eq__)
            yield f"without {probe} of host {host}", [probe], of_host


def _has_native_frames(rank: RankEvidence) -> bool:
    stacks = rank.records.get("stacks")
    return isinstance(stacks, Stacks) and stacks.native


def without_native_frames(shots: Sequence[Snapshot]) -> Sequence[Snapshot]:
    def left(rank: RankEvidence) -> RankEvidence:
        stacks = rank.records.get("stacks")
        if not isinstance(stacks, Stacks):
            return rank
        threads = (replace(one, frames=tuple(f for f in one.frames if not f.native)) for one in stacks.threads)
        return replace(rank, records={**rank.records, "stacks": replace(stacks, native=False, threads=tuple(threads))})

    return [replace(shot, ranks=tuple(map(left, shot.ranks))) for shot in shots]


def _is_on(host: str, target: Target) -> bool:
    return target.host == host


def some(targets: Sequence[Target], whole: Verdict, number: int) -> Sequence[Target]:
    """A culprit and another rank, which may not have been seen: for each probe the next ones, as all take minutes."""
    culprits = {culprit.rank for finding in whole.findings for culprit in finding.culprits}
    parts = ([target for target in targets if (target.rank in culprits) is named] for named in (True, False))
    return [part[number % len(part)] for part in parts if part]


def reduced(
    shots: Sequence[Snapshot],
    probes: set[str],
    ranks: Callable[[Target], bool] = lambda _: True,
    hosts: Callable[[str], bool] = lambda _: True,
) -> Sequence[Snapshot]:
    """The snapshots without the records of these probes, of some ranks and hosts."""

    def left(records: Mapping[str, object]) -> dict[str, object]:
        return {probe: record for probe, record in records.items() if probe not in probes}

    return [
        replace(
            shot,
            records=left(shot.records) if hosts(shot.host) else shot.records,
            ranks=tuple(
                replace(rank, records=left(rank.records)) if ranks(rank.target) else rank for rank in shot.ranks
            ),
        )
        for shot in shots
    ]
