"""Ranks that train without a process group, and what keeps the finding from ranks that only look like it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hangdoc.evidence import Connection, ProcessGroup, ProcessGroups, Sockets
from hangdoc.evidence.collectives import JoinCall, JoinCalls
from hangdoc.evidence.process import Channels
from hangdoc.verdict import Verdict
from tests.support.judge import judge
from tests.support.synthetic_evidence import BACKWARD, At, Stage, number

SCRIPT = """\
def train(loader):
    for step, x in enumerate(loader):
        loss = model(x)
        loss.backward()

def prepare(rows):
    for step, row in enumerate(rows):
        tokenize(row)
"""
ALONE: Mapping[str, object] = {
    "groups": ProcessGroups(exists=False),
    "channels": Channels({}, ()),
    "sockets": Sockets(()),
    "joins": JoinCalls(()),
}
LAUNCHED = {"RANK": "0", "WORLD_SIZE": "2"}
GUARDED = JoinCalls((JoinCall("job.py:9", ("torch.cuda.is_available()", "world > 1")),))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(SCRIPT, tmp_path_factory.mktemp("stage"))


def judged(
    stage: Stage, records: Mapping[str, object], environ: Mapping[str, str] = LAUNCHED, function: str = "train"
) -> Verdict:
    """The verdict on two ranks that step for six seconds, with these records instead of those of ranks on their own."""
    lines = {"train": (3, 4), "prepare": (7, 8)}[function]
    looks = [
        [
            At(
                [(function, lines[step % 2])],
                BACKWARD if function == "train" and step % 2 else (),
                {function: [number("step", 10 * step)]},
                state="R",
                cpu_s=float(step),
                environ=environ,
                records={**ALONE, **{name: one(step) if callable(one) else one for name, one in records.items()}},
            )
            for _ in range(2)
        ]
        for step in range(7)
    ]
    return judge().verdict(stage.facts(*looks))


def test_ranks_on_their_own(stage: Stage) -> None:
    found = judged(stage, {})
    assert [(one.playbook, one.confidence) for one in found.findings] == [("never-joined", "medium")]
    assert found.status == "diverging"
    assert [one.rank for one in found.findings[0].culprits] == [0, 1]


def test_the_guard_of_the_call_is_shown(stage: Stage) -> None:
    (found,) = judged(stage, {"joins": GUARDED}).findings
    assert found.confidence == "high"
    assert "job.py:9 only if `torch.cuda.is_available()` and `world > 1`" in found.evidence[0].text
    assert found.actions[0].startswith("Make job.py:9 run in every process")


def test_an_unconditional_call_may_still_come(stage: Stage) -> None:
    (found,) = judged(stage, {"joins": JoinCalls((JoinCall("job.py:9"),))}).findings
    assert found.confidence == "low"


def talk(step: int) -> Sockets:
    one = Connection("10.0.0.1", 40000, "10.0.0.9", 6000, "established", bytes_received=0, bytes_acked=step << 20)
    return Sockets((one,))


@pytest.mark.parametrize(
    "records",
    [
        pytest.param({"groups": ProcessGroups((ProcessGroup(1, "0", (0, 1), True),), exists=True)}, id="joined"),
        pytest.param({"groups": ProcessGroups(exists=None)}, id="torch not found"),
        pytest.param({"groups": lambda step: ProcessGroups(exists=step < 2)}, id="was joined"),
        pytest.param({"channels": Channels({"00:1a:7": 1 << 20}, ())}, id="shared memory"),
        pytest.param({"channels": Channels({}, ("7-8",))}, id="a Unix socket between them"),
        pytest.param({"channels": Channels({}, None)}, id="Unix sockets not seen"),
        pytest.param({"channels": Channels({}, (), rdma=True)}, id="RDMA"),
        pytest.param({"sockets": talk}, id="a server that averages"),
        pytest.param(
            {"sockets": Sockets((Connection("127.0.0.1", 1, "127.0.0.1", 2, "established", peer_pid=99),))}, id="a peer"
        ),
    ],
)
def test_ranks_that_may_reach_each_other(stage: Stage, records: Mapping[str, object]) -> None:
    assert judged(stage, records).findings == ()


@pytest.mark.parametrize("environ", [{}, {"RANK": "0", "WORLD_SIZE": "1"}, {"WORLD_SIZE": "2"}])
def test_ranks_without_a_launcher(stage: Stage, environ: Mapping[str, str]) -> None:
    assert judged(stage, {}, environ).findings == ()


def test_a_job_that_prepares_data(stage: Stage) -> None:
    assert judged(stage, {}, function="prepare").findings == ()


def test_a_semaphore_is_no_channel(stage: Stage) -> None:
    assert judged(stage, {"channels": Channels({"00:1a:7": 4096}, ())}).findings
