"""Tensors read from memory, compared with what the process itself prints."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from hangdoc.evidence import Tensor
from hangdoc.introspect.elf import images
from hangdoc.introspect.memory import Memory, Unreadable
from hangdoc.introspect.objects import Objects
from hangdoc.introspect.tensors import read_tensors
from probes import Tier
from probes.stacks import PROBE
from tests.support import requirements
from tests.support.probe_targets import Program, started


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    requirements.met(requirements.torch())
    with started("tensors_program.py") as running:
        yield running


def test_hundreds_of_random_tensors_are_what_the_process_says(program: Program) -> None:
    memory = Memory(program.pid)
    said = {address: Tensor(tuple(shape), dtype, device) for address, shape, dtype, device in program.said["tensors"]}
    read = read_tensors(memory, Objects(memory).describe(said))
    assert len(said) == 400
    assert any(len(t.shape) > 5 for t in said.values())
    assert read == said


def test_what_is_no_tensor_is_unknown(program: Program) -> None:
    memory = Memory(program.pid)
    addresses = [*program.said["others"], *(a for a, _ in program.said["arrays"]), 0, 8, 2**63, 2**64 - 8]
    assert read_tensors(memory, Objects(memory).describe(addresses)) == {}


def test_numpy_arrays_tell_their_length(program: Program) -> None:
    seen = Objects(Memory(program.pid)).describe(address for address, _ in program.said["arrays"])
    assert {address: seen[address].length for address in seen} == dict(program.said["arrays"])


def test_locals_carry_their_tensors(program: Program) -> None:
    (stack,) = PROBE.observe(program.request(Tier.LOOK)).by_pid[program.pid].threads
    variables = {v.name: v for v in next(f for f in stack.frames if f.function == "hold").variables}
    assert variables["batch"].tensor == Tensor((8, 3), "float32", "cpu")
    assert variables["batch"].text == "Tensor([8, 3], float32, cpu)"
    assert (variables["batch"].kind, variables["batch"].length) == ("tensor", 8)
    assert variables["weight"].tensor == Tensor((5, 2), "float32", "cpu")
    assert variables["weight"].text.startswith("Parameter(")
    assert variables["scalar"].tensor == Tensor((), "int64", "cpu")
    assert variables["scalar"].length is None
    assert variables["loss"].tensor == Tensor((1,), "bfloat16", "cpu", "nan")
    assert variables["nested"].tensor is None  # its sizes are not where a plain tensor has them
    assert variables["labels"].length == program.said["arrays"][0][1]


def test_any_address_is_survived(program: Program) -> None:
    memory, rng = Memory(program.pid), random.Random(3)
    bases = [image.base for image in images(program.pid)] + [address for address, *_ in program.said["tensors"]]
    addresses = [rng.choice(bases) + rng.randrange(-4096, 1 << 20) for _ in range(3000)]
    read = read_tensors(memory, Objects(memory).describe(addresses))
    assert len(read) < 10  # an address that happens to be one of the program's other tensors


@pytest.mark.slow("reads for seconds while they change")
def test_changing_tensors_are_never_misread() -> None:
    requirements.met(requirements.torch())
    truths = {Tensor((3, 5), "float32", "cpu"), Tensor((2, 2, 2, 2, 2, 7), "int64", "cpu")}
    told = 0
    with started("tensors_program.py", "churn") as program:
        memory = Memory(program.pid)
        for _ in range(300):
            read = read_tensors(memory, Objects(memory).describe(program.said))
            assert set(read.values()) <= truths
            told += len(read)
    assert told > 0


def test_an_ended_process() -> None:
    memory = Memory(2**22 + 9)
    with pytest.raises(Unreadable):
        read_tensors(memory, Objects(memory).describe([1 << 20]))
