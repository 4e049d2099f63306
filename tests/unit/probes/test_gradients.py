"""Gradients of DDP models read from memory, compared with what the process itself prints."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from hangdoc.evidence.parameters import Gradients, ReplicatedModel
from hangdoc.introspect import gradients
from hangdoc.introspect.gradients import replicated_models
from hangdoc.introspect.interpreter import find
from hangdoc.introspect.memory import Memory, Unreadable
from probes import Observation, Request, Tier
from probes.gradients import GradientsProbe
from probes.stacks import StacksProbe
from tests.support import requirements
from tests.support.probe_targets import Program, started
from tests.unit.introspect.test_module_globals import Garbled


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    requirements.met(requirements.torch())
    with started("replicated_program.py") as running:
        yield running


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "DEADLINE_S", 60.0)


def examine(program: Program) -> Observation:
    target = program.target()
    stacks = StacksProbe().observe(Request([target], Tier.LOOK)).by_pid[target.pid]
    return GradientsProbe().observe(Request([target], Tier.EXAMINE, records={target.pid: {"stacks": stacks}}))


def is_as_told(model: ReplicatedModel, program: Program) -> bool:
    told = program.said["parameters"]
    without = {name for name, has in told.items() if not has}
    counts = (model.expected, model.missing, len(model.without)) == (len(told), len(without), gradients.NAMES)
    return counts and len(without) == 27 and set(model.without) <= without and model.static_graph is False


def test_a_model_behind_an_attribute_of_an_attribute(program: Program) -> None:
    """self.strategy.model; frozen, tied and absent parameters are not counted."""
    seen = examine(program)
    record = seen.by_pid[program.pid]
    assert isinstance(record, Gradients)
    assert seen.unseen == ()
    assert {model.name for model in record.models} == {"self"}
    assert all(is_as_told(model, program) for model in record.models)


def test_models_in_variables_and_their_options(program: Program) -> None:
    memory = Memory(program.pid)
    interpreter = find(memory)
    assert interpreter is not None
    plain, detecting = replicated_models(memory, interpreter, dict(zip(program.said["models"], "ab", strict=True)))
    assert is_as_told(plain, program)
    assert is_as_told(detecting, program)
    assert (plain.name, plain.find_unused) == ("a", False)
    assert (detecting.name, detecting.find_unused) == ("b", True)


def test_a_model_that_takes_too_long_is_left_out(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "DEADLINE_S", 0.0)
    memory = Memory(program.pid)
    interpreter = find(memory)
    assert interpreter is not None
    assert replicated_models(memory, interpreter, {program.said["models"][0]: "model"}) == ()


@pytest.mark.parametrize("share", [0.3, 0.03, 0.003])
def test_garbage_never_adds_a_parameter_without_gradient(share: float, program: Program) -> None:
    """Memory that changes under the reader: fewer are read, and none is invented."""
    rng = random.Random(7)
    interpreter = find(Memory(program.pid))
    assert interpreter is not None
    for _ in range(40):
        try:
            models = replicated_models(Garbled(program.pid, rng, share), interpreter, {program.said["models"][0]: "m"})
        except Unreadable:
            continue
        assert all(model.missing <= 27 and len(model.without) <= gradients.NAMES for model in models)
