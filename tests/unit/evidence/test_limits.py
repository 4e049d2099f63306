"""Claimed ranks and world sizes: accepted only if possible, and never a cost in memory or time."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hangdoc.discovery.dead_ranks import mass_absences, missing_ranks
from hangdoc.discovery.environment import identity
from hangdoc.discovery.launcher import launch_of
from hangdoc.evidence import Process, RankEvidence, RecordedCall, Snapshot, Target, ThreadCpu, limits
from hangdoc.incident.incident import build_incident
from hangdoc.postmortem.assemble import snapshots
from hangdoc.postmortem.report import report
from hangdoc.render import html
from tests.support.judge import judge
from tests.support.pace import within

SIZES = [200_000, 1_000_000, limits.MAX_RANKS]
LIMIT_S, LIMIT_BYTES = 0.5, 8 << 20  # for what takes milliseconds and kilobytes


@contextmanager
def cheap() -> Iterator[None]:
    """The body takes little time and memory."""
    tracemalloc.start()
    start = time.process_time()
    try:
        yield
        took, peak = time.process_time() - start, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert took < LIMIT_S
    assert peak < LIMIT_BYTES


def environment(**more: str) -> dict[str, str]:
    return {"RANK": "0", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", **more}


@pytest.mark.parametrize(
    ("told", "size"),
    [
        ("8", 8),
        ("200000", 200_000),
        (str(limits.MAX_RANKS), limits.MAX_RANKS),
        (str(limits.MAX_RANKS + 1), None),
        ("1" + "0" * 18, None),
        ("1" + "0" * 30, None),
        ("9" * 5000, None),
        ("-1", None),
        ("0", None),
        ("٣", None),
        ("²", None),
        ("1e9", None),
    ],
)
def test_the_world_size_of_an_environment(told: str, size: int | None) -> None:
    found = identity(environment(WORLD_SIZE=told))
    assert found is not None
    assert found.world_size == size
    assert bool(found.doubts) == (size is None)
    assert all(len(doubt) < 200 for doubt in found.doubts)


def test_a_job_on_loopback_is_as_large_as_a_host() -> None:
    found = identity(environment(WORLD_SIZE="10000", MASTER_ADDR="127.0.0.1"))
    assert found is not None
    assert found.world_size is None
    assert "on one host" in found.doubts[0]


@pytest.mark.parametrize("told", ["1" + "0" * 30, "-1", "٣", str(limits.MAX_RANKS + 1)])
def test_the_rank_of_an_environment(told: str) -> None:
    assert identity({"RANK": told, "WORLD_SIZE": "8"}) is None
    found = identity({"RANK": told, "WORLD_SIZE": "8", "SLURM_PROCID": "3"})
    assert found is not None
    assert (found.family, found.rank) == ("slurm", 3)


def test_a_rank_beyond_its_world_is_reported() -> None:
    found = identity(environment(RANK="9", WORLD_SIZE="8"))
    assert found is not None
    assert (found.rank, found.world_size) == (9, 8)
    assert found.doubts == ("RANK=9 is not below WORLD_SIZE=8",)


@pytest.mark.parametrize("words", ["--nproc-per-node 999999999", "--nnodes 999999999", "--node-rank 999999999"])
def test_the_options_of_a_launcher(words: str) -> None:
    with cheap():
        found = launch_of(["torchrun", "--nnodes", "4", "--nproc-per-node", "8", *words.split(), "t.py"], {})
        assert found is not None
        assert found.ranks is None or len(found.ranks) <= limits.MAX_RANKS_PER_HOST
        assert found.world_size in (None, 32)


@pytest.mark.parametrize("size", SIZES)
def test_absent_ranks_are_listed_if_few(size: int) -> None:
    with cheap():
        assert limits.absent_ranks(size, {0}) == ()
        assert limits.count_absent(size, {0, None, -5, 10**30}) == size - 1
        assert limits.absent_ranges(size, {1, 5}) == ((0, 0), (2, 4), (6, size - 1))
    assert limits.absent_ranks(8, {0, 3, 9}) == (1, 2, 4, 5, 6, 7)
    assert limits.absent_ranks(3, {0, 1, 2}) == ()


@pytest.mark.parametrize("size", SIZES)
def test_no_target_is_made_for_each_claimed_rank(size: int) -> None:
    target = Target(7, 1, "here", 0, world_size=size, master="127.0.0.1:29500")
    with cheap():
        assert missing_ranks([target]) == ()
        (lack,) = mass_absences([target])
    assert (lack.pid, f"{size - 1:,} of {size:,} ranks" in lack.why) == (7, True)


@pytest.mark.parametrize("size", [*SIZES, 10**18, -3])
def test_a_claimed_size_costs_a_judgement_nothing(size: int) -> None:
    def job(world: int) -> list[Snapshot]:
        target = Target(7, 1, "here", 0, world_size=world, master="10.0.0.1:29500")
        cpu = Process(7, 1, 0, "S", (), None, None, 1.0, 0.1, 0, (ThreadCpu(1, "python", "S", 0.1),))
        return [Snapshot("here", at, "", (RankEvidence(target, True, {"cpu": cpu}),)) for at in (0.0, 1.0, 2.0)]

    judge().verdict(judge().facts(job(2)))  # what is loaded once
    with cheap():
        facts = judge().facts(job(size))
        judge().verdict(facts)
    assert facts.job.world.size == (size if size in SIZES else None)
    assert not facts.job.world.missing


def test_sequence_numbers_of_a_flight_recorder_are_untrusted() -> None:
    from hangdoc.analysis.collectives.fr_divergence import _steps
    from hangdoc.analysis.collectives.fr_history import group_histories
    from hangdoc.analysis.collectives.fr_mismatch import mismatch
    from hangdoc.evidence import FlightRecorder

    def dump(*numbers: int) -> FlightRecorder:
        return FlightRecorder(
            "2.0", tuple(RecordedCall("0", n, "all_reduce", "[[1]]", (), False) for n in numbers), {}, {}
        )

    with cheap():
        (group,) = group_histories({0: dump(0, 10**15), 1: dump(1, 10**15)})
        assert mismatch(group) is None
        assert list(_steps(group.histories[0], 10**15)) == []


def test_claims_in_files(tmp_path: Path) -> None:
    """A Flight Recorder dump, and log lines, of ranks and sizes that no job has."""
    dump = {
        "version": "2.10",
        "rank": 10**30,
        "world_size": 10**30,
        "entries": [{"collective_seq_id": 10**12, "profiling_name": "gloo:all_reduce", "input_sizes": [[1]]}],
    }
    (tmp_path / "dump.json").write_text(json.dumps(dump))
    (tmp_path / "rank0.log").write_text(
        "[rank0]: RuntimeError: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, "
        "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600001 milliseconds before timing out.\n"
        "world_size=999999\nslurmstepd: error: task 0-99999999999: Killed\n"
    )
    with within(5.0):
        report([tmp_path], judge=judge())


def test_impossible_ranks_and_sizes_of_a_recording_are_dropped() -> None:
    told: list[str] = []
    ranks = tuple(
        RankEvidence(Target(pid, 1, "here", rank, world_size=size), True)
        for pid, (rank, size) in enumerate([(0, 2), (1, 10**30), (10**30, 2), (-4, -1)], 10)
    )
    (shot,) = snapshots([Snapshot("here", 0.0, "", ranks)], told.append)
    assert [(one.target.rank, one.target.world_size) for one in shot.ranks] == [
        (0, 2),
        (1, None),
        (None, 2),
        (None, None),
    ]
    assert "rank -4 is ignored: no job has more than 1,048,576 ranks" in told
    assert all(len(text) < 100 for text in told)


def test_report_of_a_job_that_claims_a_million_ranks() -> None:
    target = Target(7, 1, "here", 0, world_size=1_000_000, master="10.0.0.1:29500")
    facts = judge().facts([Snapshot("here", 0.0, "", (RankEvidence(target, True),))])
    with cheap():
        found = build_incident(judge().verdict(facts), facts)
        assert found.missing == ((1, 999_999),)
    assert "No evidence from ranks 1-999999." in html.page([found])
