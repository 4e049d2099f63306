"""CPU usage of a rank's threads between looks."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hangdoc.analysis.ranks.cpu_clocks import clocks, usage_between, usage_over
from hangdoc.evidence import Process, ThreadCpu


def process(*threads: ThreadCpu) -> Process:
    return Process(1, 0, 0, "R", ("python",), None, None, 9.0, 1.0, 1, threads)


def thread(tid: int, cpu_s: float, delay_s: float | None, state: str = "S", comm: str = "python") -> ThreadCpu:
    return ThreadCpu(tid, comm, state, cpu_s, run_delay_s=delay_s)


def test_threads_of_a_process_group_do_not_count() -> None:
    """They wake for every message, and a busy host delays them all."""
    before = process(thread(1, 1.0, 0.0), thread(2, 0.0, 0.0, comm="gloo_tcp_loop"))
    after = process(thread(1, 1.5, 0.5), thread(2, 3.0, 9.0, comm="gloo_tcp_loop"))
    found = usage_between(clocks([(0.0, before), (2.0, after)]))
    assert (found.seconds, found.cpu_s, found.delay_s, found.demand_s) == (2.0, 0.5, 0.5, 1.0)
    assert found.by_thread == {1: pytest.approx(1.0)}


def test_new_threads_count_from_zero_and_ended_threads_are_left_out() -> None:
    found = usage_between(clocks([(0.0, process(thread(1, 5.0, 0.0))), (2.0, process(thread(2, 0.5, 0.1)))]))
    assert (found.cpu_s, found.delay_s) == (0.5, 0.1)


@pytest.mark.parametrize(("state", "queued_s"), [("R", 4.0), ("S", 0.0)])
def test_a_runnable_thread_with_unchanged_counters_is_in_a_run_queue(state: str, queued_s: float) -> None:
    look = process(thread(1, 1.0, 0.5, state))
    assert usage_between(clocks([(0.0, look), (2.0, look), (4.0, look)])).delay_s == queued_s


def test_after_it_ran_the_kernels_count_applies() -> None:
    """The kernel has counted the time in the queue by then: it must not count twice."""
    queued, ran = process(thread(1, 1.0, 0.0, "R")), process(thread(1, 1.1, 3.9, "R"))
    assert usage_between(clocks([(0.0, queued), (2.0, queued), (4.0, ran)])).delay_s == pytest.approx(3.9)


def test_one_look_gives_no_delay() -> None:
    assert usage_between(clocks([(0.0, process(thread(1, 1.0, None)))])).delay_s is None


@pytest.mark.parametrize("states", ["SSS", "RRR", "SRR", "RSR", "RRS"])
@pytest.mark.parametrize("ran_s", [(0.0, 0.0, 0.0), (0.0, 0.5, 0.5), (0.0, 0.5, 1.0)])
def test_usage_over_a_series_is_that_between_its_ends(states: str, ran_s: tuple[float, float, float]) -> None:
    series = [
        (2.0 * n, process(replace(thread(1, 5.0 + ran, 0.1), state=state), thread(2, 1.0 + n, None)))
        for n, (state, ran) in enumerate(zip(states, ran_s, strict=True))
    ]
    assert usage_over(series) == usage_between(clocks(series))
    assert usage_over(series[:1]) == usage_between(clocks(series[:1]))
