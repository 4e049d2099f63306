"""Values of configuration objects, in the memory of real processes."""

from __future__ import annotations

import pytest

from hangdoc.evidence import Frame, Stack, Stacks, Target, Variable
from hangdoc.evidence.software import Configuration
from probes import Request, Tier
from probes.configuration import PROBE
from tests.support.probe_targets import Program, every_python, started

CODE = """
import argparse, json, time
from dataclasses import dataclass

@dataclass
class OptimizerConfig:
    lr: float = 0.1
    warmup: int = 100

class Trainer:
    def __init__(self, args):
        self.args = args
        self.step = 7

args = argparse.Namespace(accum=2, name="base", ratio=-1.5, flag=True, nothing=None, api_key="sk-verysecret0123456789")
config = {"optimizer": OptimizerConfig(), "nested": {"deep": {"deeper": 1}}, "layers": 12, "sizes": [1, 2]}
full = vars(argparse.Namespace(beta=3))
trainer = Trainer(args)
objects = {"args": args, "config": config, "full": full, "self": trainer, "batch": {"x": 1}}
print(json.dumps({name: id(item) for name, item in objects.items()}), flush=True)
time.sleep(99)
"""


def read(program: Program, *names: tuple[str, str]) -> dict[str, str]:
    """The values seen if these variables (name, object) are in a frame."""
    variables = tuple(Variable(name, "<object>", address=program.said[item]) for name, item in names)
    frame = Frame("train", "/job/train.py", 3, "train.py", variables=variables)
    records = {program.pid: {"stacks": Stacks((Stack(1, "MainThread", (frame,)),))}}
    seen = PROBE.observe(Request([Target(program.pid, 1, "here", 0)], Tier.EXAMINE, records=records))
    found = seen.by_pid[program.pid]
    assert isinstance(found, Configuration)
    return dict(found.values)


@every_python
def test_values(python: str) -> None:
    with started("-c", CODE, python=python) as program:
        args = {"accum": "2", "name": "base", "ratio": "-1.5", "flag": "True", "nothing": "None"}
        seen = read(program, ("args", "args"))
        assert "verysecret" not in seen.pop("args.api_key")
        assert seen == {f"args.{name}": value for name, value in args.items()}
        assert read(program, ("cfg", "config")) == {
            "cfg.optimizer.lr": "0.1",
            "cfg.optimizer.warmup": "100",
            "cfg.layers": "12",
        }
        assert read(program, ("hparams", "full")) == {"hparams.beta": "3"}
        assert read(program, ("self", "self"))["args.accum"] == "2"
        assert read(program, ("batch", "batch")) == {}


@pytest.mark.parametrize("address", [8, 1 << 30, (1 << 56) - 8])
def test_addresses_without_an_object(address: int) -> None:
    with started("-c", CODE) as program:
        program.said["gone"] = address
        assert read(program, ("args", "gone"), ("self", "gone")) == {}


def test_an_ended_process_is_unseen() -> None:
    frame = Frame("train", "/job/train.py", 3, variables=(Variable("args", "<object>", address=1 << 20),))
    records = {2**22 + 1: {"stacks": Stacks((Stack(1, "MainThread", (frame,)),))}}
    seen = PROBE.observe(Request([Target(2**22 + 1, 1, "here", 0)], Tier.EXAMINE, records=records))
    assert all(not one.values for one in seen.by_pid.values())
