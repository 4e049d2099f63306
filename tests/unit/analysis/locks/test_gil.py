"""A GIL that is never released, and a long computation that holds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from hangdoc.analysis.locks.gil import GilFacts
from hangdoc.evidence import Frame, Process, Stack, Stacks, ThreadCpu, Variable
from tests.support.synthetic_evidence import LIB, At, Stage, in_c10d

SCRIPT = "def fit():\n    device.calibrate()\n    loss.backward()\n"
FFI = (
    Frame("pause", "/usr/lib/libc.so.6", None, native=True),
    Frame("ffi_call", "libffi.so.8", None, native=True),
    Frame("_ctypes_callproc", "_ctypes.so", None, native=True),
)
SRE = (Frame("sre_ucs1_match", "libpython3.11.so.1.0", None, native=True),)
GEMM = (Frame("dgemm_kernel", "/v/lib/python3.11/site-packages/numpy.libs/libopenblas.so", None, native=True),)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(SCRIPT, tmp_path_factory.mktemp("gil"))


def second(look: int) -> int:
    return 2


def always(look: int) -> bool:
    return True


@dataclass(frozen=True)
class Life:
    """A rank over the looks."""

    state: str = "S"
    rate: float = 0.0  # CPU of the owner per second
    other: float = 0.0  # CPU of another thread per second
    growth: int = 0  # bytes of memory per look
    line: Callable[[int], int] = second
    holds: Callable[[int], bool] = always
    inner: tuple[Frame, ...] = ()  # called by the user's line
    looks: int = 5
    counter: Callable[[int], int] = second  # a variable of the user's function


def judged(stage: Stage, life: Life) -> GilFacts:
    shown, every_s = [], 2.5 if life.rate else 1.0
    for look in range(life.looks):
        counter = Variable("counter", str(life.counter(look)), number=life.counter(look))
        own = Frame("fit", str(stage.path), life.line(look), "job.py", variables=(counter,))
        owner = Stack(100, "MainThread", (*life.inner, own), holds_gil=life.holds(look), active=True)
        starved = Stack(101, "monitor", (Frame("wait", "/usr/lib/python3.11/threading.py", 320),))
        threads = (
            ThreadCpu(100, "python", life.state, 1 + life.rate * every_s * look, 10, wchan="do_pause"),
            ThreadCpu(101, "python", "S", life.other * every_s * look, 5),
        )
        used = sum(thread.cpu_s for thread in threads)
        size = (1 << 30) + life.growth * look
        process = Process(100, 1, 0, life.state, (), None, None, 9.0, used, size, threads)
        records = {"stacks": Stacks((owner, starved)), "cpu": process}
        shown.append([At([("fit", 2)], records=records), in_c10d("all_reduce", ("fit", 3))])
    facts = stage.facts(*shown, every_s=every_s).ranks[0].gil
    assert isinstance(facts, GilFacts)
    return facts


def test_stuck_if_the_holder_sleeps(stage: Stage) -> None:
    facts = judged(stage, Life(inner=FFI))
    assert facts == GilFacts(
        stuck=True,
        owner="MainThread",
        site="fit (job.py:2)",
        text="device.calibrate()",
        asleep=True,
        seconds=4.0,
        kernel="do_pause",
        native="pause (libc.so.6) <- ffi_call (libffi.so.8) <- _ctypes_callproc (_ctypes.so)",
        confirmed=True,
        regex=False,
    )


def test_stuck_if_the_holder_spins(stage: Stage) -> None:
    facts = judged(stage, Life("R", rate=1.0))
    assert (facts.stuck, facts.asleep, facts.kernel, facts.seconds) == (True, False, None, 10.0)


def test_stuck_in_a_regular_expression(stage: Stage) -> None:
    facts = judged(stage, Life("R", rate=1.0, inner=SRE))
    assert (facts.stuck, facts.confirmed, facts.regex) == (True, True, True)
    assert judged(stage, Life("R", rate=1.0, inner=SRE, looks=4)).stuck is False


@pytest.mark.parametrize(
    "life",
    [
        pytest.param(Life(holds=lambda look: look < 4), id="it has given it back"),
        pytest.param(Life(holds=lambda look: look > 1), id="for three looks only"),
        pytest.param(Life(line=lambda look: 2 + (look == 3)), id="it was elsewhere"),
        pytest.param(Life(other=0.9), id="another thread works for it"),
        pytest.param(Life("R", rate=0.4), id="it spins half the time"),
        pytest.param(Life("R", rate=1.0, growth=8 << 20), id="it takes memory"),
        pytest.param(Life("R", rate=1.0, inner=GEMM), id="an ordinary library computes"),
        pytest.param(Life("R", rate=1.0, counter=lambda look: look), id="a loop in Python"),
        pytest.param(Life("R", rate=1.0, looks=4), id="for a few seconds only"),
        pytest.param(Life(inner=(Frame("compile_fx", f"{LIB}/_dynamo/convert_frame.py", 1),), rate=1.0), id="compiles"),
        pytest.param(Life(inner=(Frame("all_reduce", f"{LIB}/distributed/distributed_c10d.py", 1),)), id="waits"),
    ],
)
def test_not_stuck(stage: Stage, life: Life) -> None:
    assert judged(stage, life).stuck is False


def test_no_holder(stage: Stage) -> None:
    assert judged(stage, Life(holds=lambda look: False)) == GilFacts(stuck=False)
