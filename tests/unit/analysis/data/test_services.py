"""What a rank waits for outside its job in step after step, from synthetic looks."""

from __future__ import annotations

from typing import Any

import pytest

from hangdoc.analysis.data.services import ServiceFacts
from hangdoc.evidence import Connection, Sockets
from hangdoc.evidence.waits import Awaited, Chain, Waiter
from tests.support.synthetic_evidence import At, Stage, in_c10d, number

SCRIPT = """\
def train(client):
    for step in range(1000):
        batch = client.read(4096)
        loss = model(batch)
        dist.all_reduce(loss)
"""
LOOKS = 12
SERVER = Awaited("tcp", "10.0.0.7:443", None, silent_s=0.4, state="established", remote=True)
LOCAL = Awaited("tcp", "127.0.0.1:7000", (71,), silent_s=0.4, state="established")
PIPE = Awaited("pipe", "pipe:[4711]", (71,))
HELPER = Waiter(71, 71, "python features.py", "S", "time")
OF_PEER = Awaited("tcp", "127.0.0.1:7000", (101,), silent_s=0.4, state="established")  # PID of rank 1


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(SCRIPT, tmp_path_factory.mktemp("stage"))


def chain(*awaits: Awaited) -> Chain:
    return Chain((Waiter(100, 100, "python train.py", "S", "read", awaits=awaits),), (HELPER,))


def sockets(received: int, port: int = 7000) -> Sockets:
    return Sockets(
        (Connection("127.0.0.1", 50000, "127.0.0.1", port, "established", bytes_received=received, inode=port),)
    )


def service(stage: Stage, line: int = 3, **records: Any) -> ServiceFacts:
    """Facts of rank 0, which is at that line in every look; a function makes the record of a look."""
    looks = []
    for look in range(LOOKS):
        made = {name: record(look) if callable(record) else record for name, record in records.items()}
        step: Any = {"variables": {"train": [number("step", look // 3)]}}
        looks.append([At([("train", line)], records=made, **step), in_c10d("all_reduce", ("train", 5), **step)])
    return stage.facts(*looks, every_s=0.5).ranks[0].service


@pytest.mark.parametrize(
    ("awaited", "way", "name"),
    [
        (SERVER, "tcp", "10.0.0.7:443"),
        (LOCAL, "tcp", "127.0.0.1:7000, PID 71 (python features.py)"),
        (PIPE, "pipe", "a pipe from PID 71 (python features.py)"),
        (Awaited("child", "", (71,)), "child", "its child PID 71 (python features.py)"),
        (Awaited("unix", "", (71,)), "unix", "a Unix socket of PID 71 (python features.py)"),
        (Awaited("pipe", "pipe:[1]", None), "pipe", "a pipe"),
    ],
)
def test_it_is_named_by_what_the_rank_waits_for(stage: Stage, awaited: Awaited, way: str, name: str) -> None:
    facts = service(stage, chain=chain(awaited))
    assert (facts.name, facts.way, facts.share) == (name, way, 1.0)
    assert facts.site == "train (job.py:3)"


def test_bytes_that_arrive_on_its_connection_are_counted(stage: Stage) -> None:
    facts = service(stage, chain=chain(LOCAL), sockets=lambda look: sockets(1000 * look))
    assert facts.bytes_per_s == pytest.approx(2000.0)


def test_a_rank_that_reads_all_the_time_has_no_chain_and_one_stream(stage: Stage) -> None:
    facts = service(stage, sockets=lambda look: sockets(1000 * look))
    assert facts.name == "127.0.0.1:7000"
    assert facts.bytes_per_s == pytest.approx(2000.0)


@pytest.mark.parametrize(
    "records",
    [
        {},
        {"chain": chain(OF_PEER)},  # another rank can end the wait
        {"chain": chain(SERVER, PIPE)},  # any of several may end it
        {"chain": chain(Awaited("clients", "0.0.0.0:80"))},  # it serves
        {"chain": chain(Awaited("lock", "/data/index.lock", (71,)))},
        {"sockets": sockets(1000)},  # nothing arrives
    ],
)
def test_other_waits_are_none_for_a_service(stage: Stage, records: dict[str, Any]) -> None:
    assert service(stage, **records) == ServiceFacts()


def test_a_rank_that_is_elsewhere_in_many_looks_does_not_wait_in_each_step(stage: Stage) -> None:
    looks = []
    for look in range(LOOKS):
        line = 3 if look % 2 else 4
        looks.append([At([("train", line)], records={"chain": chain(SERVER)}), in_c10d("all_reduce", ("train", 5))])
    assert stage.facts(*looks, every_s=0.5).ranks[0].service == ServiceFacts()
