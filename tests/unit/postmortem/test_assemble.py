"""Assembling evidence: process, host, order and run of each piece."""

from __future__ import annotations

import pytest

from hangdoc.evidence import End, Snapshot, Stack, Stacks
from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.assemble import UNKNOWN_HOST, merge_logs, snapshots

FIRST, SECOND = (Stacks((Stack(1, name, ()),)) for name in ("first", "second"))


def log(text: str, at: float | None = None) -> Logs:
    return Logs((LogEvent("exception", text, "a.log", 1, at),), 1, at, at)


def of(shot: Snapshot, rank: int) -> dict[str, object]:
    (found,) = (one for one in shot.ranks if one.target.rank == rank)
    return dict(found.records)


def test_one_target_per_rank() -> None:
    (shot,) = snapshots(
        [
            Piece(ProcessRef(rank=1, host="a"), "logs", log("x")),
            Piece(ProcessRef(rank=1, pid=77), "stacks", FIRST),
            Piece(ProcessRef(pid=77), "recorder", "dump"),
            Piece(ProcessRef(rank=0, host="a"), "stacks", SECOND, world_size=3, job="train"),
        ]
    )
    assert shot.host == "a"
    assert {(r.target.rank, r.target.pid, r.target.world_size, r.target.job) for r in shot.ranks} == {
        (1, 77, 3, "train"),
        (0, -1, 3, "train"),
    }
    assert {"logs", "stacks", "recorder"} < set(of(shot, 1))
    assert [rank.alive for rank in shot.ranks] == [None, None]


def test_pid_of_two_ranks_joins_neither() -> None:
    shots = snapshots(
        [
            Piece(ProcessRef(rank=0, host="a", pid=7), "stacks", FIRST),
            Piece(ProcessRef(rank=1, host="b", pid=7), "stacks", FIRST),
            Piece(ProcessRef(pid=7), "stacks", SECOND),
        ]
    )
    assert sorted((r.target.host, r.target.rank) for s in shots for r in s.ranks if r.target.rank is not None) == [
        ("a", 0),
        ("b", 1),
    ]
    assert [(r.target.host, r.target.pid) for s in shots for r in s.ranks if r.target.rank is None] == [
        (UNKNOWN_HOST, 7)
    ]


def test_successive_dumps_are_successive_looks() -> None:
    shots = snapshots(
        [
            Piece(ProcessRef(rank=0), "stacks", FIRST, at=100.0),
            Piece(ProcessRef(rank=0), "stacks", SECOND, at=130.0),
            Piece(ProcessRef(rank=1), "stacks", FIRST, at=101.0),
        ]
    )
    assert [shot.at_s for shot in shots] == [0.0, 30.0]
    assert [of(shot, 0)["stacks"] for shot in shots] == [FIRST, SECOND]
    assert "stacks" not in of(shots[1], 1)


def test_times_never_go_backwards() -> None:
    shots = snapshots([Piece(ProcessRef(rank=0), "stacks", FIRST, at=at) for at in (50.0, 20.0, 60.0)])
    assert [shot.at_s for shot in shots] == [0.0, 0.0, 10.0]


def test_exit_of_a_rank() -> None:
    (shot,) = snapshots([Piece(ProcessRef(rank=3), "end", End(signal=9))])
    (rank,) = shot.ranks
    assert (rank.alive, rank.end, rank.exit) == (False, End(signal=9), "signal 9 (SIGKILL)")


def test_runs_are_separate_jobs() -> None:
    shots = snapshots([Piece(ProcessRef(rank=0, run=run), "logs", log("x"), job="train") for run in (0, 1)])
    assert [rank.target.job for shot in shots for rank in shot.ranks] == ["train (restart 0)", "train (restart 1)"]


def test_records_of_a_host_and_of_the_job() -> None:
    shots = snapshots(
        [
            Piece(ProcessRef(rank=0, host="a"), "stacks", FIRST),
            Piece(ProcessRef(host="a"), "logs", log("oom")),
            Piece(ProcessRef(host="b"), "logs", log("xid")),
            Piece(ProcessRef(), "logs", log("root cause")),
        ]
    )
    told = {shot.host: [said.text for said in shot.records["logs"].said] for shot in shots}
    assert told == {"a": ["oom", "root cause"], "b": ["xid", "root cause"]}


@pytest.mark.parametrize(
    ("named", "hosts"),
    [
        (["asr-worker-1", "worker-1"], {"asr-worker-1"}),
        (["asr-worker-1", "tts-worker-1", "worker-1"], {"asr-worker-1", "tts-worker-1", "worker-1"}),  # either one
        (["asr-worker-1", "worker-2"], {"asr-worker-1", "worker-2"}),
        (["rack-7", "7"], {"rack-7", "7"}),  # a number is no name
    ],
)
def test_a_host_called_by_its_ending_is_the_only_one_with_it(named: list[str], hosts: set[str]) -> None:
    shots = snapshots([Piece(ProcessRef(host=host), "logs", log("full")) for host in named])
    assert {shot.host for shot in shots} == hosts


def test_pieces_join_the_ranks_of_a_recording() -> None:
    (taken,) = snapshots([Piece(ProcessRef(rank=0, host="a", pid=42), "stacks", FIRST, job="7")])
    both = snapshots([taken, Piece(ProcessRef(rank=0), "logs", log("x"))])
    assert {(rank.target.host, rank.target.pid, rank.target.job) for shot in both for rank in shot.ranks} == {
        ("a", 42, "7")
    }


def test_logs_of_one_process_are_merged() -> None:
    assert [said.text for said in merge_logs([log("b", 2.0), log("a", 1.0)]).said] == ["a", "b"]
    assert [said.text for said in merge_logs([log("b"), log("a", 1.0)]).said] == ["b", "a"]
    assert (merge_logs([log("b", 2.0), log("a", 1.0)]).first, merge_logs([log("b", 2.0), log("a", 1.0)]).lines) == (
        1.0,
        2,
    )


@pytest.mark.parametrize(
    ("pods", "hosts"), [(("bert-0",), {"bert-0"}), (("bert-0", "bert-1"), {"bert-0", "bert-1", "node"})]
)
def test_a_process_killed_in_a_pod_is_that_of_the_only_killed_container(pods: tuple[str, ...], hosts: set[str]) -> None:
    line = "oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/kubepods/burstable/pod7d,task=python,pid=4211"
    ends = [Piece(ProcessRef(None, pod, 1), "end", End(signal=9, oom_kills=1, kernel=(f"pod {pod}",))) for pod in pods]
    killed = Piece(ProcessRef(None, "node", 4211), "end", End(signal=9, oom_kills=1, kernel=(line,)))
    shots = snapshots([*ends, killed])
    assert {rank.target.host for shot in shots for rank in shot.ranks} == hosts
    assert len({rank.target.pid for shot in shots for rank in shot.ranks}) == len(pods)
