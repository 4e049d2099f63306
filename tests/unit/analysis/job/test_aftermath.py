"""What is presumed about a job that nobody watched."""

from __future__ import annotations

import pytest

from hangdoc.analysis.facts import Facts, derive, schema
from hangdoc.evidence import Frame, Stack, Stacks
from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.assemble import snapshots

C10D = "/v/site-packages/torch/distributed/distributed_c10d.py"
TYPES = schema()
TIMEOUT = LogEvent("gloo_timeout", "Timed out waiting 12000ms for recv operation to complete", "log", 1)
OTHER = LogEvent("teardown", "an event of no importance", "log", 2)


def stack(function: str, file: str, active: bool = False) -> Stacks:
    frames = (Frame(function, file, 9), Frame("main", "/job/train.py", 9))
    return Stacks((Stack(1, "MainThread", frames, active=active),))


def left(*records: tuple[int, str, object]) -> Facts:
    return derive(list(snapshots([Piece(ProcessRef(rank), probe, one) for rank, probe, one in records])), TYPES)


WAITS, ELSEWHERE = stack("all_reduce", C10D), stack("load", "/job/data.py")
STACKS = [(rank, "stacks", WAITS) for rank in range(2)]
TIMED_OUT = [(rank, "logs", Logs((TIMEOUT,))) for rank in range(2)]


@pytest.mark.parametrize(
    ("logs", "doubt"),
    [
        ([], "nobody watched the job; its hang is presumed"),
        (TIMED_OUT, "nobody watched the job; its hang is presumed"),  # its stack may be later than a timeout of its own
        ([*TIMED_OUT, (2, "logs", Logs((OTHER,)))], ""),
    ],
)
def test_doubt(logs: list[tuple[int, str, object]], doubt: str) -> None:
    assert left(*STACKS, (2, "stacks", ELSEWHERE), *logs).job.aftermath.doubts == ((doubt,) if doubt else ())


def test_a_rank_that_spins_while_it_waits_is_presumed_to_hang() -> None:
    spins = stack("all_reduce", C10D, active=True)
    assert [rank.aftermath.presumed for rank in left((0, "stacks", spins), (1, "stacks", spins)).ranks] == [True, True]


def test_a_rank_that_runs_is_presumed_to_hang_only_if_its_peers_wait_for_it() -> None:
    runs = stack("load", "/job/data.py", active=True)
    assert [rank.aftermath.presumed for rank in left(*STACKS, (2, "stacks", runs)).ranks] == [True] * 3
    alone = left((0, "stacks", WAITS), *((rank, "stacks", runs) for rank in range(1, 4)))
    assert [rank.aftermath.presumed for rank in alone.ranks] == [True, False, False, False]
