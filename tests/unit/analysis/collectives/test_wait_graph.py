"""The wait graph: on synthetic stacks, and on a real job that is stalled."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from hangdoc.analysis.facts import Facts, derive, schema
from hangdoc.evidence import (
    Frame,
    Loop,
    Place,
    Process,
    ProcessGroup,
    ProcessGroups,
    RankEvidence,
    Snapshot,
    Source,
    Stack,
    Stacks,
    Target,
    Variable,
)
from hangdoc.evidence.transfers import Transfer, Transfers
from hangdoc.watch.sampler import Sampler
from probes import Tier, load
from tests.support import requirements
from tests.support.polling import at_rest

C10D = "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
AUTOGRAD = "/v/lib/python3.11/site-packages/torch/autograd/graph.py"
DEFAULT = 0x1000


@dataclass(frozen=True)
class At:
    """The call of one rank. `group`: an address (DEFAULT, or DEFAULT + the number of a subgroup), or None."""

    function: str = "all_reduce"
    group: int | None = None
    line: int = 10
    numbers: tuple[tuple[str, int], ...] = ()
    file: str = C10D
    variables: bool = True
    native: str | None = None
    text: str = "x()"
    around: tuple[str, ...] = ()
    alive: bool = True
    seen: bool = True
    started: tuple[Transfer, ...] = ()  # pending sends and receives
    steps: int | None = None  # counter of the loop around the call
    state: str | None = None  # of the process
    caller: str = ""  # of the function around the call


def number(name: str, value: int | None) -> Variable:
    return Variable(name, str(value), True, value, kind="none" if value is None else "int")


def stacks(at: At) -> Stacks:
    group = Variable("group", "<ProcessGroup>", True, kind="object", address=at.group)
    arguments = (group if at.group else number("group", None), *(number(*pair) for pair in at.numbers))
    named = [Variable("mine", "<ProcessGroup>", kind="object", address=at.group), number("x", 1)] if at.group else []
    named += [number("step", at.steps)] if at.steps is not None else []
    frames = [Frame("train", "/job/train.py", at.line, variables=tuple(named))]
    frames += [Frame(at.caller, "/job/train.py", 45)] if at.caller else []
    if at.function:
        frames.insert(0, Frame(at.function, at.file, 100, variables=arguments if at.variables else None))
    if at.native:
        frames.insert(0, Frame(at.native, "libtorch_cpu.so", None, native=True))
    return Stacks((Stack(7, "MainThread", tuple(frames)),), native=at.native is not None)


def facts(*ranks: At, subgroups: tuple[tuple[int, ...], ...] = (), groups: bool = True) -> Facts:
    evidence = []
    for rank, at in enumerate(ranks):
        known = [ProcessGroup(DEFAULT, "0", tuple(range(len(ranks))), True)]
        known += [ProcessGroup(DEFAULT + n, str(n), s) for n, s in enumerate(subgroups, 1) if rank in s]
        records: dict[str, Any] = {"groups": ProcessGroups(tuple(known), rank, len(ranks))} if groups else {}
        if at.seen and at.alive:
            called = (at.text.partition("(")[0],)
            loops = (Loop(1, 40, "for step in steps", ("step",)),) if at.steps is not None else ()
            place = Place(at.text, loops, (), called, around=(*called, *at.around), function_first=1, function_last=50)
            records |= {"stacks": stacks(at), "source": Source({f"/job/train.py:{at.line}": place})}
        records |= {"cpu": Process(1, 1, 0, at.state, (), None, None, 10.0, 0.0, 1, ())} if at.state else {}
        records |= {"transfers": Transfers((DEFAULT,), at.started)} if at.started else {}
        target = Target(100 + rank, 1, "here", rank, world_size=len(ranks))
        evidence.append(RankEvidence(target, at.alive, records))
    return derive([Snapshot("here", 0.0, "t", tuple(evidence))], schema())


SUB = [DEFAULT + n for n in range(9)]
COMPUTES = At("", text="y = f(x)", line=30)
BACKWARD = At(
    "_engine_run_backward", file=AUTOGRAD, native="c10d::Reducer::finalize_backward()", text="loss.backward()"
)
RECV, SEND = "recv", "send"


def p2p(function: str, **numbers: int) -> At:
    return At(function, numbers=tuple(numbers.items()))


@pytest.mark.parametrize(
    ("ranks", "subgroups", "waits_for", "cycle", "roots"),
    [
        pytest.param([At(), At(), COMPUTES], (), [(2,), (2,), ()], (), (2,), id="one rank is absent"),
        pytest.param([At(), At("barrier", DEFAULT), At()], (), [(), (), ()], (), (), id="all members wait, crossed"),
        pytest.param([BACKWARD, BACKWARD, COMPUTES], (), [(2,), (2,), ()], (), (2,), id="the reducer of DDP"),
        pytest.param(
            [At(group=SUB[1]), COMPUTES, COMPUTES], ((0, 1),), [(1,), (), ()], (), (1,), id="a rank outside the group"
        ),
        pytest.param(
            [At(group=SUB[1]), At(group=SUB[2])], ((0, 1), (0, 1)), [(1,), (0,)], (0, 1), (), id="opposite order"
        ),
        pytest.param(
            [At(group=SUB[1]), At(group=SUB[2]), At(group=SUB[3])],
            ((0, 1), (1, 2), (2, 0)),
            [(1,), (2,), (0,)],
            (0, 1, 2),
            (),
            id="a ring of groups",
        ),
        pytest.param(
            [At(group=SUB[1]), At(group=SUB[1]), At(group=SUB[2]), At(group=SUB[2]), At()],
            ((0, 1, 2, 3), (0, 1, 2, 3)),
            [(2, 3), (2, 3), (0, 1), (0, 1), (0, 1, 2, 3)],
            (0, 1, 2, 3),
            (),
            id="only ranks on the cycle",
        ),
        pytest.param([p2p(RECV, src=1), p2p(RECV, src=0)], (), [(1,), (0,)], (0, 1), (), id="both receive"),
        pytest.param([p2p(SEND, dst=1), p2p(RECV, src=0)], (), [(), ()], (), (), id="a matched transfer"),
        pytest.param(
            [p2p(SEND, dst=1, tag=1), p2p(RECV, src=0, tag=2)], (), [(1,), (0,)], (0, 1), (), id="different tags"
        ),
        pytest.param([COMPUTES, p2p(RECV, src=0), p2p(RECV, src=1)], (), [(), (0,), (1,)], (), (0,), id="a pipeline"),
        pytest.param([p2p(RECV, src=1), At()], (), [(1,), (0,)], (0, 1), (), id="a receive and a collective"),
        pytest.param([p2p(RECV), COMPUTES], (), [(), ()], (), (), id="receive from any rank"),
        pytest.param(
            [At(RECV, SUB[1], numbers=(("group_src", 1),)), COMPUTES, COMPUTES],
            ((0, 2),),
            [(2,), (), ()],
            (),
            (2,),
            id="numbered within the group",
        ),
        pytest.param([At(), At(alive=False)], (), [(1,), ()], (), (1,), id="a rank has ended"),
        pytest.param([At(), At(seen=False)], (), [(), ()], (), (), id="a rank is hidden"),
        pytest.param([At(variables=False), COMPUTES], (), [(), ()], (), (), id="arguments not readable"),
        pytest.param([At(group=0x9999), COMPUTES], (), [(), ()], (), (), id="an unknown group"),
    ],
)
def test_who_waits_for_whom(
    ranks: list[At],
    subgroups: tuple[tuple[int, ...], ...],
    waits_for: list[tuple[int, ...]],
    cycle: tuple[int, ...],
    roots: tuple[int, ...],
) -> None:
    found = facts(*ranks, subgroups=subgroups)
    assert [rank.wait_graph.waits_for for rank in found.ranks] == waits_for
    assert (found.job.wait_graph.cycle, found.job.wait_graph.roots) == (cycle, roots)
    by = {rank.rank: rank.wait_graph.waited_by for rank in found.ranks}
    assert by == {n: tuple(r for r, ahead in enumerate(waits_for) if n in ahead) for n in by}


@pytest.mark.parametrize(
    ("ranks", "mixed"),
    [
        ([p2p(RECV, src=1), p2p(RECV, src=0)], False),
        ([At(), p2p(RECV, src=0), p2p(RECV, src=1)], True),  # the first one went on to a collective
        ([At(), COMPUTES], False),
    ],
)
def test_a_cycle_closed_by_a_collective(ranks: list[At], mixed: bool) -> None:
    assert facts(*ranks).job.wait_graph.mixed is mixed


@pytest.mark.parametrize(
    ("ranks", "same"),
    [
        ([p2p(RECV, src=1), p2p(RECV, src=0)], True),
        ([p2p(RECV, src=1), replace(p2p(RECV, src=0), line=20)], False),  # one of them may be one too many
        ([p2p(SEND, dst=1), replace(p2p(SEND, dst=0), line=20)], True),  # none receives, whatever the order should be
        ([replace(p2p(RECV, src=1), caller="step"), replace(p2p(RECV, src=0), caller="step")], True),
        ([replace(p2p(RECV, src=1), caller="forward"), replace(p2p(RECV, src=0), caller="backward")], False),
    ],
)
def test_calls_of_a_cycle_that_are_alike(ranks: list[At], same: bool) -> None:
    job = facts(*ranks).job.wait_graph
    assert (job.cycle, job.same_call, job.uneven) == ((0, 1), same, ())


@pytest.mark.parametrize(
    ("late", "left_behind"),
    [
        (At(group=SUB[2], line=10, steps=4), (3,)),  # rank 2 is past it, in the same step
        (At(group=SUB[2], line=10, steps=3), ()),  # in another step
        (At(group=SUB[2], line=30, steps=4), (1,)),  # rank 3 is past the place of rank 1
    ],
)
def test_a_rank_in_a_call_that_its_peer_is_past(late: At, left_behind: tuple[int, ...]) -> None:
    whole = At(line=30, steps=4)
    found = facts(whole, At(group=SUB[1], line=20, steps=4), whole, late, subgroups=((1, 3), (2, 3))).job.wait_graph
    assert (found.cycle, found.left_behind) == ((1, 2, 3), left_behind)


@pytest.mark.parametrize(
    ("ranks", "strayed"),
    [
        pytest.param(
            [p2p(SEND, dst=1), p2p(SEND, dst=2, line=20), At(line=30)], (2,), id="stages in loops of their own"
        ),
        pytest.param([At(line=30), p2p(RECV, src=0), p2p(RECV, src=1)], (0,), id="the first stage"),
        pytest.param([p2p(SEND, dst=1), At(line=30)], (1,), id="of two, the one that is further"),
        pytest.param([p2p(RECV, src=1), At(line=30), At(line=30)], (), id="most are in the collective"),
    ],
)
def test_a_rank_that_left_a_pipeline_for_a_collective(ranks: list[At], strayed: tuple[int, ...]) -> None:
    assert facts(*ranks).job.wait_graph.strayed == strayed


def waiting(peer: int, sends: bool = False, tag: int = 0, started: tuple[Transfer, ...] = (), **more: Any) -> At:
    """`req.wait()` for a send or receive; `started`: what is pending beside it."""
    own = Transfer(sends, peer, tag, DEFAULT, ("req",))
    return At("", text="req.wait()", started=(own, *started), **more)


def pending(peer: int, sends: bool = False, tag: int = 0) -> Transfer:
    return Transfer(sends, peer, tag, DEFAULT)


@pytest.mark.parametrize(
    ("ranks", "waits_for", "cycle", "parted"),
    [
        pytest.param([waiting(1), waiting(0)], [(1,), (0,)], (0, 1), (), id="both receive"),
        pytest.param([waiting(1), waiting(0, sends=True)], [(), ()], (), (), id="a matched transfer"),
        pytest.param(
            [waiting(1, started=(pending(1, True),)), waiting(0, started=(pending(0, True),))],
            [(), ()],
            (),
            (),
            id="the counterparts were started before",
        ),
        pytest.param([waiting(1), At(started=(pending(0, True),))], [(), (0,)], (), (), id="before a collective"),
        pytest.param([waiting(1, True, 3), waiting(0, False, 4)], [(1,), (0,)], (0, 1), (0, 1), id="different tags"),
        pytest.param(
            [waiting(1, True, 3), waiting(2, True, 4, (pending(0, False, 4),)), waiting(1, False, 3)],
            [(1,), (2,), (1,)],
            (1, 2),
            (1,),
            id="different tags on both sides of a rank",
        ),
        pytest.param(
            [waiting(2, True, steps=20), waiting(0, True, steps=21), waiting(1, True, steps=22)],
            [(2,), (0,), (1,)],
            (0, 1, 2),
            (0, 2),
            id="the peer is past this step",
        ),
        pytest.param(
            [
                waiting(1, started=(pending(1, True),), steps=5),
                waiting(2, started=(pending(2, True),), steps=4),
                waiting(0, started=(pending(0, True),), steps=4),
            ],
            [(1,), (2,), (0,)],
            (0, 1, 2),
            (2,),
            id="a wrong peer",
        ),
        pytest.param(
            [waiting(1, True, steps=5), waiting(0, True, steps=5), waiting(1, True, steps=5)],
            [(1,), (0,), (1,)],
            (0, 1),
            (),
            id="all send first",
        ),
        pytest.param(
            [At(), At(), waiting(0, line=30)], [(2,), (2,), (0,)], (0, 2), (0, 2), id="a receive without its send"
        ),
        pytest.param(
            [At(), At(), waiting(0, line=30, started=(pending(1), pending(0, True), pending(1, True)))],
            [(2,), (2,), (0,)],
            (0, 2),
            (2,),
            id="no transfer has its counterpart",
        ),
        pytest.param([At(line=30), waiting(0), waiting(1)], [(1, 2), (0,), (1,)], (0, 1, 2), (), id="one went on"),
        pytest.param(
            [waiting(1, True, steps=5), waiting(0, True)], [(1,), (0,)], (0, 1), (), id="no counter to compare"
        ),
    ],
)
def test_waits_for_what_was_started_before(
    ranks: list[At], waits_for: list[tuple[int, ...]], cycle: tuple[int, ...], parted: tuple[int, ...]
) -> None:
    found = facts(*ranks)
    assert [rank.wait_graph.waits_for for rank in found.ranks] == waits_for
    assert (found.job.wait_graph.cycle, found.job.wait_graph.parted) == (cycle, parted)


def test_a_stopped_rank_stays_stopped() -> None:
    found = facts(waiting(1), waiting(0, state="T", native="c10d::ProcessGroupGloo::RecvWork::wait"))
    assert [rank.stack.phase for rank in found.ranks] == ["p2p", "stopped"]


def test_transfers_of_a_rank_whose_stack_was_not_seen() -> None:
    found = facts(waiting(1), waiting(0, seen=False))
    assert (found.ranks[1].stack.waits, found.job.wait_graph.cycle) == (None, ())


@pytest.mark.parametrize("function", ["recv", "all_reduce"])
def test_a_blocking_call_keeps_its_name(function: str) -> None:
    """torch's own frame holds the Work of a blocking call in a variable."""
    at = At(function, text="work.wait()", started=(Transfer(False, 1, 0, DEFAULT, ("work",)),))
    assert facts(at, COMPUTES).ranks[0].stack.op == function


def test_calls_are_named() -> None:
    many = tuple(pending(peer, True) for peer in range(2, 8))
    first, second = facts(waiting(1, True, 3), waiting(0, False, 4, many)).ranks
    assert (first.stack.phase, first.stack.op, first.wait_graph.call) == ("p2p", "isend", "send to rank 1 (tag 3)")
    assert second.wait_graph.started == (
        "receive from rank 0 (tag 4) and send to rank 2 and send to rank 3 and send to rank 4 and 3 more"
    )
    assert (first.wait_graph.other_tag, second.wait_graph.other_tag) == (True, True)


def test_the_group_is_named() -> None:
    found = facts(At(group=SUB[1]), At(group=SUB[1]), At(), subgroups=((0, 1),))
    named = [(r.wait_graph.name, r.wait_graph.label, r.wait_graph.default, r.wait_graph.ranks) for r in found.ranks]
    assert named == [("1", "mine", False, (0, 1)), ("1", "mine", False, (0, 1)), ("0", None, True, (0, 1, 2))]
    assert found.job.wait_graph.groups == 2
    assert [r.wait_graph.member_waiting for r in found.ranks] == [(0, 1), (0, 1), (2,)]
    assert found.ranks[2].wait_graph.blocked_on == ()  # its peers are not known to wait for anything


@pytest.mark.parametrize(
    ("ranks", "crossed_by"),
    [
        ([At("all_reduce"), At("broadcast")], "operation"),
        ([At(line=10), At(line=20)], "site"),
        ([At(), At()], None),
        ([At(), At("broadcast", SUB[1])], None),
        ([p2p(RECV, src=1), At()], None),
    ],
)
def test_crossed(ranks: list[At], crossed_by: str | None) -> None:
    found = facts(*ranks, subgroups=((0, 1),))
    job = found.job.wait_graph
    assert (job.crossed, job.crossed_by) == (crossed_by is not None, crossed_by)


def test_a_chain_ends_at_its_root() -> None:
    found = facts(COMPUTES, p2p(RECV, src=0), p2p(RECV, src=1), At(group=SUB[1]), subgroups=((2, 3),))
    assert [rank.wait_graph.blocked_on for rank in found.ranks] == [(), (0,), (0,), (0,)]


@pytest.mark.parametrize(
    ("native", "around", "p2p"),
    [
        ("c10d::Work::wait()", ("dist.all_reduce",), False),
        ("c10d::Work::wait()", ("dist.P2POp", "dist.batch_isend_irecv"), True),
        ("gloo::transport::tcp::UnboundBuffer::waitRecv()", (), True),
    ],
)
def test_a_wait_for_an_asynchronous_operation(native: str, around: tuple[str, ...], p2p: bool) -> None:
    """`work.wait()` belongs to the rank's only group; the peer of a receive is not visible."""
    waits = At("", text="work.wait()", native=native, around=around)
    rank = facts(waits, COMPUTES).ranks[0]
    assert (rank.wait_graph.name, rank.wait_graph.p2p) == ("0", p2p)
    assert rank.wait_graph.waits_for == (() if p2p else (1,))
    with_native, without = facts(waits, replace(waits, native=None)).ranks
    assert (with_native.wait_graph.p2p, without.wait_graph.p2p) == (
        p2p,
        p2p,
    )  # native frames are captured on one rank per stack
    several = facts(waits, COMPUTES, subgroups=((0, 1),)).ranks[0]
    assert (several.wait_graph.name, several.wait_graph.waits_for) == (None, ())


def test_hidden_members_are_listed() -> None:
    found = facts(At(), At(seen=False), COMPUTES)
    assert (found.ranks[0].wait_graph.hidden, found.ranks[0].wait_graph.absent) == ((1,), (2,))
    assert found.job.wait_graph.hidden == (1,)


def test_without_records_of_process_groups() -> None:
    """The default group is every rank; other groups are unknown."""
    found = facts(At(), At(group=SUB[1]), COMPUTES, groups=False)
    assert [rank.wait_graph.name for rank in found.ranks] == ["default_pg", None, None]
    assert found.ranks[0].wait_graph.waits_for == (2,)
    assert found.ranks[0].wait_graph.hidden == (1,)


def test_threads_in_one_group() -> None:
    one = stacks(At(group=SUB[1])).threads[0]
    other = stacks(At("gather", SUB[1])).threads[0]
    both = Stacks((one, Stack(8, "checkpoint", other.frames)))
    known = ProcessGroups((ProcessGroup(SUB[1], "1", (0, 1)),))
    rank = RankEvidence(Target(1, 1, "here", 0), True, {"stacks": both, "groups": known})
    found = derive([Snapshot("here", 0.0, "t", (rank,))], schema())
    assert found.ranks[0].wait_graph.threads == 2


def test_a_rank_number_known_only_from_its_groups() -> None:
    known = ProcessGroups((ProcessGroup(DEFAULT, "0", (0, 1), True),), 1, 2)
    records = {"stacks": stacks(At()), "groups": known}
    found = derive([Snapshot("here", 0.0, "t", (RankEvidence(Target(1, 1, "here", None), True, records),))], schema())
    assert found.ranks[0].wait_graph.member_waiting == (1,)


JOB = """
import sys, torch, torch.distributed as dist
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=3)
ones = torch.ones(1)

def run():
    tp_group, dp_group = dist.new_group([0, 1]), dist.new_group([1, 0])
    print("ready", flush=True)
    if rank == 0:
        dist.all_reduce(ones, group=tp_group)
    elif rank == 1:
        dist.broadcast(ones, 0, dp_group)
    else:
        dist.recv(ones, src=1)

run()
"""


@pytest.mark.slow("three processes import torch")
def test_a_real_stalled_job(tmp_path: Path) -> None:
    """Two groups in opposite order, and a rank that waits for one of the two ranks; no RANK in the environment."""
    requirements.met(requirements.torch())
    script = tmp_path / "job.py"
    script.write_text(JOB)
    environ = {k: v for k, v in os.environ.items() if "RANK" not in k and k != "WORLD_SIZE"}
    with ExitStack() as stack:
        processes = []
        for rank in range(3):
            command = [sys.executable, str(script), str(rank), str(tmp_path / "store")]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            at_rest(process.pid, process.pid)  # gloo's own threads never rest
        ticks = [int(Path(f"/proc/{p.pid}/stat").read_text().rpartition(")")[2].split()[19]) for p in processes]
        targets = [Target(p.pid, t, platform.node(), None) for p, t in zip(processes, ticks, strict=True)]
        sampler = Sampler(platform.node(), targets, load())
        found = derive([sampler.round(Tier.LOOK)], schema())
        assert [(t.rank, t.world_size) for t in sampler.targets] == [(0, 3), (1, 3), (2, 3)]
    assert [(r.wait_graph.label, r.wait_graph.ranks, r.wait_graph.waits_for, r.wait_graph.op) for r in found.ranks] == [
        ("tp_group", (0, 1), (1,), "all_reduce"),
        ("dp_group", (0, 1), (0,), "broadcast"),
        (None, (0, 1, 2), (1,), "recv"),
    ]
    assert (found.job.wait_graph.cycle, found.job.wait_graph.roots) == ((0, 1), ())
    assert found.ranks[2].wait_graph.peer == 1
