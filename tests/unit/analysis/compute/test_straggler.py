"""Stragglers, from synthetic thread clocks and stacks."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangdoc.analysis.compute.straggler import RankValues, StragglerFacts, _is_late
from hangdoc.analysis.facts import Facts
from hangdoc.analysis.ranks.progress import ProgressJob
from hangdoc.evidence import Process, ThreadCpu
from tests.support.synthetic_evidence import At, Stage, in_c10d, number, tensor

SCRIPT = """\
def train(x):
    for step in range(1000):
        loss = model(x).sum()
        loss.backward()
        dist.all_reduce(loss)
        evaluate(model)
        time.sleep(delay)
        dist.broadcast(loss, 0)
"""
EVERY_S = 0.5
LOOKS = 19


@dataclass
class Doing:
    """Activity of a rank since the look before, in shares of the time, and its state at the look."""

    cpu: float = 0.0
    delay: float = 0.0  # in a run queue
    waits: bool = True  # in a collective; else in its own code
    state: str = "S"
    step: int = 0
    rows: int = 8
    nice: int = 0
    cores: tuple[int, ...] = (0, 1)
    alone: bool = False  # at a line that no other rank runs
    sleeps: bool = False  # in its own code
    broadcast: bool = False  # waits in a broadcast, not in an all-reduce
    kernel: float = 0.0  # of cpu


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(SCRIPT, tmp_path_factory.mktemp("stage"))


def watched(stage: Stage, *ranks: Callable[[int], Doing]) -> Facts:
    """Facts after LOOKS looks, EVERY_S apart."""
    spent = [[0.0, 0.0, 0.0] for _ in ranks]
    looks = []
    for look in range(LOOKS):
        shown = []
        for rank, tell in enumerate(ranks):
            doing, pid = tell(look), 100 + rank
            spent[rank][0] += doing.cpu * EVERY_S
            spent[rank][1] += doing.delay * EVERY_S
            spent[rank][2] += doing.kernel * EVERY_S
            cpu_s, delay_s, system_s = spent[rank]
            main = ThreadCpu(pid, "python", doing.state, cpu_s, run_delay_s=delay_s)
            more = {"affinity": doing.cores, "nice": doing.nice, "system_s": system_s}
            process = Process(pid, 1, 0, doing.state, ("python",), None, None, 60.0 + look, cpu_s, 1, (main,), **more)  # type: ignore[arg-type]
            variables = {"train": [number("step", doing.step), tensor("x", doing.rows, 4)]}
            record: dict[str, Any] = {"variables": variables, "records": {"cpu": process}, "state": doing.state}
            op, line = ("broadcast", 8) if doing.broadcast else ("all_reduce", 5)
            shown.append(
                in_c10d(op, ("train", line), **record)
                if doing.waits
                else At([("train", 7 if doing.sleeps else 6 if doing.alone else 3)], **record)
            )
        looks.append(shown)
    return stage.facts(*looks, every_s=EVERY_S)


def busy(cpu: float, delay: float = 0.0, **more: Any) -> Callable[[int], Doing]:
    """Computes whenever it gets a core."""
    return lambda look: Doing(cpu, delay, waits=False, state="R", step=5 * look, **more)


def victim(cpu: float, delay: float = 0.0, **more: Any) -> Callable[[int], Doing]:
    """Waits for its peers whenever it does not compute."""
    waits = cpu + delay < 0.95
    return lambda look: Doing(cpu, delay, waits and look % 4 > 0, "S" if look % 4 else "R", 5 * look, **more)


@pytest.mark.parametrize(
    ("late", "other", "cause"),
    [
        (busy(0.95, rows=16), victim(0.5), "work"),
        (busy(0.45, 0.5, rows=16), victim(0.22, 0.4), "work"),  # on a host that delays every rank
        (busy(0.3, 0.65), victim(0.3, 0.02), "queue"),
        (busy(0.3, 0.65, nice=10), victim(0.3, 0.02), "nice"),
        (busy(0.95, cores=(1,)), victim(0.4), "cores"),
        (busy(0.95), victim(0.5), None),  # a lower clock frequency, which we do not see
    ],
    ids=["more work", "more work, busy host", "queue", "nice", "fewer cores", "unexplained"],
)
def test_straggler_and_its_cause(
    stage: Stage, late: Callable[[int], Doing], other: Callable[[int], Doing], cause: str | None
) -> None:
    facts = watched(stage, other, late)
    assert [rank.pace.late for rank in facts.ranks] == [False, True]
    assert facts.ranks[1].pace.cause == cause
    assert facts.ranks[1].pace.mutual
    peer_waits, own_waits = (rank.pace.waits for rank in facts.ranks)
    assert peer_waits is not None
    assert own_waits is not None
    assert own_waits < 0.1 < peer_waits


def test_a_straggler_in_lines_of_its_own_whose_steps_take_longer_than_a_look(stage: Stage) -> None:
    """An evaluation that took so long would be seen: its peers would be found at the same step twice."""
    step = [look * 10 // 11 for look in range(LOOKS)]  # 0.55 s
    late = watched(
        stage,
        lambda look: Doing(0.2, waits=look % 4 > 0, state="S" if look % 4 else "R", step=step[look]),
        lambda look: Doing(0.95, waits=False, state="R", step=2 * step[look], alone=True),  # counts in pairs
    )
    assert not late.ranks[1].pace.each_step
    assert [rank.pace.late for rank in late.ranks] == [False, True]


def backs_off(look: int) -> Doing:
    """Sleeps in every step, and steps on between two looks."""
    return Doing(0.02, waits=False, step=look, sleeps=True)


def waits_for_its_sleep(look: int, broadcast: bool = False) -> Doing:
    return Doing(0.05, step=look, broadcast=broadcast)


def waits_for_a_request(look: int) -> Doing:
    return waits_for_its_sleep(look, broadcast=True)


@pytest.mark.parametrize(
    ("peer", "late"),
    [
        (waits_for_its_sleep, True),
        (waits_for_a_request, False),  # of a server whose first rank polls for work
        (busy(0.95), False),
    ],
)
def test_a_rank_that_sleeps_in_every_step(stage: Stage, peer: Callable[[int], Doing], late: bool) -> None:
    facts = watched(stage, peer, peer, backs_off)
    assert [rank.pace.late for rank in facts.ranks] == [False, False, late]
    assert facts.ranks[2].pace.doing == "idle"


def test_a_rank_that_sleeps_once(stage: Stage) -> None:
    """Whatever it waits for, no step goes by."""
    facts = watched(stage, still, still, lambda look: replace(backs_off(look), step=0))
    assert not any(rank.pace.late for rank in facts.ranks)


def evaluates(look: int) -> Doing:
    """Runs its own line in two looks of five, and trains with its peers in the rest."""
    alone = look % 5 < 2
    return Doing(
        0.95, waits=False, state="R", step=5 * (look - look % 5) + (10 if alone else 5 * (look % 5)), alone=alone
    )


def waits_for_evaluation(look: int) -> Doing:
    alone = look % 5 < 2
    return Doing(0.05 if alone else 0.95, waits=alone, state="RS"[alone], step=5 * (look - look % 5 if alone else look))


def collects_garbage(look: int) -> Doing:
    """Two long garbage collections in five looks; its peer happens to have none."""
    return replace(evaluates(look), alone=False)


def polls(look: int) -> Doing:
    return Doing(0.02, waits=False, state="S", step=5 * look)


def at_one_step(look: int) -> Doing:
    return Doing(0.95, waits=False, state="R")


def still(look: int) -> Doing:
    return Doing(0.0)


@pytest.mark.parametrize(
    "ranks",
    [
        (busy(0.95), busy(0.95)),
        (busy(0.3, 0.65), busy(0.35, 0.6)),  # a busy host delays both equally
        (evaluates, waits_for_evaluation),
        (collects_garbage, waits_for_evaluation),
        (polls, victim(0.3)),
        (at_one_step, still),  # one long wait: an evaluation, or a stall
        (busy(0.95), victim(0.85)),
        (victim(0.48, 0.14), victim(0.3, 0.14)),
        (busy(0.95, kernel=0.5), victim(0.5, kernel=0.15)),
        (busy(0.55), victim(0.45)),
    ],
    ids=[
        "steady",
        "busy host",
        "evaluation in between",
        "garbage collections",
        "sleeps itself",
        "one long wait",
        "hardly later",
        "heavier",
        "page faults",
        "held up",
    ],
)
def test_no_straggler(stage: Stage, ranks: tuple[Callable[[int], Doing], ...]) -> None:
    assert [rank.pace.late for rank in watched(stage, *ranks).ranks] == [False, False]


def test_wait_time_from_stacks_if_ranks_busy_wait(stage: Stage) -> None:
    """MPI busy-waits: CPU time shows neither waiting nor extra work."""
    spinning = watched(stage, lambda look: Doing(1.0, waits=look % 3 > 0, state="R", step=5 * look), busy(1.0))
    first, last = (rank.pace for rank in spinning.ranks)
    assert first.waits == pytest.approx(2 / 3, abs=0.1)
    assert (last.waits, last.more_cpu, last.late) == (0.0, None, True)


def test_unknown_in_too_short_a_window(stage: Stage) -> None:
    facts = stage.facts([At([("train", 3)]), in_c10d("all_reduce", ("train", 5))])
    assert [(rank.pace.late, rank.pace.late_share) for rank in facts.ranks] == [(None, None), (None, None)]


def own_line(look: int) -> Doing:
    """Spends half of each second at a line that no other rank runs; its steps have no counter."""
    return Doing(0.95, waits=False, state="R", step=look // 6, alone=look % 4 > 1)


def test_work_of_one_rank_only_is_no_straggling_without_a_step_counter(stage: Stage) -> None:
    """Rank 0 evaluates after each short epoch: over two epochs, it looks like a steady straggler."""
    facts = watched(
        stage, own_line, lambda look: Doing(0.5, waits=look % 4 > 1, state="RS"[look % 4 > 1], step=look // 6)
    )
    late_share = facts.ranks[0].pace.late_share
    assert late_share is not None
    assert late_share > 0.4
    assert (facts.ranks[0].pace.same_code, facts.ranks[0].pace.late) == (False, False)


# Rank 0 spends half of each second at a line of its own; its peer is always found in the same collective of it.
@pytest.mark.parametrize(
    ("step_at", "late"),
    [
        (lambda look: look + look // 4, True),  # a step or two between looks
        (lambda look: look // 2, True),  # two looks at each step
        (lambda look: 10 * (look // 2), False),  # it evaluates after every tenth step
        (lambda look: look % 7, False),  # the index of a batch of its evaluation
        (lambda look: look // 6, False),  # the epoch
    ],
    ids=["in each step", "two looks a step", "in every tenth step", "batches of an evaluation", "in each epoch"],
)
def test_work_of_one_rank_only_is_straggling_if_it_is_in_each_step(
    stage: Stage, step_at: Callable[[int], int], late: bool
) -> None:
    facts = watched(
        stage,
        lambda look: Doing(0.95, waits=False, state="R", step=step_at(look), alone=True),
        lambda look: Doing(0.3, step=0),
    )
    assert (facts.ranks[0].pace.each_step, facts.ranks[0].pace.late) == (late, late)


@pytest.mark.parametrize(
    ("every_looks", "peers", "late"),
    [
        (4, 0.05, True),
        (4, 0.3, False),  # the ranks train together for a third of the time
        (12, 0.05, False),  # seen twice: the third time may be far off
    ],
)
def test_work_of_one_rank_only_in_every_tenth_step(stage: Stage, every_looks: int, peers: float, late: bool) -> None:
    facts = watched(
        stage,
        lambda look: Doing(0.98, waits=False, state="R", step=10 * (look // every_looks), alone=True),
        lambda look: Doing(peers, step=0),
    )
    assert (facts.ranks[0].pace.each_step, facts.ranks[0].pace.late) == (False, late)


EPOCHS = """\
def fit(x):
    for epoch in range(1000):
        for batch in batches():
            loss = model(x).sum()
            loss.backward()
            dist.all_reduce(loss)
        evaluate(model)
        dist.barrier()
"""


def test_an_evaluation_after_each_epoch_that_is_as_long_as_two_looks(tmp_path: Path) -> None:
    """The epoch grows by one from each evaluation to the next. Steps are made in the loop inside."""
    every_s = 1.25  # on a busy host
    stage, looks = Stage(EPOCHS, tmp_path), []
    for look in range(LOOKS):
        evaluates, shown = look % 2 == 1, []
        for rank in range(2):
            cpu_s = every_s * look * (0.95, 0.5)[rank]
            main = ThreadCpu(100 + rank, "python", "R", cpu_s, run_delay_s=0.0)
            process = Process(100 + rank, 1, 0, "R", ("python",), None, None, 60.0 + look, cpu_s, 1, (main,))
            record: dict[str, Any] = {"variables": {"fit": [number("epoch", look // 2)]}, "records": {"cpu": process}}
            at = ("fit", (7, 8)[rank] if evaluates else 6)
            shown.append(
                At([at], state="R", **record) if at[1] == 7 else in_c10d("all_reduce", at, state="S", **record)
            )
        looks.append(shown)
    pace = stage.facts(*looks, every_s=every_s).ranks[0].pace
    assert pace.late_share is not None
    assert pace.late_share > 0.4
    assert (pace.each_step, pace.late) == (False, False)


def test_batches_of_an_evaluation_of_which_its_peers_hear_nothing(stage: Stage) -> None:
    facts = watched(
        stage, lambda look: Doing(0.95, waits=False, state="R", step=look, alone=True), lambda look: Doing(0.0, step=0)
    )
    assert (facts.ranks[0].pace.each_step, facts.ranks[0].pace.late) == (True, False)


@given(st.lists(st.floats(-9, 9), min_size=2, max_size=9))
def test_median_without_one_value(values: Sequence[float]) -> None:
    for i, value in enumerate(values):
        assert RankValues(values).median(value) == statistics.median([*values[:i], *values[i + 1 :]])
    assert RankValues(values).median() == statistics.median(values)


@pytest.mark.parametrize(
    ("cause", "steadiness", "late"), [("work", 0.6, True), ("work", 0.4, False), (None, 0.7, False)]
)
def test_more_rows_are_more_work_in_each_step(cause: str | None, steadiness: float, late: bool) -> None:
    """On two busy cores, the slices of a short step fall unevenly."""
    seen = StragglerFacts(late_share=0.28, late_least=0.26, steadiness=steadiness, same_code=True, more_cpu=1.9)
    facts = replace(seen, cause=cause, doing="compute")
    assert _is_late(facts, ProgressJob(21, 9.2, True, period_s=0.06, steps_counted=True)) is late
