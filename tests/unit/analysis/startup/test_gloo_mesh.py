"""Creation of a gloo group: which rank is stuck, because of which address, and when it is too early to tell."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from hangdoc.analysis.facts import Facts, derive, schema
from hangdoc.evidence import (
    Connection,
    End,
    Environ,
    Frame,
    Process,
    ProcessGroup,
    ProcessGroups,
    RankEvidence,
    Snapshot,
    Sockets,
    Stack,
    Stacks,
    Target,
    ThreadCpu,
    Variable,
)
from hangdoc.evidence.network import Addresses, Firewall, InterfaceAddresses, Rule
from hangdoc.evidence.rendezvous import Advertised, Mesh
from hangdoc.evidence.stacks import MAKES_GROUP
from tests.support.judge import judge

C10D = "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
PORT, LISTENS = 29500, 40000
LO = InterfaceAddresses("lo", ("127.0.0.1/8",), True)
DOCKER = InterfaceAddresses("docker0", ("172.17.0.1/16",), True)
GLOO = ("python", "gloo_tcp_loop")


@dataclass(frozen=True)
class One:
    """A rank on a host of its own, at 10.0.0.RANK+1 on eth0."""

    rank: int
    at: str = ""  # where it listens; "": on eth0
    dials: str = ""
    told: str | None = None
    line: str | None = None
    backend: str = '"gloo"'
    threads: tuple[str, ...] = GLOO
    dies: bool = False
    joined: bool = False
    native: str = ""  # innermost first
    records: dict[str, Any] = field(default_factory=dict)

    @property
    def own(self) -> str:
        return f"10.0.0.{self.rank + 1}"


def facts(*ranks: One, seconds: int = 8, world: int | None = None, master: str = "10.0.0.1") -> Facts:
    shots = [_shot(ranks, at_s, at_s == seconds, world or len(ranks), master) for at_s in range(seconds + 1)]
    return derive(shots, schema())


def _shot(ranks: tuple[One, ...], at_s: int, last: bool, world: int, master: str) -> Snapshot:
    seen = tuple(_rank(one, last, at_s, world, master) for one in ranks)
    return Snapshot("here", float(at_s), "2026-01-01T00:00:00Z", seen, {})


def _rank(one: One, last: bool, at_s: int, world: int, master: str) -> RankEvidence:
    target = Target(100 + one.rank, 1, "here", one.rank, world_size=world, master=f"{master}:{PORT}")
    if one.dies and last:
        return RankEvidence(target, False, {}, "exit code 1", End(code=1, at_s=float(at_s)))
    told = (Variable("backend", one.backend, kind="str"), Variable("group_size", str(world), number=float(world)))
    frames: tuple[Frame, ...] = (
        Frame(MAKES_GROUP, C10D, 9, variables=told),
        Frame("init_process_group", C10D, 1),
        Frame("go", "/j.py", 5),
    )
    stands: tuple[Frame, ...] = frames
    if one.native:
        stands = (*(Frame(name, "libtorch.so", 0, native=True) for name in one.native.split(" <- ")), *frames)
    threads = tuple(ThreadCpu(100 + one.rank + n, comm, "S", 1.0) for n, comm in enumerate(one.threads))
    named = (one.line.split()[1],) if one.line else ()
    sockets = [
        Connection(one.own, 50000, "10.0.0.1", PORT, "established", last_receive_s=float(at_s)),
        Connection(one.at or one.own, LISTENS + one.rank, "0.0.0.0", 0, "listen"),
    ]
    if one.dials:
        sockets.append(Connection(one.own, 50001, one.dials, LISTENS, "syn_sent", retransmits=at_s, timer="on"))
    records = {
        "cpu": Process(100 + one.rank, 1, 0, "S", ("python",), None, None, 9.0, 1.0, 1, threads),
        "stacks": Stacks((Stack(100 + one.rank, "MainThread", () if one.dies else stands),), native=bool(one.native)),
        "sockets": Sockets(tuple(sockets), 7 + one.rank),
        "environ": Environ({"GLOO_SOCKET_IFNAME": one.told} if one.told else {}),
        "addresses": Addresses(
            (LO, InterfaceAddresses("eth0", (f"{one.own}/24",), True), DOCKER),
            7 + one.rank,
            f"node-{one.rank}",
            named,
            one.line,
        ),
        "groups": ProcessGroups((ProcessGroup(1, "0", (0, 1), True),) if one.joined else ()),
        **one.records,
    }
    return RankEvidence(target, True, records)


def mesh(found: Facts) -> list[Any]:
    return [one.mesh for one in found.ranks]


# --- who is stuck ---------------------------------------------------------------------------------


def test_a_group_in_creation_is_not_stuck() -> None:
    found = facts(One(0), One(1), seconds=8)
    assert [one.makes for one in mesh(found)] == [True, True]
    assert not found.job.stall.stalled
    assert found.job.mesh.pending


def test_an_address_that_does_not_answer() -> None:
    found = facts(One(0), One(1, dials="10.0.0.1"))
    assert mesh(found)[1].tried == (f"10.0.0.1:{LISTENS} (rank 0)",)
    assert (mesh(found)[1].tried_s, mesh(found)[1].answers) == (19.0, True)  # eight repetitions take so long
    assert [one.fault for one in mesh(found)] == [None, None]
    assert found.job.stall.stalled
    assert found.job.mesh.met


def test_patience() -> None:
    found = facts(One(0), One(1, dials="10.0.0.1"), seconds=2)
    assert not found.job.stall.stalled
    assert found.job.startup.pending


def test_the_store_is_no_peer() -> None:
    one = One(1)
    dialled = Connection(one.own, 50002, "10.0.0.1", PORT, "syn_sent", retransmits=8)
    found = facts(One(0), replace(one, records={"sockets": Sockets((dialled,), 8)}))
    assert mesh(found)[1].tried == ()


@pytest.mark.parametrize("change", [{"backend": '"nccl"'}, {"threads": ("python",)}])
def test_other_backends_are_ignored(change: dict[str, Any]) -> None:
    found = facts(One(0, at="127.0.1.1", **change), One(1, at="127.0.1.1", **change))
    assert [one.makes for one in mesh(found)] == [False, False]
    assert not found.job.stall.stalled


# --- by whose address -----------------------------------------------------------------------------


def test_a_bridge_on_each_host() -> None:
    ranks = [One(n, "172.17.0.1", told="docker0") for n in range(3)]
    found = facts(*ranks)
    assert [one.fault for one in mesh(found)] == ["elsewhere"] * 3
    assert {(one.interface, one.leads, one.setting) for one in mesh(found)} == {
        ("docker0", "eth0", "GLOO_SOCKET_IFNAME=docker0")
    }
    assert found.job.mesh.exports == ("export GLOO_SOCKET_IFNAME=eth0 on node-[0-2]",)
    assert not found.job.mesh.one_sided
    assert found.job.stall.stalled


def test_the_line_of_the_hosts_file() -> None:
    found = facts(One(0, "127.0.1.1", line="/etc/hosts:2: 127.0.1.1 node-0".replace(":2: ", ":2 ")), One(1))
    assert [one.fault for one in mesh(found)] == ["loopback", None]
    assert mesh(found)[0].named is not None
    assert found.job.mesh.advertised[0].startswith(f"rank 0 on node-0 advertises 127.0.1.1:{LISTENS}, on lo; eth0")


def test_setting_on_one_host_only() -> None:
    found = facts(One(0, "127.0.0.1"), One(1, told="eth0"))
    assert found.job.mesh.one_sided
    assert [one.untold for one in mesh(found)] == [True, False]


def test_a_rank_that_exited_before_it_listened() -> None:
    found = facts(One(0, "172.17.0.1", told="docker0"), One(1, told="docker0", dies=True))
    assert [(one.fault, one.ended) for one in mesh(found)] == [("elsewhere", False), ("elsewhere", True)]
    assert mesh(found)[1].advertised == "172.17.0.1"
    assert found.job.stall.stalled


def test_ranks_known_only_from_the_store() -> None:
    left = Mesh((Advertised(0, "10.0.0.1", LISTENS), Advertised(1, "127.0.1.1", 1, "node-b")))
    found = facts(One(0, records={"mesh": left}), world=2)
    assert [(one.rank, one.host, one.advertised) for one in found.job.mesh.loopback] == [(1, "node-b", "127.0.1.1:1")]
    assert found.job.mesh.met


def test_a_rank_without_an_address_in_the_store() -> None:
    found = facts(One(0, "127.0.1.1", records={"mesh": Mesh((), (1,))}), world=2)
    assert found.job.mesh.lacking == (1,)
    assert found.job.mesh.met is False


WAITS = "c10d::detail::TCPClient::receiveValueWithTimeout <- c10d::TCPStore::doWait"
CONNECTS = "pthread_cond_timedwait <- gloo::transport::tcp::Pair::waitUntilConnected"


@pytest.mark.parametrize(
    ("leaves", "met"),
    [((CONNECTS,), True), ((WAITS,), False), ((WAITS, CONNECTS), False), (("poll",), None)],
)
def test_native_frames_show_whether_all_addresses_are_stored(leaves: tuple[str, ...], met: bool | None) -> None:
    """The store is read only where the user allows it. A rank still waits there: who is missing may yet come."""
    found = facts(*(One(n, "127.0.1.1", native=leaf) for n, leaf in enumerate(leaves)), world=3)
    assert found.job.mesh.met is met
    assert found.job.stall.stalled is (met is not False)


def test_loopback_is_right_on_one_host() -> None:
    found = facts(One(0, "127.0.1.1"), world=1, master="127.0.0.1")
    assert mesh(found)[0].fault is None


def test_a_rank_that_exited_before_any_look() -> None:
    gone = replace(One(1, dies=True), records=dict.fromkeys(("cpu", "stacks", "sockets", "environ", "addresses")))
    assert mesh(facts(One(0, "127.0.1.1"), gone))[0].fault == "loopback"
    alone = {"environ": Environ({"LOCAL_WORLD_SIZE": "2"})}
    assert mesh(facts(One(0, "127.0.1.1", records=alone), gone))[0].fault is None


# --- interfaces that are not there ----------------------------------------------------------------


@pytest.mark.parametrize(("told", "lacks"), [("ens5", ("ens5",)), ("^lo", ("^lo",)), ("eth0", ())])
def test_an_interface_that_the_host_lacks(told: str, lacks: tuple[str, ...]) -> None:
    found = facts(One(0, told="eth0"), One(1, told=told, dies=True))
    assert mesh(found)[1].lacks == lacks
    assert mesh(found)[1].ended
    assert "eth0 (10.0.0.2)" in mesh(found)[1].exists


def test_a_group_member_lacks_no_interface() -> None:
    found = facts(One(0), One(1, told="ens5", dies=True, joined=True))
    assert (mesh(found)[1].lacks, mesh(found)[1].ended) == ((), False)


def on_its_way(rank: int, age_s: float, told: str, **more: Any) -> One:
    """A rank that still works in a loop of its own."""
    threads = (ThreadCpu(100 + rank, "python", "R", 1.0),)
    process = Process(100 + rank, 1, 0, "R", ("python",), None, None, age_s, 1.0, 1, threads)
    stands = Stacks((Stack(100 + rank, "MainThread", (Frame("prepare", "/j.py", 3),)),))
    return One(rank, told=told, records={"cpu": process, "stacks": stands}, **more)


def test_a_restarted_rank_that_will_fail_again() -> None:
    """It was started after its peers had begun to wait, and its host lacks the interface that it is told to use."""
    found = facts(One(0), One(1), on_its_way(2, 3.0, "ens5"))
    assert [(one.late, one.age_s, one.stuck) for one in mesh(found)] == [
        (False, None, True),
        (False, None, True),
        (True, 3.0, None),  # it runs: it is never paused
    ]
    assert found.job.mesh.in_vain
    assert not found.job.stall.stalled
    verdict = judge().verdict(found)
    (finding,) = verdict.findings
    assert (verdict.status, finding.playbook, finding.confidence) == ("stalled", "interface-missing", "medium")
    assert [one.rank for one in finding.culprits] == [2]
    assert "rank 2 was started 3 s ago, after other ranks had begun to wait" in [one.text for one in finding.evidence]


@pytest.mark.parametrize(
    ("rank", "why"),
    [
        (on_its_way(2, 30.0, "ens5"), "its first start: the script may correct the setting"),
        (on_its_way(2, 3.0, "eth0"), "its interface exists"),
        (on_its_way(2, 3.0, "ens5", joined=True), "it is in a group"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_rank_that_may_still_join(rank: One, why: str) -> None:
    found = facts(One(0), One(1), rank)
    assert not any(one.late or one.stuck for one in mesh(found)), why
    assert not found.job.mesh.in_vain
    assert judge().verdict(found).findings == ()


def test_a_late_rank_of_a_script_that_corrects_the_setting() -> None:
    found = facts(One(0, told="ens5"), One(1, told="ens5"), on_its_way(2, 3.0, "ens5"))
    assert not any(one.late for one in mesh(found))
    assert not found.job.mesh.in_vain


def test_peers_that_have_just_come_do_not_wait_in_vain_yet() -> None:
    found = facts(One(0), One(1), on_its_way(2, 1.0, "ens5"), seconds=3)
    assert (found.job.mesh.in_vain, found.job.mesh.pending) == (False, True)


def test_rules_of_the_firewall() -> None:
    rule = Rule("-A INPUT -p tcp -j REJECT", 4, True)
    found = facts(One(0, records={"firewall": Firewall((rule,))}), One(1, dies=True))
    assert mesh(found)[0].rules == ("-A INPUT -p tcp -j REJECT (4 packets)",)
    assert (mesh(found)[0].refuses, mesh(found)[1].refuses) == (True, None)
