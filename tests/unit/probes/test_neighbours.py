"""Probe `neighbours` beside real processes that burn a core."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from hangdoc.evidence import ChildProcess, Process, RankEvidence, Snapshot, Target, ThreadCpu
from hangdoc.evidence.resources import Neighbour
from probes import Observation, Request, Tier
from probes.neighbours import NeighboursProbe
from tests.support.polling import until

RANK = Target(os.getpid(), 1, "here", 0)
PROCESS = Process(os.getpid(), 1, 0, "R", ("python",), None, None, 9.0, 1.0, 1, ())


def delayed(by_s: float) -> Process:
    """This process as a rank that has stood in run queues for so long."""
    return replace(PROCESS, threads=(ThreadCpu(os.getpid(), "python", "R", 1.0, run_delay_s=by_s),))


NICER = -5 if os.geteuid() == 0 else 5  # on a busy host, it gets a core first where we may say so


def round(probe: NeighboursProbe, before_s: float, now_s: float, helpers: tuple[int, ...] = ()) -> Observation:
    """One round, half a second after the one before, in which the rank's wait in run queues grew so."""
    evidence = RankEvidence(RANK, True, {"cpu": delayed(before_s)})
    previous = Snapshot("here", time.monotonic() - 0.5, "", (evidence,))
    children = tuple(ChildProcess(pid, "helper", (), "R", 1.0) for pid in helpers)
    records = {RANK.pid: {"cpu": replace(delayed(now_s), children=children)}}
    return probe.observe(Request([RANK], Tier.LOOK, previous=previous, records=records))


@contextmanager
def burner(*arguments: str) -> Iterator[int]:
    script = f"import os, sys; os.nice({NICER}); print(flush=True)\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def test_a_process_that_burns_a_core_beside_a_delayed_rank_is_seen() -> None:
    probe = NeighboursProbe()

    def half_a_second_later() -> dict[int, Neighbour]:
        time.sleep(0.5)
        return {one.pid: one for one in round(probe, 0.4, 0.8).host.processes}

    with burner("--token", "secret") as pid:
        assert round(probe, 0.0, 0.4).host is None, "a counter tells at the second look"
        found = until(half_a_second_later, lambda seen: pid in seen and seen[pid].cores > 0.1)
    assert (found[pid].nice, found[pid].command.split()[0][:6]) == (os.nice(0) + NICER, "python")
    assert "secret" not in found[pid].command
    assert os.getpid() not in found


def test_a_helper_of_a_rank_is_no_neighbour() -> None:
    probe = NeighboursProbe()
    with burner() as pid:
        round(probe, 0.0, 0.4, (pid,))
        time.sleep(0.4)
        seen = round(probe, 0.4, 0.8, (pid,)).host
    assert pid not in {one.pid for one in seen.processes}


def test_nobody_is_looked_for_while_no_rank_waits_for_a_core() -> None:
    probe = NeighboursProbe()
    with burner():
        round(probe, 0.0, 0.0)
        time.sleep(0.2)
        assert round(probe, 0.0, 0.01).host is None
    assert probe.observe(Request([RANK], Tier.LOOK)) == Observation({})
