"""Jobs that assemble: which ranks have arrived, which cannot, and when it is too early to tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from msgspec import structs

from hangdoc.analysis.facts import Facts, derive, schema
from hangdoc.evidence import (
    Connection,
    Frame,
    Holder,
    JobProcess,
    Place,
    Process,
    RankEvidence,
    Rendezvous,
    Snapshot,
    Sockets,
    Source,
    Stack,
    Stacks,
    Target,
    ThreadCpu,
)

LIB = "/v/lib/python3.11/site-packages/torch/distributed"
INIT = ("init_process_group", f"{LIB}/distributed_c10d.py")
RENDEZVOUS = ("_create_tcp_store", f"{LIB}/elastic/rendezvous/c10d_rendezvous_backend.py")
SLEEP = ("retry", "/home/me/job.py")
IMPORT = ("_call_with_frames_removed", "<frozen importlib._bootstrap>")
HERE, PORT = "127.0.0.1", 29500
STORE = Holder(100, "python train.py", kin=True)
STRANGER = Holder(7, "python -m http.server", 0, 600.0, kin=False)
MAYBE = structs.replace(STRANGER, kin=None)


@dataclass(frozen=True)
class One:
    """A rank, or a launcher, in its way."""

    number: int | None
    at: tuple[str, str] = INIT
    world: int | None = 3
    master: str = f"{HERE}:{PORT}"
    meeting: Rendezvous | None = field(
        default_factory=lambda: Rendezvous(HERE, PORT, (HERE,), True, STORE, 2, timeout_s=1800.0)
    )
    socket: str | None = "established"
    command: str = "python train.py"
    age_s: float = 60.0
    pid: int = 0


def facts(*ranks: One, seconds: int = 8) -> Facts:
    """What is made of them after so long without a change."""
    return derive([_shot(ranks, at_s, seconds) for at_s in range(seconds + 1)], schema())


def _shot(ranks: Sequence[One], at_s: int, end_s: int) -> Snapshot:
    return Snapshot("here", float(at_s), "2026-01-01T00:00:00Z", tuple(_rank(one, at_s, end_s) for one in ranks), {})


def _rank(one: One, at_s: int, end_s: int) -> RankEvidence:
    agent = one.number is None
    pid = one.pid or (200 + len(one.command) if agent else 100 + (one.number or 0))
    role = "agent" if agent else "rank"
    target = Target(pid, 1, "here", one.number, world_size=one.world, master=one.master, role=role)
    if pid < 0:
        return RankEvidence(target, False)
    frames = (Frame(*one.at, 1), Frame("main", "/home/me/job.py", 5))
    thread = ThreadCpu(pid, "python", "S", 1.0)
    records: dict[str, Any] = {
        "cpu": Process(
            pid, 1, 0, "S", tuple(one.command.split()), None, None, one.age_s - end_s + at_s, 1.0, 1, (thread,)
        ),
        "stacks": Stacks((Stack(pid, "MainThread", frames),)),
        "source": Source({f"{SLEEP[1]}:1": Place("time.sleep(5)", (), (), ("time.sleep",), 1, 2)}),
    }
    if one.meeting:
        records["store"] = one.meeting
    links = (_link(one, pid, at_s),) if one.socket else ()
    records["sockets"] = Sockets(links)
    return RankEvidence(target, True, records)


def _link(one: One, pid: int, at_s: int) -> Connection:
    assert one.socket is not None
    host = one.master.rpartition(":")[0]
    return Connection(HERE, 40000 + pid, host, PORT, one.socket, last_receive_s=float(at_s), last_send_s=float(at_s))


# --- who has not come -----------------------------------------------------------------------------


def test_two_of_three_have_arrived() -> None:
    found = facts(One(0), One(1)).job
    assert (found.startup.missing, found.startup.come, found.startup.expected) == ((2,), 2, 3)
    assert (found.startup.named, found.startup.here, found.startup.timeout_s) == ("rank 2", True, 1800.0)
    assert [suspect.rank for suspect in found.startup.absent] == [2]
    assert found.stall.stalled


def test_a_number_that_two_processes_have() -> None:
    """All three are connected to the store, but rank 2 is none of them."""
    meeting = Rendezvous(HERE, PORT, (HERE,), True, STORE, 3, timeout_s=1800.0)
    found = facts(One(0, meeting=meeting), One(1, meeting=meeting), One(1, meeting=meeting, pid=300))
    assert [rank.startup.doubled for rank in found.ranks] == [False, True, True]
    assert (found.job.startup.missing, found.job.startup.lacking) == ((2,), 1)
    assert found.job.stall.stalled


@pytest.mark.parametrize(
    ("size", "named"), [(130, "ranks 2-129"), (512, "510 of 512 ranks"), (10**6, "999,998 of 1,000,000 ranks")]
)
def test_missing_ranks_are_listed_if_they_are_few(size: int, named: str) -> None:
    found = facts(One(0, world=size), One(1, world=size)).job.startup
    assert (found.named, found.missed, found.lacking) == (named, size - 2, size - 2)
    assert len(found.missing) == len(found.absent) == (128 if size == 130 else 0)


def test_patience() -> None:
    """A rank seen for a moment may have just arrived."""
    found = facts(One(0), One(1), seconds=3).job
    assert not found.stall.stalled
    assert found.startup.pending


@pytest.mark.parametrize(
    ("ranks", "why"),
    [
        ([One(0), One(1), One(2)], "all are there"),
        ([One(0), One(1), One(2, IMPORT, meeting=None, socket=None)], "one imports its libraries"),
        (
            [
                replace(one, meeting=Rendezvous(HERE, PORT, (HERE,), True, STORE, 2, (JobProcess(300, 2, 5.0),)))
                for one in (One(0), One(1))
            ],
            "one that is not watched was started and has not connected yet",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_job_that_merely_starts(ranks: list[One], why: str) -> None:
    found = facts(*ranks).job
    assert not found.stall.stalled, why


def test_more_patience_if_ranks_belong_on_other_hosts() -> None:
    far = [
        One(n, master=f"10.0.0.1:{PORT}", meeting=Rendezvous("10.0.0.1", PORT, ("10.0.0.1",), True, STORE, 2))
        for n in (0, 1)
    ]
    young = [replace(one, age_s=30.0) for one in far]
    assert not facts(*young).job.stall.stalled
    found = facts(*(replace(one, age_s=90.0) for one in far)).job
    assert found.stall.stalled
    assert (found.startup.missing, found.startup.lacking) == ((2,), 1)


def test_launchers_count_hosts() -> None:
    run = "python -m torch.distributed.run --nnodes 3 --nproc-per-node 2 --master-port 29500 --node-rank"
    both = [One(None, RENDEZVOUS, 6, command=f"{run} {node} t.py", pid=200 + node) for node in (0, 1)]
    found = facts(*both)
    job = found.job.startup
    assert (job.hosts, job.come, job.expected, job.missing) == (True, 2, 3, (4, 5))
    assert job.named == "ranks 4-5 (node 2)"
    assert job.timeout_s == 1800.0
    assert {rank.startup.part for rank in found.ranks} == {"node 0 with ranks 0-1", "node 1 with ranks 2-3"}
    assert found.job.stall.stalled


# --- who cannot come ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "trouble"),
    [
        ({"socket": "syn_sent", "meeting": Rendezvous("10.9.9.9", PORT, ("10.9.9.9",), False)}, "silent"),
        ({"socket": None, "meeting": Rendezvous("no.invalid", PORT, ())}, "unresolved"),
        ({"socket": None, "meeting": Rendezvous(HERE, PORT, (HERE,), True)}, "refused"),
        ({"socket": None, "meeting": Rendezvous(HERE, PORT, (HERE,), True, kin=(JobProcess(1, 0, 3.0),))}, None),
        ({"socket": "established"}, None),
    ],
)
def test_why_it_cannot_connect(changes: dict[str, Any], trouble: str | None) -> None:
    found = facts(One(0), replace(One(1), **changes), One(2))
    assert found.ranks[1].startup.trouble == trouble
    assert found.ranks[1].startup.unreachable == (trouble is not None)
    assert found.job.stall.stalled == (trouble is not None)


def test_different_world_sizes_wait_in_vain() -> None:
    found = facts(One(0), One(1, world=2), One(2))
    assert found.job.stall.stalled
    assert facts(One(0), One(1, world=2), One(2), seconds=3).job.stall.stalled is False


# --- strangers ------------------------------------------------------------------------------------


def at(holder: Holder) -> Rendezvous:
    return Rendezvous(HERE, PORT, (HERE,), True, holder, 2)


def test_a_stranger_listens() -> None:
    found = facts(One(1, meeting=at(STRANGER)), One(2, meeting=at(STRANGER)), One(0, pid=-1))
    job = found.job.startup
    assert job.barred
    assert [(one.rank, one.pid) for one in job.displaced] == [(0, None), (None, 7)]
    assert [one.startup.holder_pid for one in found.ranks if one.alive] == [7, 7]
    assert found.job.stall.stalled


def test_a_stranger_closes_every_connection() -> None:
    """A service that does not understand a store's client replies and hangs up; the client tries again."""
    ranks = [One(1, meeting=at(STRANGER), socket="close_wait"), One(2, meeting=at(STRANGER), socket=None)]
    found = facts(*ranks, One(0, pid=-1))
    assert (found.job.startup.barred, found.job.stall.stalled) == (True, True)
    assert [one.startup.dropped for one in found.ranks if one.alive] == [True, False]
    assert not facts(*ranks, One(0, pid=-1), seconds=4).job.startup.barred, "it may have just come"


def test_rank_0_tries_again_and_again() -> None:
    found = facts(One(0, SLEEP, meeting=None, socket=None), One(1, meeting=at(STRANGER)), One(2, meeting=at(STRANGER)))
    assert [(one.rank, one.pid) for one in found.job.startup.displaced] == [(0, 100), (None, 7)]
    assert found.job.stall.stalled


def test_a_listener_of_unknown_owner_is_no_stranger_while_rank_0_lives() -> None:
    ranks = [One(number, meeting=at(MAYBE)) for number in (0, 1, 2)]
    assert not facts(*ranks).job.startup.barred
    assert facts(One(0, pid=-1), *ranks[1:]).job.startup.barred


def test_a_stranger_without_connections_is_ignored() -> None:
    """Ranks that still import, on a port that may be free again when they come."""
    ranks = [One(number, IMPORT, meeting=at(STRANGER), socket=None) for number in (0, 1, 2)]
    found = facts(*ranks).job
    assert not found.startup.barred
    assert not found.stall.stalled


def test_an_unresolved_name_is_not_healthy() -> None:
    """All are there, and one has no connection: it may not get one, for all that is known."""
    unnamed = Rendezvous("trainer-0", PORT, None, None)
    found = facts(One(0), One(1, meeting=unnamed, socket=None, age_s=20.0), One(2)).job
    assert (found.startup.unnamed, found.startup.pending, found.stall.stalled) == (True, True, False)
    late = facts(One(0), One(1, meeting=unnamed, socket=None, age_s=100.0), One(2))
    assert (late.job.startup.unnamed, late.job.stall.stalled) == (False, True)
    assert [rank.startup.trouble for rank in late.ranks] == [None, "unreached", None]
    assert not facts(One(0), One(1, meeting=unnamed), One(2)).job.startup.unnamed, "it is connected"


# --- a rank that sleeps and retries ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "at", "lingers"),
    [
        (64, SLEEP, True),
        (40, SLEEP, None),  # it may still come
        (64, IMPORT, None),
    ],
)
def test_a_rank_that_sleeps_before_it_joins(seconds: int, at: tuple[str, str], lingers: bool | None) -> None:
    found = facts(One(0), One(1), One(2, at, socket=None), seconds=seconds)
    assert [rank.startup.lingers for rank in found.ranks] == [None, None, lingers]
    assert found.job.stall.stalled is bool(lingers)
