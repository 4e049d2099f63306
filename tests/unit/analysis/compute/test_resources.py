"""CPU and memory that ranks demanded and received, from synthetic records some seconds apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from hangdoc.analysis import Case
from hangdoc.analysis.compute.resources import ANALYSIS, ResourcesFacts, ResourcesJob
from hangdoc.evidence import Environ, Host, Process, RankEvidence, Snapshot, Target, ThreadCpu
from hangdoc.evidence.resources import Cgroup, CpuLimit, MemoryLimit, Neighbour, Neighbours

MIB = 1 << 20


def process(pid: int, *threads: tuple[float, float | None], cores: tuple[int, ...] = (0, 1), nice: int = 0) -> Process:
    """A rank; for each thread, its CPU time and run-queue delay in seconds."""
    told = tuple(ThreadCpu(pid + i, "python", "R", cpu, run_delay_s=delay) for i, (cpu, delay) in enumerate(threads))
    return Process(pid, 1, 0, "R", ("python",), None, None, 9.0, 1.0, 1, told, affinity=cores, nice=nice)


def derived(
    *looks: Sequence[Mapping[str, Any]], every_s: float = 4.0, hosts: Sequence[Mapping[str, Any]] = ()
) -> tuple[list[ResourcesFacts], ResourcesJob]:
    """Facts after these looks at some ranks; `hosts`: records of the host in each look."""
    machine = Host("here", None, "6", 4, None, None)
    shots = []
    for number, ranks in enumerate(looks):
        seen = tuple(
            RankEvidence(Target(100 * (i + 1), 1, "here", i), True, records) for i, records in enumerate(ranks)
        )
        of_host = {"host": machine, **(hosts[number] if hosts else {})}
        shots.append(Snapshot("here", number * every_s, "", seen, of_host))
    case = Case(shots, {("here", rank.target.pid): rank for rank in shots[-1].ranks})
    facts, job = ANALYSIS.derive(case)
    return list(facts.values()), job


def test_demand_is_cpu_time_plus_run_queue_delay() -> None:
    before = {"cpu": process(100, (1.0, 0.0), (0.5, 0.0))}
    after = {"cpu": process(100, (3.0, 1.0), (0.5, 0.01)), "environ": Environ({"OMP_NUM_THREADS": "8", "X": "1"})}
    (rank,), job = derived([before], [after])
    assert [rank.cores_used, rank.demand] == pytest.approx([0.5, 3.01 / 4])
    assert rank.delay_share == pytest.approx(1.01 / 3.01)
    assert (rank.busy_threads, rank.core_list, rank.bound) == (1, "0-1", True)
    assert rank.thread_setting == "OMP_NUM_THREADS=8"
    assert [job.cores, job.host_cores, job.demand_per_core] == pytest.approx([2, 4, 3.01 / 8])


def test_runnable_thread_with_unchanged_clocks_is_in_a_run_queue() -> None:
    """The kernel adds the wait to its counter only when it ends."""
    look = {"cpu": process(100, (1.0, 0.5))}
    (rank,), _ = derived([look], [look])
    assert rank.delay_share == pytest.approx(1.0)


def test_without_schedstat_demand_is_unknown() -> None:
    (rank,), job = derived([{"cpu": process(100, (1.0, None))}], [{"cpu": process(100, (2.0, None))}])
    assert (rank.cores_used, rank.demand, rank.delay_share) == (0.25, None, None)
    assert job.demand_per_core is None


def test_ranks_on_the_same_core_and_their_niceness() -> None:
    ranks = [{"cpu": process(100, (1.0, 0.0), cores=(0,))}, {"cpu": process(200, (1.0, 0.0), cores=(0,), nice=5)}]
    (first, second), job = derived(ranks, ranks)
    assert (first.crowd, second.crowd, first.nicer, second.nicer) == (2, 2, 0, 5)
    assert job.cores == 1


CPU, MEMORY = "/g/cpu.max", "/g/memory.max"


def test_throttling_as_share_of_time_and_of_periods() -> None:
    loose = CpuLimit("/cpu.max", 8.0, 10, 0, 0.0)
    before = Cgroup(cpu=(CpuLimit(CPU, 0.5, 100, 10, 5.0), loose))
    after = Cgroup(cpu=(CpuLimit(CPU, 0.5, 140, 40, 7.0), loose))
    (rank,), _ = derived(
        [{"cpu": process(100, (1.0, 0.0)), "cgroup": before}], [{"cpu": process(100, (1.0, 0.0)), "cgroup": after}]
    )
    assert [rank.throttled_share, rank.throttled_periods] == pytest.approx([0.5, 0.75])
    assert (rank.cpu_limit, rank.cpu_limit_file) == (0.5, CPU)


def test_memory_limit_nearest_to_usage() -> None:
    wide = MemoryLimit("/memory.max", 1000 * MIB, 100 * MIB, 0, 0)
    before = Cgroup((), (wide, MemoryLimit(MEMORY, 64 * MIB, 60 * MIB, 10, 100)), "/g", memory_stall_s=1.0)
    after = Cgroup((), (wide, MemoryLimit(MEMORY, 64 * MIB, 64 * MIB, 50, 500)), "/g", memory_stall_s=3.0)
    (rank,), _ = derived(
        [{"cpu": process(100, (1.0, 0.0)), "cgroup": before}], [{"cpu": process(100, (1.0, 0.0)), "cgroup": after}]
    )
    assert (rank.memory_limit_file, rank.memory_full) == (MEMORY, 1.0)
    assert [rank.memory_hits, rank.refaults, rank.memory_stall] == pytest.approx([10.0, 100.0, 0.5])
    assert rank.memory_stall_of == "its cgroup"


@pytest.mark.parametrize(
    ("faults", "blocked", "faulting"),
    [
        (400, True, True),  # 100 per second
        (400, False, True),
        (40, True, False),  # 10 per second, and in state D all the time: it waits for something else
        (0, False, False),
        (None, True, None),
    ],
)
def test_faulting_if_page_faults_explain_the_time_blocked(
    faults: int | None, blocked: bool, faulting: bool | None
) -> None:
    thread = ThreadCpu(100, "python", "D" if blocked else "S", 1.0, run_delay_s=0.0)
    ranks = [{"cpu": replace(process(100), threads=(thread,)), "cgroup": Cgroup((), (), "/g", major_faults=0)}]
    later = [ranks[0] | {"cgroup": Cgroup((), (), "/g", major_faults=faults)}]
    (rank,), _ = derived(ranks, later)
    assert rank.faulting is faulting


def test_neighbours_count_on_the_rank_s_own_cores_only() -> None:
    ranks = [{"cpu": process(100, (1.0, 0.0), cores=(0,))}, {"cpu": process(200, (1.0, 0.0), cores=(1,))}]
    burning = Neighbours(tuple(Neighbour(900 + i, "burn", 0.4, 3, 1) for i in range(2)))
    (first, second), _ = derived(ranks, ranks, hosts=[{"neighbours": burning}] * 2)
    assert (first.neighbour, first.neighbour_cores) == (None, None)
    assert second.neighbour == "burn (pid 900) and 1 more"
    assert [second.neighbour_cores, second.neighbour_nice] == pytest.approx([0.8, 3])


def test_unknown_with_one_look_or_without_records() -> None:
    (rank, dark), job = derived([{"cpu": process(100, (1.0, 0.0))}, {}])
    assert (rank.demand, rank.throttled_share, rank.cores) == (None, None, 2)
    assert dark == ResourcesFacts(nicer=None)
    assert job.delay_share is None
