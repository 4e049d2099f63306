"""Who can end a rank's wait outside itself, from synthetic evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from hangdoc.analysis import Case
from hangdoc.analysis.data.wait_chains import ChainFacts
from hangdoc.analysis.network.links import NetworkJob
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.evidence import RankEvidence, Snapshot, Target
from hangdoc.evidence.waits import Awaited, Chain, Waiter

RANK, OTHER = ("here", 100), ("here", 101)
PIPE = Awaited("pipe", "pipe:[4711]", (71,))
REMOTE = Awaited("tcp", "10.0.0.7:443", None, silent_s=40.0, state="established", remote=True)
LOCAL = Awaited("tcp", "127.0.0.1:80", (71,), silent_s=40.0, state="established")
CLIENTS = Awaited("clients", "127.0.0.1:80")


def waiter(pid: int, command: str, *awaits: Awaited, **more: Any) -> Waiter:
    return Waiter(pid, pid, command, **{"state": "S", "call": "read", "age_s": 60.0, **more}, awaits=awaits)


def rank(*awaits: Awaited, **more: Any) -> Waiter:
    return waiter(100, "python train.py", *awaits, **more)


def facts(
    *looks: Chain | None,
    every_s: float = 1.5,
    others: str | None = "all_reduce",
    phase: str = "idle",
    op: str | None = "read",
    idle_s: float = 50.0,
) -> ChainFacts:
    """Facts of the first of two ranks; a single look is shown four times."""
    shown = looks if len(looks) > 1 else looks * 4
    shots = [_shot(i * every_s, chain) for i, chain in enumerate(shown)]
    case = Case(shots, {("here", rank.target.pid): rank for rank in shots[-1].ranks})
    waiting = StackFacts("collective" if others else "compute", others, waits=others is not None, thread="MainThread")
    case.give(StackFacts, {RANK: StackFacts(phase, op, waits=False, thread="MainThread"), OTHER: waiting})
    case.give_job(NetworkJob(True, idle_s=idle_s))
    return case.facts(ChainFacts)[RANK]


def _shot(at_s: float, chain: Chain | None) -> Snapshot:
    records = {} if chain is None else {"chain": chain}
    ranks = [RankEvidence(Target(100, 1, "here", 0), True, records), RankEvidence(Target(101, 1, "here", 1), True)]
    return Snapshot("here", at_s, "", tuple(ranks), tier="look")


@pytest.mark.parametrize(
    ("unanswered", "silent_s", "cut"),
    [
        (5, 8.0, "retransmitted 5 times without an answer, nothing arrived for 8 s"),
        (5, 1.0, None),  # a hiccup
        (1, 8.0, None),
        (0, 8.0, None),  # the server is only silent
    ],
)
def test_a_connection_that_retransmits_in_vain_is_cut_and_its_rank_stuck(
    unanswered: int, silent_s: float, cut: str | None
) -> None:
    connection = replace(REMOTE, unanswered=unanswered, silent_s=silent_s)
    found = facts(chain(rank(connection)), idle_s=8.0)
    assert (found.cut, found.stuck) == (cut, cut is not None or None)


def test_a_cut_connection_of_a_rank_that_nobody_waits_for_is_no_stall() -> None:
    connection = replace(REMOTE, unanswered=5, silent_s=8.0)
    assert facts(chain(rank(connection)), others=None, idle_s=8.0).stuck is None


def chain(first: Waiter, *others: Waiter) -> Chain:
    return Chain((first,), others)


CURL = waiter(71, "curl", REMOTE, call="receive")


def test_a_chain_is_shown_to_its_end() -> None:
    seen = facts(chain(rank(PIPE), CURL))
    assert seen.text == "waits on a pipe from PID 71 (curl), which reads from 10.0.0.7:443: no byte for 40 s"
    assert (seen.way, seen.end, seen.server, seen.silent_s) == ("pipe", "silent", "10.0.0.7:443", 40.0)
    assert (seen.stuck, seen.certain) == (True, None)


@pytest.mark.parametrize(
    ("others", "end", "text"),
    [
        ([replace(CURL, state="T", awaits=())], "stopped", "waits on a pipe from PID 71 (curl), which is stopped"),
        ([replace(CURL, state="Z", awaits=())], "dead", "which is dead"),
        ([replace(CURL, locked=True, awaits=())], "locked", "whose threads all wait for locks of their own process"),
        ([replace(CURL, awaits=(Awaited("fifo", "/s", ()),))], "nobody", "reads the named pipe /s: no process has its"),
        (
            [waiter(71, "sh", Awaited("child", peers=(72,))), waiter(72, "cat", state="T")],
            "stopped",
            "from PID 71 (sh), which waits for its child PID 72 (cat), which is stopped",
        ),
        (
            [waiter(71, "get", Awaited("lock", "/l", (72,)), call="flock"), waiter(72, "holder", state="T")],
            "stopped",
            "which waits for the lock on /l, held by PID 72 (holder), which is stopped",
        ),
        (
            [waiter(71, "ask", Awaited("unix", "socket:[5]", (72,))), waiter(72, "serve", state="T")],
            "stopped",
            "which waits on a Unix socket of PID 72 (serve), which is stopped",
        ),
    ],
)
@pytest.mark.parametrize("others_wait", ["all_reduce", "broadcast", None])  # whatever they do
def test_a_process_that_cannot_go_on(others: Sequence[Waiter], end: str, text: str, others_wait: str | None) -> None:
    seen = facts(chain(rank(PIPE), *others), others=others_wait)
    assert (seen.end, seen.certain, seen.stuck) == (end, True, True)
    assert text in (seen.text or "")


STOPPED = replace(CURL, state="T", awaits=())


@pytest.mark.parametrize(
    "look",
    [
        chain(rank(replace(PIPE, peers=(71, 72))), STOPPED, waiter(72, "another writer")),
        chain(rank(PIPE, REMOTE, call="poll"), STOPPED),  # the server may answer
        chain(rank(replace(PIPE, peers=(71, 73))), STOPPED),  # a process that was not seen
    ],
)
def test_all_that_could_end_the_wait_must_be_unable_to(look: Chain) -> None:
    seen = facts(look, others="broadcast")
    assert (seen.end, seen.certain, seen.stuck) == ("stopped", None, None)


UNIX = Awaited("unix", "socket:[5]", (71,))
SERVER = waiter(71, "python scorer.py", Awaited("other", "socket:[7]"), call="poll")


@pytest.mark.parametrize(("writes", "end", "quiet"), [(True, "silent", True), (False, "unknown", None)])
def test_a_process_that_does_not_read_what_a_rank_writes(writes: bool, end: str, quiet: bool | None) -> None:
    """The buffer is full. A process from which a rank reads may be waiting for what it is to answer with."""
    seen = facts(chain(rank(UNIX, call="send" if writes else "receive", writes=writes), SERVER), op="sendall")
    assert (seen.end, seen.quiet) == (end, quiet)


def test_a_process_that_reads_what_a_rank_writes_is_slow() -> None:
    first = chain(rank(UNIX, call="send", writes=True), SERVER)
    looks = [first, *(chain(first.threads[0], replace(SERVER, cpu_s=float(used))) for used in (1, 2, 3))]
    assert facts(*looks, op="sendall").quiet is None


SILENT = chain(rank(LOCAL, call="receive"), waiter(71, "server", CLIENTS, call="poll"))


def test_a_server_that_waits_for_requests_is_silent() -> None:
    seen = facts(SILENT)
    assert seen.text == "reads from 127.0.0.1:80, a connection to PID 71 (server): no byte for 40 s"
    assert (seen.end, seen.stuck, seen.certain) == ("silent", True, None)


@pytest.mark.parametrize(
    ("look", "more"),
    [
        (SILENT, {"others": "broadcast"}),  # it may wait for work that it hands out
        (SILENT, {"others": None}),  # nobody waits for it
        (SILENT, {"every_s": 0.5}),  # too early
        (chain(rank(replace(LOCAL, silent_s=9.0)), SILENT.others[0]), {}),  # a slow answer
        (chain(rank(CLIENTS, call="poll")), {}),  # a service
        (chain(rank(PIPE), waiter(71, "sleep 60", call="time")), {}),
        (chain(rank(Awaited("tcp", "127.0.0.1:9", (101,), silent_s=40.0)), waiter(101, "python")), {}),  # another rank
        (chain(rank(Awaited("other", "/dev/pts/1"))), {}),
    ],
)
def test_a_wait_that_may_end(look: Chain, more: dict[str, Any]) -> None:
    assert facts(look, **more).stuck is None


def test_a_process_that_works_is_waited_for() -> None:
    looks = [chain(rank(PIPE), waiter(71, "unzip", call="", cpu_s=2.0 + i)) for i in range(5)]
    assert (facts(*looks).end, facts(*looks).stuck) == ("runs", None)
    moving = [chain(rank(PIPE), waiter(71, "cat", call="write", moved=4096 * i)) for i in range(5)]
    assert (facts(*moving).end, facts(*moving).stuck) == ("runs", None)


def test_a_wait_counts_from_its_beginning() -> None:
    stopped = chain(rank(PIPE), replace(CURL, state="T", awaits=()))
    before = chain(rank(replace(PIPE, target="pipe:[1]")), replace(CURL, state="T", awaits=()))
    assert facts(before, before, before, stopped).stuck is None
    assert facts(stopped, stopped, stopped, None) == ChainFacts()


def test_a_child_that_is_younger_than_the_silence() -> None:
    first = rank(Awaited("child", peers=(71,)), call="child")
    child = waiter(71, "upload", Awaited("other", "x"), call="receive")
    assert facts(chain(first, replace(child, awaits=())), idle_s=50.0).stuck is True
    assert facts(chain(first, replace(child, awaits=(), age_s=10.0)), idle_s=50.0).stuck is None


def test_a_chain_that_ends_at_another_rank() -> None:
    of_rank = facts(chain(rank(replace(PIPE, peers=(101,))), waiter(101, "python train.py", state="T")))
    assert (of_rank.end, of_rank.peer, of_rank.text) == (
        "stopped",
        True,
        "waits on a pipe from rank 1, which is stopped",
    )
    assert facts(chain(rank(PIPE), CURL)).peer is None


@pytest.mark.parametrize(
    ("inherited", "call", "end", "stuck"), [(True, "time", "inherited", True), (False, "time", "timer", None)]
)
def test_a_process_that_does_not_know_of_its_lock(inherited: bool, call: str, end: str, stuck: bool | None) -> None:
    lock = Awaited("lock", "/cache/region.lock", (71,), inherited=inherited)
    seen = facts(chain(rank(lock), waiter(71, "python train.py", call=call)))
    assert (seen.end, seen.stuck) == (end, stuck)


@pytest.mark.parametrize(
    ("naps", "more", "end", "stuck"),
    [
        ((80, 80, 81, 81), {}, "polls", True),
        ((80, 80, 81, 81), {"idle_s": 20.0}, "polls", None),  # the job has just begun to wait
        ((80, 80, 81, 81), {"others": "broadcast"}, "polls", None),  # perhaps for work that comes this way
        ((80, 80, 80, 80), {}, "timer", None),  # one long sleep
        ((80, None, 81, 81), {}, "runs", None),  # what it does between
    ],
)
def test_a_process_that_polls(naps: Sequence[int | None], more: dict[str, Any], end: str, stuck: bool | None) -> None:
    """`until [ -r FILE ]; do sleep 1; done`; what each child has read counts as moved by the shell."""
    looks = []
    for at, nap in enumerate(naps):
        shell = waiter(71, "sh -c ...", Awaited("child", peers=(nap or 90,)), call="child", moved=7000 * at)
        child = waiter(nap, "sleep 1", call="time") if nap else waiter(90, "gsutil ls", call="receive")
        looks.append(chain(rank(PIPE), shell if end != "timer" else replace(shell, moved=0), child))
    seen = facts(*looks, **more)
    assert (seen.end, seen.stuck) == (end, stuck)


@pytest.mark.parametrize(
    ("moved", "more", "end", "stuck"),
    [
        ((80, 80, 96, 96), {}, "polls", True),  # a heartbeat
        ((80, 80, 96, 96), {"idle_s": 20.0}, "polls", None),  # the job has just begun to wait
        ((80, 80, 80, 80), {}, "timer", None),  # one long sleep
        ((80, 80, 480, 480), {}, "runs", None),  # it works between two naps
    ],
)
def test_a_process_that_naps(moved: Sequence[int], more: dict[str, Any], end: str, stuck: bool | None) -> None:
    looks = [chain(rank(PIPE), waiter(71, "python train.py", call="time", moved=at)) for at in moved]
    seen = facts(*looks, **more)
    assert (seen.end, seen.stuck) == (end, stuck)


def test_a_circle() -> None:
    back = Awaited("tcp", "127.0.0.1:80", (100,), silent_s=40.0, state="established", accepted=False)
    seen = facts(chain(rank(Awaited("child", peers=(71,)), call="child"), waiter(71, "upload", back, call="receive")))
    assert (seen.end, seen.stuck) == ("circle", True)
    assert "a connection to rank 0 itself that nobody accepts: nothing for 40 s" in (seen.text or "")


@pytest.mark.parametrize(
    ("idle_s", "every_s", "stuck"),
    [(50.0, 1.5, True), (20.0, 1.5, None), (50.0, 1.0, None)],  # the job waits, and so do they; the job just began to
)
def test_processes_that_wait_for_one_another(idle_s: float, every_s: float, stuck: bool | None) -> None:
    """A worker reads what its helper answers, and the helper writes its errors, which nobody reads."""
    worker = waiter(71, "python", Awaited("pipe", peers=(72,)), call="read")
    helper = waiter(72, "python -c ...", Awaited("pipe", peers=(71,)), call="write")
    seen = facts(chain(rank(PIPE), worker, helper), idle_s=idle_s, every_s=every_s)
    assert (seen.end, seen.stuck) == ("circle", stuck)


@pytest.mark.parametrize(
    ("phase", "op"), [("collective", "barrier"), ("startup", "init_process_group"), ("compute", "")]
)
def test_a_rank_that_waits_for_its_peers_or_computes(phase: str, op: str) -> None:
    assert facts(chain(rank(PIPE), CURL), phase=phase, op=op) == ChainFacts()


def test_a_thread_that_the_rank_waits_for() -> None:
    look = Chain((rank(call="lock"), replace(rank(LOCAL), tid=105)), SILENT.others)
    assert facts(look, op="result").stuck is True
    assert facts(look, op="sleep") == ChainFacts()
