"""Log facts: ranks behind, mismatched calls, the first failure and its victims, hardware and rendezvous errors."""

from __future__ import annotations

from typing import Any

import pytest

from hangdoc.analysis.facts import Facts, derive, schema
from hangdoc.evidence import End
from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.assemble import snapshots

TYPES = schema()


def line(kind: str, number: int = 1, source: str = "", at: float | None = None, **fields: Any) -> LogEvent:
    text = fields.pop("text", kind)
    return LogEvent(kind, text, source, number, at, {name: str(value) for name, value in fields.items()})


def timeout(sequence: int, op: str = "ALLREDUCE", group: str = "0", **fields: Any) -> LogEvent:
    return line("collective_timeout", sequence=sequence, op=op, group=group, **fields)


def error(text: str, number: int = 1, source: str = "", at: float | None = None, **fields: Any) -> LogEvent:
    kind, _, message = text.partition(": ")
    return line(
        "exception", number, source, at, text=text, **{"type": kind, "message": message, "uncaught": "yes", **fields}
    )


def facts(
    *events: tuple[int | str | None, list[LogEvent]], size: int | None = None, ends: dict[int, End] | None = None
) -> Facts:
    """Facts of a job with these events of ranks, of hosts (a name), or of the whole job (None)."""
    pieces = [Piece(who(one), "logs", Logs(tuple(lines)), world_size=size) for one, lines in events]
    pieces += [Piece(ProcessRef(rank), "end", end) for rank, end in (ends or {}).items()]
    return derive(list(snapshots(pieces)), TYPES)


def who(one: int | str | None) -> ProcessRef:
    return ProcessRef(host=one) if isinstance(one, str) else ProcessRef(rank=one)


def ranks(found: Facts, name: str) -> list[int]:
    """Ranks with a true or present fact of this name."""
    return [rank.rank for rank in found.ranks if getattr(rank.logs, name)]


def test_no_facts_without_logs() -> None:
    found = derive(list(snapshots([Piece(ProcessRef(0), "end", End(code=0))])), TYPES)
    assert not found.job.logs.read
    assert ranks(found, "stuck") == []


# --- ranks behind ---------------------------------------------------------------------------------


def test_rank_without_a_timeout_is_behind() -> None:
    found = facts((0, [timeout(9)]), (1, [timeout(9)]), (2, []), size=3)
    assert (ranks(found, "behind"), ranks(found, "stuck")) == ([2], [0, 1])
    assert found.job.logs.waited == "ALLREDUCE 9"


def test_rank_behind_without_evidence_of_its_own() -> None:
    found = facts((0, [timeout(9)]), (1, [timeout(9)]), size=3)
    assert [one.rank for one in found.job.logs.behind] == [one.rank for one in found.job.logs.absent] == [2]


def test_no_rank_behind_if_most_report_nothing() -> None:
    found = facts((0, [timeout(9)]), (1, []), (2, []), (3, []), size=4)
    assert ranks(found, "behind") == []


def test_lower_sequence_number_is_behind_in_any_group() -> None:
    status = line("work_status", sequence=8, enqueued=8, completed=7, group="12", group_name="TP")
    late = line("dump_signal", enqueued=6, completed=6, group="12", group_name="TP")
    found = facts((4, [timeout(8, group="12", group_name="TP"), status]), (5, [late]), size=16)
    assert ranks(found, "behind") == [5]


def test_group_rank_is_not_the_global_rank() -> None:
    member = line("work_status", sequence=3, enqueued=3, completed=2, group="7", group_name="TP", group_rank=1)
    report = line("lagging", ranks="1", completed=2, sequence=3, group="7", group_name="TP")
    found = facts((8, [timeout(4, group="7", group_name="TP"), report]), (9, [member]), size=16)
    assert ranks(found, "behind") == [9]


def test_line_of_one_rank_names_the_group_of_its_peers() -> None:
    events = [(rank, [line("collective_timeout", sequence=9, op="ALLREDUCE", group_rank=rank)]) for rank in range(7)]
    named = line("work_status", sequence=9, enqueued=10, completed=8, group="11", group_name="DP", group_rank=2)
    events[2][1].append(named)
    found = facts(*events, (7, []), size=8)
    assert (ranks(found, "behind"), found.job.logs.waited) == ([7], "ALLREDUCE 9 of group 11 (DP)")


@pytest.mark.parametrize("kind", ["lagging", "barrier_lacks"])
def test_ranks_named_by_torch_are_behind(kind: str) -> None:
    found = facts((0, [line(kind, ranks="1, 2")]), (1, []), (2, []), (3, []), size=4)
    assert ranks(found, "behind") == [1, 2]


def test_rank_that_lost_a_peer_had_arrived() -> None:
    gave_up, lost = line("gloo_timeout"), line("connection_closed")
    found = facts((0, [gave_up]), (1, []), (2, [lost]), (3, [lost]), size=4, ends={1: End(signal=15)})
    assert ranks(found, "behind") == [1]


@pytest.mark.parametrize(("op", "early"), [("ALLREDUCE", True), ("RECV", False)])
def test_sends_and_receives_are_numbered_by_pair(op: str, early: bool) -> None:
    assert facts((0, [timeout(1, op)]), (1, [])).job.logs.early is early


@pytest.mark.parametrize(
    ("last", "named"), [(line("loopback"), [0, 1]), (line("loopback", deduplicated="yes"), [])], ids=["each", "once"]
)
def test_a_line_that_ray_prints_once_for_all_names_nobody(last: LogEvent, named: list[int]) -> None:
    found = facts((0, [line("loopback")]), (1, [last]), (2, []))
    assert ranks(found, "loopback") == named
    assert bool(found.job.logs.loopback) is not bool(named)


@pytest.mark.parametrize(("ranks_named", "part"), [(2, False), (4, True)])
def test_an_all_gather_of_fewer_ranks_than_the_job_has(ranks_named: int, part: bool) -> None:
    gather = timeout(9, "ALLGATHER", group="5", numel_in=8, numel_out=16)
    others = [(rank, list[LogEvent]()) for rank in range(1, ranks_named)]
    assert facts((0, [gather]), *others).job.logs.of_part is part


@pytest.mark.parametrize("numbers", [(9, 9, 9), (9, 9, 8)])
def test_all_ranks_at_one_sequence_number_had_joined(numbers: tuple[int, ...]) -> None:
    found = facts(*[(rank, [timeout(number)]) for rank, number in enumerate(numbers)], size=3)
    assert found.job.logs.joined is (len(set(numbers)) == 1)
    assert ranks(found, "behind") == ([] if found.job.logs.joined else [2])


def test_errors_are_not_timeouts() -> None:
    """Ranks that lost a killed peer fail at the same sequence number, too."""
    status = line("work_status", sequence=8, enqueued=8, completed=7, group="0")
    found = facts((0, [status]), (1, [status]), size=2)
    assert not found.job.logs.joined
    assert ranks(found, "timed_out") == ranks(found, "behind") == []


def test_groups_are_not_compared_with_each_other() -> None:
    found = facts((0, [timeout(9, group="1")]), (1, [timeout(4, "BROADCAST", group="2")]), size=2)
    assert ranks(found, "outlier") == ranks(found, "behind") == []
    assert not found.job.logs.joined


def test_each_rank_waited_in_the_collective_of_its_own_timeout() -> None:
    tensor = timeout(4, "BROADCAST", group="2", group_name="TP")
    found = facts((0, [timeout(9)]), (1, [timeout(9)]), (2, [tensor]), (3, [line("collective_timeout")]), size=8)
    assert found.job.logs.waited == "ALLREDUCE 9"
    assert [rank.logs.waited for rank in found.ranks] == [
        *("ALLREDUCE 9", "ALLREDUCE 9", "BROADCAST 4 of group 2 (TP)"),
        "a collective",
    ]


def test_unnamed_group_is_not_compared() -> None:
    lines = [line("collective_timeout", sequence=9, op=op, group_rank=0) for op in ("ALLREDUCE", "BROADCAST")]
    found = facts((2, lines[:1]), (4, lines[1:]), size=8)
    assert ranks(found, "outlier") == []


# --- mismatched calls -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outlier", "sizes"), [(timeout(9, "BROADCAST"), False), (timeout(9, numel_in=4, numel_out=4), True)]
)
def test_minority_is_the_outlier(outlier: LogEvent, sizes: bool) -> None:
    usual = timeout(9, numel_in=8, numel_out=8)
    found = facts((0, [outlier]), (1, [usual]), (2, [usual]), size=3)
    assert ranks(found, "outlier") == [0]
    assert {rank.logs.sizes for rank in found.ranks} == {sizes}
    assert not found.job.logs.tied
    assert not found.job.logs.joined


def test_sizes_that_may_differ_are_not_compared() -> None:
    lines = [timeout(9, "GATHER", numel_in=4, numel_out=number) for number in (0, 8)]
    assert ranks(facts((0, lines[:1]), (1, lines[1:]), size=2), "outlier") == []


def test_two_against_one_by_torch_s_own_check() -> None:
    mismatches = [line("mismatch", rank_a=a, op_a="ALLREDUCE", rank_b=0, op_b="REDUCE") for a in (1, 2)]
    found = facts((1, mismatches[:1]), (2, mismatches[1:]))
    assert [one.rank for one in found.job.logs.outlier_calls] == [0]
    assert found.job.logs.outlier_call == "REDUCE"


def test_one_against_one_is_tied() -> None:
    found = facts((0, [line("mismatch", rank_a=0, op_a="ALLREDUCE", rank_b=1, op_b="REDUCE")]), (1, []))
    assert found.job.logs.tied


# --- first failure --------------------------------------------------------------------------------

PEER = "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.2]:28840"


def test_victim_may_end_first() -> None:
    """Its line may come first, both in a common file and by the clock."""
    found = facts((0, [error(PEER, 1, "all", 1.0)]), (1, [error("KeyError: 'x'", 9, "all", 5.0)]))
    assert (ranks(found, "first"), ranks(found, "victim")) == ([1], [0])


def test_first_exception_in_a_common_file() -> None:
    found = facts((0, [error("KeyError: 'x'", 9, "all")]), (1, [error("ValueError: x", 3, "all")]))
    assert ranks(found, "first") == [1]


def test_clocks_of_two_hosts_are_not_compared() -> None:
    pieces = [
        Piece(ProcessRef(rank, host), "logs", Logs((error(text, 1, host, at),)))
        for rank, host, text, at in ((0, "a", "KeyError: x", 9.0), (1, "b", "ValueError: x", 3.0))
    ]
    assert ranks(derive(list(snapshots(pieces)), TYPES), "first") == [0, 1]


def test_launcher_s_root_cause_comes_first() -> None:
    root = line("failure", root="yes")
    found = facts((0, [error("KeyError: 'x'", 1, "a"), root]), (1, [error("ValueError: x", 1, "b")]))
    assert ranks(found, "first") == [0]


def test_exception_after_a_timeout_is_a_consequence() -> None:
    found = facts((0, [line("gloo_timeout", 1, "a"), error("KeyError: 'x'", 5, "a")]))
    assert (ranks(found, "first"), ranks(found, "victim")) == ([], [0])


def test_first_exception_of_a_chain_counts() -> None:
    found = facts((0, [error("RuntimeError: in cleanup", cause=PEER)]), (1, [error(PEER, cause="KeyError: x")]))
    assert (ranks(found, "first"), ranks(found, "victim")) == ([1], [0])


def test_caught_exception_does_not_count() -> None:
    assert ranks(facts((0, [line("exception", type="KeyError", message="x")])), "first") == []


# --- hardware and rendezvous ----------------------------------------------------------------------


def test_peer_named_by_several_ranks() -> None:
    errors = {rank: [line("ib_error", status=12, peer="10.0.0.9")] for rank in (0, 1)}
    found = facts((0, errors[0]), (1, errors[1]), (2, [line("ib_error", status=12, peer="10.0.0.8")]))
    assert [one.host for one in found.job.logs.beyond] == ["10.0.0.9"]


def test_flush_errors_are_ignored() -> None:
    assert ranks(facts((0, [line("ib_error", status=5, peer="x")])), "ib") == []


@pytest.mark.parametrize(("xid", "hardware"), [(79, True), (31, False), (43, False), (94, True)])
def test_hardware_xids(xid: int, hardware: bool) -> None:
    found = facts(("node-7", [line("xid", xid=xid, gpu="PCI:0000:44:00")]), (0, []))
    assert [one.host for one in found.job.logs.gpus] == (["node-7"] if hardware else [])


@pytest.mark.parametrize(
    ("event", "wrong"),
    [
        (line("nccl_interface", interfaces="[0]docker0:172.17.0.1<0>"), True),
        (line("nccl_interface", interfaces="[0]eth0:10.0.0.1<0>"), False),
        (line("nccl_interface", interfaces="[0]eth0:10.0.0.1<0> [1]docker0:172.17.0.1<0>"), False),
        (line("nccl_bootstrap", interface="lo", address="127.0.0.1"), True),
        (line("nccl_bootstrap", interface="ens3", address="172.31.1.71"), False),
    ],
)
def test_interface_without_a_route_to_other_hosts(event: LogEvent, wrong: bool) -> None:
    assert bool(ranks(facts((0, [event])), "nic")) is wrong


def test_ranks_joined_at_the_rendezvous() -> None:
    found = facts((0, [line("clients_missing", joined=1, expected=3)]), size=3)
    assert (found.job.logs.come, found.job.logs.expected) == (1, 3)


def test_more_ranks_than_expected_are_not_missing() -> None:
    """Another store with more ranks than expected: no rank is missing."""
    assert facts((0, [line("barrier_of_store", joined=8, expected=4)])).job.logs.expected is None


def test_launcher_lines_belong_to_no_rank() -> None:
    found = facts((None, [line("port_in_use", port=29500)]), (0, []))
    assert (found.job.logs.port, ranks(found, "port")) == ("29500", [])


def test_thousands_of_ranks() -> None:
    lines = [
        (rank, [timeout(9), line("work_status", sequence=9, enqueued=9, completed=8, group=0)]) for rank in range(2000)
    ]
    found = facts(*[one for one in lines if one[0] != 7], size=2000)
    assert [one.rank for one in found.job.logs.behind] == [7]
