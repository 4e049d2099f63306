"""Recordings of any length: the looks that are judged, and the segments that are read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import zstandard
from msgspec.structs import replace

from hangdoc.evidence import RankEvidence, Snapshot, Target
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._input_file import find_sources
from hangdoc.postmortem.readers._recording_windows import ROUNDS
from hangdoc.postmortem.readers.recording import READER, join_segments
from hangdoc.recording import recorder as recording
from hangdoc.recording.recorder import LEADS, Recorder
from hangdoc.system import input_limits
from hangdoc.verdict import Job, Verdict
from tests.support.samples import read, source

HEADER = b'{"schema": "hangdoc.recording/1"}\n'


def shot(number: int, job: str = "a", pids: Sequence[int] = (10, 11), dead: Sequence[int] = ()) -> Snapshot:
    ranks = tuple(RankEvidence(Target(pid, 1, "n", pid, job=job), pid not in dead) for pid in pids)
    return Snapshot("n", float(number), f"2026-01-01T00:00:{number:04}", ranks)


def both(number: int) -> Snapshot:
    """A look at job a and at job b."""
    return replace(shot(number), ranks=shot(number).ranks + shot(number, "b", (20,)).ranks)


def verdict(status: str = "stalled", job: str = "a") -> Verdict:
    return Verdict(status, 5.0, Job(job, 2, None, ("n",), ()))


def judged(folder: Path, said: list[str] | None = None) -> list[Snapshot]:
    """What a report of a folder with one recording judges."""
    (found,) = join_segments(find_sources([folder], print))
    context = ReadContext((said if said is not None else []).append)
    return [one for one in READER.read(found, context) if isinstance(one, Snapshot)]


def times(shots: Sequence[Snapshot], job: str = "a") -> list[float]:
    return [one.at_s for one in shots if any(rank.target.job == job for rank in one.ranks)]


def test_a_short_recording_is_judged_whole(tmp_path: Path) -> None:
    said: list[str] = []
    with Recorder(tmp_path, "n") as recorder:
        for number in range(ROUNDS):
            recorder.snapshot(shot(number))
        recorder.verdict(verdict())
    assert times(judged(tmp_path, said)) == list(range(ROUNDS))
    assert said == []


@pytest.mark.parametrize("segment_s", [0.0, 1e9])
def test_end_of_a_long_recording_is_judged_with_a_warning(tmp_path: Path, segment_s: float) -> None:
    said: list[str] = []
    with Recorder(tmp_path, "n", segment_s=segment_s) as recorder:
        for number in range(400):
            recorder.snapshot(shot(number))
    assert times(judged(tmp_path, said)) == list(range(400 - ROUNDS, 400))
    assert len(said) == 1
    assert f"{ROUNDS} of " in said[0]


@pytest.mark.parametrize("segment_s", [0.0, 1e9])
def test_looks_before_a_standing_verdict_are_judged(tmp_path: Path, segment_s: float) -> None:
    said: list[str] = []
    with Recorder(tmp_path, "n", segment_s=segment_s) as recorder:
        for number in range(400):
            recorder.snapshot(both(number))
            if number == 100:
                recorder.verdict(verdict())
    found = judged(tmp_path, said)
    assert times(found) == [*range(101 - LEADS, 101), *range(400 - ROUNDS, 400)]
    assert times(found, "b") == list(range(400 - ROUNDS, 400))
    assert "earlier verdicts: stalled at 2026-01-01T00:00:0100, job a, in " in said[0]


@pytest.mark.parametrize("over", ["recovered", "slow", "another"])
def test_looks_before_a_recovered_verdict_are_not_judged(tmp_path: Path, over: str) -> None:
    said: list[str] = []
    with Recorder(tmp_path, "n") as recorder:
        for number in range(400):
            again = over == "another" and number > 200
            recorder.snapshot(shot(number, pids=(30, 31) if again else (10, 11)))  # it was started again
            if number == 100:
                recorder.verdict(verdict("slow" if over == "slow" else "stalled"))
            if number == 110 and over == "recovered":
                recorder.recovered("a")
    assert times(judged(tmp_path, said)) == list(range(400 - ROUNDS, 400))
    assert "at 2026-01-01T00:00:0100, job a" in said[0]  # it is named all the same


def test_ended_job_is_judged_at_its_verdict(tmp_path: Path) -> None:
    with Recorder(tmp_path, "n") as recorder:
        for number in range(100):
            recorder.snapshot(shot(number))
        recorder.verdict(verdict("failed"))
        for number in range(100, 400):
            recorder.snapshot(shot(number, "b", (20,)))
    assert times(judged(tmp_path)) == list(range(100 - LEADS, 100))


def test_last_look_at_a_dead_rank_is_judged_while_its_job_runs(tmp_path: Path) -> None:
    with Recorder(tmp_path, "n") as recorder:
        for number in range(400):
            recorder.snapshot(shot(number, dead=(11,) if number >= 100 else ()))
    assert times(judged(tmp_path)) == [99, *range(400 - ROUNDS, 400)]
    with Recorder(tmp_path / "other", "n") as recorder:
        for number in range(400):
            recorder.snapshot(
                shot(number, pids=(10, 11) if number < 200 else (30,), dead=(11,) if number >= 100 else ())
            )
    assert times(judged(tmp_path / "other")) == list(range(400 - ROUNDS, 400))


def test_segments_without_a_verdict_are_not_read(tmp_path: Path) -> None:
    with Recorder(tmp_path, "n", segment_s=0.0) as recorder:
        for number in range(400):
            recorder.snapshot(shot(number))
    (found,) = join_segments(find_sources([tmp_path], print))
    assert len(found.earlier_segments) == ROUNDS
    assert found.skipped_segments == 400 - ROUNDS - 1


def test_recordings_of_two_runs_stay_separate(tmp_path: Path) -> None:
    for _ in range(2):
        with Recorder(tmp_path, "n", segment_s=0.0) as recorder:
            for number in range(3):
                recorder.snapshot(shot(number))
    (tmp_path / "old.jsonl.zst").write_bytes(zstandard.compress(HEADER))
    (tmp_path / "job.log").write_text("a line\n")
    (tmp_path / "broken.jsonl.zst").write_bytes(b"\x28\xb5\x2f\xfdnot zstd")
    found = join_segments(find_sources([tmp_path], print))
    assert sorted(len(one.earlier_segments) for one in found) == [0, 0, 0, 2, 2]


def test_a_segment_alone_is_read(tmp_path: Path) -> None:
    with Recorder(tmp_path, "n", segment_s=0.0) as recorder:
        for number in range(5):
            recorder.snapshot(shot(number))
    third = sorted(tmp_path.iterdir())[2]
    (found,) = join_segments(find_sources([third], print))
    assert [one.at_s for one in READER.read(found, ReadContext(print)) if isinstance(one, Snapshot)] == [2.0]


def test_segment_removed_by_its_recorder_is_reported(tmp_path: Path) -> None:
    with Recorder(tmp_path, "n", segment_s=0.0) as recorder:
        for number in range(3):
            recorder.snapshot(shot(number))
    (found,) = join_segments(find_sources([tmp_path], print))
    found.earlier_segments[0].path.unlink()
    said: list[str] = []
    assert [one.at_s for one in READER.read(found, ReadContext(said.append)) if isinstance(one, Snapshot)] == [1.0, 2.0]
    assert "its recorder has removed it" in said[0]


def packed(path: Path, *lines: bytes) -> Source:
    path.write_bytes(zstandard.ZstdCompressor(level=19).compress(HEADER + b"".join(line + b"\n" for line in lines)))
    assert path.stat().st_size < 100_000
    return source(path)


def rank(number: int) -> bytes:
    return b'{"target":{"pid":%d,"start_ticks":0,"host":"n","rank":null}}' % number


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            [b'{"snapshot":{"host":"n","at_s":1,"time":"","ranks":[' + b",".join([rank(1)] * 200_000) + b"]}}"],
            "ranks are",
        ),
        ([b'{"snapshot":{"host":"n","at_s":1,"time":"","records":{"x":[' + b"[]," * 5_000_000 + b"[]]}}}"], "memory"),
        (
            [b'{"snapshot":{"host":"n","at_s":1,"time":"","records":{"x":"' + b"x" * 100_000_000 + b'"}}}'],
            "longer than",
        ),
        ([b'{"snapshot":' + b"[" * 1_000_000], "line skipped"),
        ([b'{"snapshot":{"host":"n","at_s":' + b"1" * 1_000_000 + b"}}"], "line skipped"),
        ([b"{}"] * 500_000, "more lines than"),
        ([b"x" * 999_999] * 40, "unpacks to more than"),
    ],
    ids=["ranks", "lists", "text", "nested", "number", "lines", "zstd"],
)
@pytest.mark.slow("unpacks up to the limits")
def test_small_bomb_is_cut_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[bytes], said: str
) -> None:
    if "unpacks" in said:
        monkeypatch.setattr(input_limits, "STREAM", 8 * input_limits.MIB)
    made = packed(tmp_path / "bomb.jsonl.zst", *lines)
    problems: list[str] = []
    assert list(READER.read(made, ReadContext(problems.append))) == []
    assert any(said in problem for problem in problems), problems
    assert len(problems) < 30


def test_malformed_verdict_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(HEADER + b'{"verdict": {"status": 3}}\n{"verdict": []}\n[]\n' + json.dumps({"end": 1}).encode())
    found, problems = read("recording", path)
    assert found == []
    assert len([problem for problem in problems if "line skipped" in problem]) == 2


def test_leads_fit_into_the_kept_rounds() -> None:
    assert recording.LEADS <= ROUNDS
