"""What NCCL's variables mean on a host, and what went wrong on the ports that they choose."""

from __future__ import annotations

import pytest

import playbooks
from hangdoc.analysis.facts import derive, schema
from hangdoc.analysis.startup.nccl_interfaces import FabricFacts
from hangdoc.evidence import (
    End,
    Environ,
    Frame,
    Process,
    RankEvidence,
    Snapshot,
    Sockets,
    Stack,
    Stacks,
    Target,
    ThreadCpu,
)
from hangdoc.evidence.network import Addresses, Infiniband, InterfaceAddresses, Port
from hangdoc.rules import loader
from hangdoc.rules.evaluate import evaluate

HELD = Addresses((InterfaceAddresses("lo", ("127.0.0.1/8",), True), InterfaceAddresses("eth0", ("10.0.0.1/24",), True)))
GOOD = Port("mlx5_0", 1, "ACTIVE", "LinkUp", "InfiniBand", sent_bytes=1)
UNUSED = Port("mlx5_0", 2, "DOWN", "Polling")


def fabric(
    told: dict[str, str], *looks: tuple[Port, ...], threads: tuple[str, ...] = ("pt_nccl_watchdg",)
) -> FabricFacts:
    process = Process(
        7, 1, 0, "S", (), None, None, 9.0, 1.0, 1, tuple(ThreadCpu(n, comm, "S", 0.0) for n, comm in enumerate(threads))
    )
    rank = RankEvidence(Target(7, 1, "here", 0), True, {"cpu": process, "environ": Environ(told), "addresses": HELD})
    shots = [
        Snapshot("here", float(at_s), "t", (rank,), {"infiniband": Infiniband(ports)} if ports else {})
        for at_s, ports in enumerate(looks or ((),))
    ]
    found: FabricFacts = derive(shots, schema()).ranks[0].fabric
    return found


@pytest.mark.parametrize(
    ("told", "lacks"),
    [
        ({}, ()),
        ({"NCCL_SOCKET_IFNAME": "eth"}, ()),
        ({"NCCL_SOCKET_IFNAME": "^docker0"}, ()),
        ({"NCCL_SOCKET_IFNAME": "=eth"}, ("NCCL_SOCKET_IFNAME==eth",)),
        ({"NCCL_SOCKET_IFNAME": "ib0"}, ("NCCL_SOCKET_IFNAME=ib0",)),
        ({"NCCL_IB_HCA": "mlx5_0:1"}, ()),
        ({"NCCL_IB_HCA": "mlx5_7"}, ("NCCL_IB_HCA=mlx5_7",)),
    ],
)
def test_settings_that_match_nothing(told: dict[str, str], lacks: tuple[str, ...]) -> None:
    assert fabric(told, (GOOD,)).lacks == lacks


def test_ranks_without_nccl_have_no_facts() -> None:
    assert fabric({"NCCL_SOCKET_IFNAME": "ib0"}, (GOOD,), threads=("python",)) == FabricFacts()


def test_a_host_without_adapters() -> None:
    assert fabric({"NCCL_IB_HCA": "mlx5_7"}) == FabricFacts()


def test_ports() -> None:
    lost = Port("mlx5_1", 1, "DOWN", "Polling", sent_bytes=5)
    assert fabric({}, (GOOD, UNUSED, lost)).down == ("mlx5_1 port 1 is DOWN (Polling)",)
    assert fabric({"NCCL_IB_HCA": "^mlx5_1"}, (GOOD, UNUSED, lost)).down == ()


def test_counters_that_grow() -> None:
    def port(count: int) -> Port:
        return Port("mlx5_0", 1, "ACTIVE", troubles=(("link_downed", 2), ("symbol_error", count)))

    assert fabric({}, (port(3),), (port(10),)).troubles == ("mlx5_0 port 1: symbol_error +7",)
    assert fabric({}, (port(3),)).troubles == ()


# --- what the rules make of it --------------------------------------------------------------------

C10D = "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def judged(told: dict[str, str], ports: dict[int, str], ended: int | None = None) -> list[tuple[str, list[int | None]]]:
    """Two ranks in all_reduce, each on a host of its own whose only port is in that state."""
    shots = [
        Snapshot(
            f"node-{rank}",
            float(at_s),
            "2026-01-01T00:00:00Z",
            (_rank(rank, told if rank else {}, gone=ended == rank and at_s == 8),),
            {"infiniband": Infiniband((Port("mlx5_0", 1, ports[rank], "Polling", sent_bytes=9),))},
        )
        for at_s in range(9)
        for rank in (0, 1)
    ]
    library = loader.load([playbooks.ROOT], schema())
    findings, _ = evaluate(library, derive(shots, schema()))
    return [(one.playbook, [culprit.rank for culprit in one.culprits]) for one in findings]


def _rank(rank: int, told: dict[str, str], gone: bool) -> RankEvidence:
    target = Target(100 + rank, 1, f"node-{rank}", rank, world_size=2, master="10.0.0.1:29500")
    if gone:
        return RankEvidence(target, False, {}, "exit code 1", End(code=1, at_s=8.0))
    frames = (Frame("all_reduce", C10D, 1), Frame("train", "/job.py", 5))
    threads = tuple(ThreadCpu(100 + rank + n, comm, "S", 1.0) for n, comm in enumerate(("python", "pt_nccl_watchdg")))
    return RankEvidence(
        target,
        True,
        {
            "cpu": Process(100 + rank, 1, 0, "S", ("python",), None, None, 90.0, 1.0, 1, threads),
            "stacks": Stacks((Stack(100 + rank, "MainThread", frames),)),
            "sockets": Sockets((), 7 + rank),
            "environ": Environ(told),
            "addresses": HELD,
        },
    )


def test_a_port_that_went_down() -> None:
    assert judged({}, {0: "ACTIVE", 1: "DOWN"}) == [("dead-link", [1])]
    assert "dead-link" not in [id for id, _ in judged({}, {0: "ACTIVE", 1: "ACTIVE"})]


def test_an_interface_that_nccl_does_not_find() -> None:
    ports = {0: "ACTIVE", 1: "ACTIVE"}
    assert judged({"NCCL_SOCKET_IFNAME": "ib7"}, ports, ended=1)[:1] == [("interface-missing", [1])]
    assert "interface-missing" not in [id for id, _ in judged({"NCCL_SOCKET_IFNAME": "eth"}, ports, ended=1)]
