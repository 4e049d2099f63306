"""Parameters read from memory, compared with what the process itself prints."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from hangdoc.evidence.parameters import Parameter, Parameters, Value
from hangdoc.introspect import models, tensors
from probes import Observation, Request, Tier, parameters
from probes.parameters import SAMPLE, ParametersProbe
from probes.stacks import StacksProbe
from tests.support import requirements
from tests.support.probe_targets import Program, started


@pytest.fixture(scope="module", params=["variable", "trainer"])
def program(request: pytest.FixtureRequest) -> Iterator[Program]:
    """A model in a local variable, or an attribute of one. It has learned until a parameter became infinite."""
    requirements.met(requirements.torch())
    with started("models_program.py", request.param) as running:
        yield running


def look(probe: ParametersProbe, *programs: Program) -> Observation:
    targets = [program.target() for program in programs]
    stacks = StacksProbe().observe(Request(targets, Tier.LOOK)).by_pid
    return probe.observe(Request(targets, Tier.LOOK, records={pid: {"stacks": one} for pid, one in stacks.items()}))


def read(program: Program) -> Parameters:
    """The record of the first look that finds a model: on a busy host a search may be given up."""
    probe = ParametersProbe()
    for _ in range(5):
        seen = look(probe, program)
        assert seen.unseen == ()
        found = seen.by_pid[program.pid]
        assert isinstance(found, Parameters)
        if found.parameters:
            return found
    return Parameters()


def sampled(text: str) -> bytes:
    data = bytes.fromhex(text)
    middle = len(data) // 8 * 4
    return data[:SAMPLE] + data[middle : middle + SAMPLE]


def test_the_parameters_are_what_the_process_says(program: Program) -> None:
    """The first, the last and two between of the trainable ones, and the one that is frozen."""
    found = {re.sub(r"^model\.|^trainer\.model\.", "", one.name): one for one in read(program).parameters}
    assert [name for name in found if "." in name][::3] == ["blocks.0.linear.weight", "head.bias"]
    assert list(found)[-1] == "embedding.weight"
    for name, one in found.items():
        told = program.said[name]
        gradient = parameters._digest(sampled(told["gradient"]), told["dtype"]) if told["gradient"] else ""
        value = Value(told["version"], parameters._digest(sampled(told["data"]), told["dtype"]))
        like = Parameter(one.name, tuple(told["shape"]), told["dtype"], "cpu", told["trainable"], (value,), gradient)
        assert replace(one, nonfinite="") == like
    assert {name: one.nonfinite for name, one in found.items() if one.nonfinite} == {"head.bias": "inf"}
    assert [found[name].gradient != "" for name in found] == [True] * 4 + [False]


@pytest.mark.parametrize(
    ("dtype", "word", "said"),
    [
        ("float32", "0000c07f", "nan"), ("float32", "000080ff", "inf"), ("float32", "ffff7f7f", ""),
        ("bfloat16", "c07f", "nan"), ("bfloat16", "80ff", "inf"), ("bfloat16", "7f7f", ""),
        ("float16", "007e", "nan"), ("float16", "007c", "inf"), ("float16", "ff7b", ""),
        ("float64", "000000000000f87f", "nan"), ("float64", "000000000000f0ff", "inf"),
        ("float64", "ffffffffffffef7f", ""),
    ],
)  # fmt: skip
def test_nan_and_infinity(dtype: str, word: str, said: str) -> None:
    zero = bytes(len(word) // 2)
    assert tensors.nonfinite(zero + bytes.fromhex(word) + zero, dtype) == said


def test_equal_elements_prove_nothing() -> None:
    assert parameters._digest(b"\0\0\x80\x3f" * 20, "float32") == ""
    assert parameters._digest(b"\0\0\x80\x3f" * 20 + b"\0\0\x80\x40", "float32") != ""


def test_gradients_are_found_again_after_they_were_dropped() -> None:
    """Those averaged by hand are seen to be equal on two ranks only if reads fall after the average."""
    requirements.met(requirements.torch())
    with started("models_program.py", "drops") as program:
        found = next(one for one in read(program).parameters if len(one.shape) == 2 and one.trainable)
    assert len({found.gradient, *found.gradients} - {""}) == 2  # the two that it makes, again and again


def test_a_process_without_torch_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search costs up to a third of a second, and each of the first looks would do it."""
    monkeypatch.setattr(models, "search", None)
    with started("-c", "import time; print(1, flush=True); model = [1]; time.sleep(99)") as program:
        assert read(program) == Parameters()


def test_a_process_without_a_model() -> None:
    requirements.met(requirements.torch())
    with started("-c", "import time, torch; print(1, flush=True); model = [1]; time.sleep(99)") as program:
        assert read(program) == Parameters()


BEFORE = """
import time, torch
def made(): return torch.rand(8, 8, requires_grad=True)
def hold(): print(1, flush=True); time.sleep(99)
"""


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("params = {'enc': {'w': made()}, 'head.bias': made(), 'batch': torch.rand(8)}",
         ["params.head.bias", "params.enc.w"]),
        ("opt = torch.optim.Adam([{'params': [made()]}, {'params': [made() for _ in range(30)], 'lr': 1e-4}])",
         [f"opt.param_groups.{group}.params.{at}" for group, at in ((0, 0), (1, 4), (1, 16), (1, 29))]),
        ("state = {'nets': [torch.nn.Linear(8, 8)]}", ["state.list.Linear.weight", "state.list.Linear.bias"]),
        ("model, params = torch.nn.Linear(8, 8, device='meta'), [made()]", ["params.0"]),
        ("def train(w, x): hold()\ntrain(made(), torch.rand(8, 8))", ["w"]),
        ("hidden = [made() * 2, torch.rand(8)]", []),
    ],
)  # fmt: skip
def test_models_that_are_no_modules(code: str, names: list[str]) -> None:
    """The tensors that an optimizer changes, or that a program has in dicts, lists and variables."""
    requirements.met(requirements.torch())
    with started("-c", f"{BEFORE}\n{code}\nhold()") as program:
        assert [one.name for one in read(program).parameters] == names


def test_an_ended_process_is_unseen() -> None:
    with started("-c", "print(1, flush=True)") as program:
        program.process.wait()
        seen = ParametersProbe().observe(program.request())
    assert seen.by_pid == {}
    assert [(lack.probe, lack.pid) for lack in seen.unseen] == [("parameters", program.pid)]
