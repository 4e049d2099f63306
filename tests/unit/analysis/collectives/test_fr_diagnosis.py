"""Flight Recorder dumps compared: the fault, its culprits and the playbook that reports it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hangdoc.analysis.collectives.fr_diagnosis import DumpJob
from hangdoc.postmortem.assemble import snapshots
from hangdoc.postmortem.readers import ReadContext
from hangdoc.postmortem.readers._input_file import find_sources
from hangdoc.postmortem.readers.flight_recorder import READER
from hangdoc.verdict import Finding
from tests.support.flight_recorder_traces import Call, call, trace, write
from tests.support.judge import judge

FOUR = {"0": range(4)}
GATHER = call("all_gather", 28, [[7]])
BROADCAST = call("broadcast", 26, [[5]])
LOGS = call("reduce", 25, [[1]])
STEP = [call("all_reduce", 24), BROADCAST, GATHER]
HALF = [*STEP * 3, STEP[0]]
WAITS = call("all_reduce", 24, done=False)

Traces = Mapping[int, Mapping[str, Any]]


def four(most: Sequence[Call], odd: Sequence[Call], groups: Any = FOUR, rank: int = 2) -> Traces:
    """One rank, by default rank 2, recorded other calls than its peers."""
    return {number: trace(odd if number == rank else most, groups) for number in range(4)}


def judged(folder: Path, traces: Traces) -> tuple[DumpJob, Finding | None, str]:
    """The facts of the job, the best finding and the verdict's status."""
    return judged_at(write(folder, traces))


def judged_at(folder: Path) -> tuple[DumpJob, Finding | None, str]:
    context = ReadContext(lambda text: None)
    pieces = [piece for source in find_sources([folder], print) for piece in READER.read(source, context)]
    facts = judge().facts(list(snapshots(pieces)))
    verdict = judge().verdict(facts)
    return facts.job.dumps, verdict.findings[0] if verdict.findings else None, verdict.status


def culprits(finding: Finding) -> list[int | None]:
    return [culprit.rank for culprit in finding.culprits]


def hung(
    op: str, line: int | None = None, sizes: Sequence[Sequence[int]] = ((10,),), group: str = "0", **more: Any
) -> Call:
    return call(op, line, sizes, group, done=False, **more)


EACH: dict[str, tuple[Callable[[], Traces], str, str, list[int]]] = {
    "a rank never started it": (lambda: four([*STEP * 3, WAITS], STEP * 3), "absent", "rank-left", [2]),
    "a rank never started it, no frames": (
        lambda: four([call("all_reduce"), hung("all_reduce")], [call("all_reduce")]), "absent", "rank-left", [2]
    ),
    "another operation": (
        lambda: four([*STEP * 3, hung("reduce", 40)], [*STEP * 3, hung("all_gather", 40)]),
        "operation", "collective-mismatch", [2],
    ),
    "the lowest rank is the outlier": (
        lambda: four([*STEP, hung("reduce", 40)], [*STEP, hung("all_gather", 40)], rank=0),
        "operation", "collective-mismatch", [0],
    ),
    "another size": (
        lambda: four([*STEP, WAITS], [*STEP, hung("all_reduce", 24, [[11]])]), "size", "collective-size-mismatch", [2]
    ),
    "another size, no frames": (
        lambda: four([hung("all_reduce")], [hung("all_reduce", None, [[11]])]), "size", "collective-size-mismatch", [2]
    ),
    "another type": (
        lambda: four([*STEP, WAITS], [*STEP, {**WAITS, "input_dtypes": ["Half"], "output_dtypes": ["Half"]}]),
        "dtype", "collective-size-mismatch", [2],
    ),
    "went on past a loop": (
        lambda: four([*STEP * 4, WAITS], [*STEP * 4, hung("barrier", 60, [], function="finish")]),
        "operation", "uneven-batches", [2],
    ),
    "one iteration more": (
        lambda: four([*STEP * 4, hung("barrier", 60, [])], [*STEP * 4, WAITS]), "operation", "uneven-batches", [2]
    ),
    "a call never made before": (
        lambda: four([*HALF, hung("broadcast", 26, [[5]])], [*HALF, hung("reduce", 25, [[1]])]),
        "operation", "collective-mismatch", [2],
    ),
    "one of two went on past a loop": (
        lambda: {
            0: trace([*STEP * 4, hung("barrier", 60, [])], {"0": range(2)}),
            1: trace([*STEP * 4, WAITS], {"0": range(2)}),
        },
        "operation", "uneven-batches", [0],
    ),
    "skipped a call": (
        lambda: four([*HALF, hung("broadcast", 26, [[5]])], [*HALF, hung("all_gather", 28, [[7]])]),
        "operation", "conditional-collective", [2],
    ),
    "made an extra call": (  # that all ranks made before
        lambda: four(
            [GATHER, LOGS, *HALF, hung("broadcast", 26, [[5]])], [GATHER, LOGS, *HALF, hung("reduce", 25, [[1]])]
        ),
        "operation", "conditional-collective", [2],
    ),
    "one rank alone started it": (
        lambda: four(STEP, [*STEP, hung("barrier", 50, [])]), "extra", "conditional-collective", [2]
    ),
    "splits of an all_to_all": (
        lambda: four(
            [hung("all_to_all_single", 9, [[4]])], [hung("all_to_all_single", 9, [[4]], output_sizes=[[9]])]
        ),
        "all_to_all", "collective-size-mismatch", [],
    ),
    "groups in opposite order": (
        lambda: {
            0: trace([hung("all_reduce", 5, group="1")], {"1": [0, 1], "2": [0, 1]}),
            1: trace([hung("all_reduce", 6, group="2")], {"1": [0, 1], "2": [0, 1]}),
        },
        "order", "collective-order", [0, 1],
    ),
    "both send": (
        lambda: {
            0: trace([hung("send 0->1", 5)], {"0": [0, 1]}),
            1: trace([hung("send 1->0", 5)], {"0": [0, 1]}),
        },
        "p2p", "p2p-mismatch", [0, 1],
    ),
    "nobody sends": (
        lambda: {
            0: trace([call("all_reduce", 4), hung("recv 0<-1", 5)], {"0": [0, 1]}),
            1: trace([call("all_reduce", 4)], {"0": [0, 1]}),
        },
        "p2p", "p2p-mismatch", [1],
    ),
    "skipped a send that it made before": (
        lambda: {
            0: trace([*[call("recv 0<-1", 5), STEP[0]] * 2, hung("recv 0<-1", 5)], {"0": [0, 1]}),
            1: trace([*[call("send 1->0", 5), STEP[0]] * 2, WAITS], {"0": [0, 1]}),
        },
        "p2p", "p2p-mismatch", [1],
    ),
    "a receive that it never made before": (
        lambda: {
            0: trace([*[STEP[0]] * 2, hung("recv 0<-1", 5)], {"0": [0, 1]}),
            1: trace([*[STEP[0]] * 2, WAITS], {"0": [0, 1]}),
        },
        "p2p", "p2p-mismatch", [0, 1],
    ),
    "the root of a chain of waits": (  # two stages wait in their own groups, the last one for a rank that is gone
        lambda: {
            0: trace([hung("recv 0<-1", 5, group="1")], {"0": range(4), "1": [0, 2]}),
            1: trace([hung("all_reduce", 7, group="3")], {"0": range(4), "3": [1, 3]}),
            2: trace([hung("all_reduce", 7, group="4")], {"0": range(4), "1": [0, 2], "4": [2, 3]}),
            3: trace([call("all_reduce", 2)], {"0": range(4), "3": [1, 3], "4": [2, 3]}),
        },
        "absent", "rank-left", [3],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EACH)
def test_fault_and_culprits(tmp_path: Path, name: str) -> None:
    make, kind, playbook, who = EACH[name]
    job, best, status = judged(tmp_path, make())
    assert (job.kind, status) == (kind, "stalled")
    assert best is not None
    assert (best.playbook, culprits(best)) == (playbook, who)
    assert "None" not in best.summary
    assert "unknown" not in best.summary


@pytest.mark.parametrize("name", EACH)
def test_no_text_of_the_finding_is_left_out(tmp_path: Path, name: str) -> None:
    _, best, _ = judged(tmp_path, EACH[name][0]())
    assert best is not None
    assert [reason for reason in best.reasons if "left out" in reason] == []
    assert any(proof.probe == "recorder" for proof in best.evidence)


def test_a_rank_without_a_dump_is_named(tmp_path: Path) -> None:
    job, best, status = judged(tmp_path, {rank: trace([*STEP, WAITS], FOUR) for rank in (0, 1, 3)})
    assert (job.kind, job.silent, status) == ("silent", (2,), "stalled")
    assert best is not None
    assert (best.playbook, culprits(best)) == ("rank-left", [2])
    assert best.confidence == "low"
    assert "left no dump" in best.summary


@pytest.mark.parametrize(
    "traces",
    [
        {rank: trace(STEP * 5, FOUR) for rank in range(4)},
        # unequal sizes that are correct and completed
        {
            rank: trace([call("all_to_all_single", 3, [[rank]]), call("gather", 4, [[rank]])] * 2, FOUR)
            for rank in range(4)
        },
        # the broadcasting rank has its own branch, repeatedly
        {rank: trace([STEP[0], call("broadcast", 30 if rank else 40)] * 5, FOUR) for rank in range(4)},
    ],
)
def test_no_fault_if_ranks_agree_and_every_call_completed(tmp_path: Path, traces: Traces) -> None:
    job, best, status = judged(tmp_path, traces)
    assert (job.kind, best, job.culprits) == (None, None, ())
    assert status != "stalled"


STEP_S = 0.05


@pytest.mark.parametrize(
    ("later_s", "odd", "status"),
    [
        (0.5 * STEP_S, [*STEP * 4], "unknown"),  # dumped on demand: rank 2 is about to arrive
        (600.0, [*STEP * 4], "stalled"),
        (-1.0, [*STEP * 4], "stalled"),  # clocks differ
        (0.5 * STEP_S, [*STEP * 4, hung("reduce", 40)], "stalled"),  # a mismatch is a fault in any case
    ],
    ids=["running", "after a timeout", "clocks differ", "a mismatch"],
)
def test_dumps_of_a_running_job(tmp_path: Path, later_s: float, odd: Sequence[Call], status: str) -> None:
    made = {}
    for rank, one in four([*STEP * 4, WAITS], odd).items():
        entries = [{**entry, "time_created_ns": int(1e18 + 1e9 * STEP_S * i)} for i, entry in enumerate(one["entries"])]
        made[rank] = {**one, "entries": entries}
    folder = write(tmp_path, made)
    for file in folder.iterdir():
        os.utime(file, (1e9 + 12 * STEP_S + later_s,) * 2)
    job, best, said = judged_at(folder)
    assert (said, job.moving, best is None) == (status, status == "unknown", status == "unknown")


def test_all_ranks_in_the_same_collective_have_no_culprit(tmp_path: Path) -> None:
    job, best, status = judged(tmp_path, {rank: trace([*STEP, WAITS], FOUR) for rank in range(4)})
    assert (job.kind, status, job.culprits) == ("joined", "stalled", ())
    assert best is None or best.cls == "network"


@pytest.mark.parametrize(
    ("states", "kind", "late"),
    [
        (["started", "scheduled", "started", "started"], "unstarted", (1,)),
        (["scheduled", "scheduled", "started", "started"], "joined", ()),  # as many: perhaps just sampled earlier
        (["scheduled"] * 4, "joined", ()),  # without timing, torch records no start
        (["started"] * 4, "joined", ()),
    ],
)
def test_a_gpu_that_has_not_started_is_late(
    tmp_path: Path, states: Sequence[str], kind: str, late: tuple[int, ...]
) -> None:
    traces = {rank: trace([*STEP, {**WAITS, "state": state}], FOUR) for rank, state in enumerate(states)}
    job, best, _ = judged(tmp_path, traces)
    assert (job.kind, job.culprits) == (kind, late)
    assert best
    assert best.playbook == ("gpu-behind" if late else "transport-stalled")


def test_a_gpu_that_runs_a_kernel_of_another_group_is_not_late(tmp_path: Path) -> None:
    groups = {"0": range(4), "1": (0, 1)}
    other = {**hung("all_gather", 30, group="1"), "state": "started"}
    own = [trace([*STEP, {**WAITS, "state": state}, other] if rank < 2 else [*STEP, {**WAITS, "state": state}], groups)
           for rank, state in enumerate(["scheduled", "started", "started", "started"])]  # fmt: skip
    assert judged(tmp_path, dict(enumerate(own)))[0].kind == "joined"


def test_matched_transfers_are_no_mismatch(tmp_path: Path) -> None:
    traces = {
        0: trace([hung("send 0->1", 5)], {"0": [0, 1]}),
        1: trace([hung("recv 1<-0", 6)], {"0": [0, 1]}),
    }
    job, _, _ = judged(tmp_path, traces)
    assert job.kind is None


def test_group_ranks_are_translated_to_global_ranks(tmp_path: Path) -> None:
    groups = {"0": range(8), "5": [2, 6]}
    traces = {
        2: trace([hung("recv 0<-1", 5, group="5")], groups),
        6: trace([call("all_reduce", 4)], groups),
    }
    job, best, _ = judged(tmp_path, traces)
    assert job.kind == "p2p"
    assert best is not None
    assert culprits(best) == [6]
    assert any("from rank 6" in proof.text for proof in best.evidence)


def test_a_tie_lowers_the_confidence(tmp_path: Path) -> None:
    traces = {rank: trace([*STEP, hung("reduce" if rank < 2 else "all_gather", 40)], FOUR) for rank in range(4)}
    job, best, _ = judged(tmp_path, traces)
    assert job.tied
    assert best is not None
    assert best.confidence == "medium"


@pytest.mark.parametrize("strays", [0, 1])
def test_on_a_tie_the_rank_with_the_new_call_is_blamed(tmp_path: Path, strays: int) -> None:
    """For example a collective in one rank's callback, while its peer goes on with the steps."""
    called_back = hung("reduce", 40, function="logs")
    within = [*called_back["frames"][:2], *GATHER["frames"][1:]]
    goes_on, alone = [*STEP * 3, WAITS], [*STEP * 3, {**called_back, "frames": within}]
    job, best, _ = judged(tmp_path, {rank: trace(alone if rank == strays else goes_on) for rank in range(2)})
    assert (job.tied, job.culprits) == (True, (strays,))
    assert best is not None
    assert (best.playbook, culprits(best), best.confidence) == ("collective-mismatch", [strays], "medium")


def test_gloo_marks_failed_collectives_complete(tmp_path: Path) -> None:
    """After a timeout every gloo call is complete: the culprit is the rank that started fewer."""

    def gloo(calls: Iterable[Call]) -> dict[str, Any]:
        made = trace([{**one, "state": "scheduled", "retired": True} for one in calls])
        return made | {"pg_config": {"": {"name": "", "desc": "", "ranks": "[0, 1, 2, 3]"}}}

    traces = {rank: gloo([*STEP, STEP[0]] if rank != 3 else STEP) for rank in range(4)}
    job, best, status = judged(tmp_path, traces)
    assert (job.kind, job.culprits, status) == ("absent", (3,), "stalled")
    assert best is not None
    assert (best.playbook, culprits(best)) == ("rank-left", [3])
