"""How many times slower bfloat16 is: what a Python answers, and what is said of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hangdoc.doctor.bf16 import measure
from tests.support import requirements
from tests.support.cli import HANGDOC


def python(folder: Path, answer: str) -> str:
    """A program that answers so, whatever it is asked."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("answer", "ok", "part"),
    [
        ("echo '[\"2.13.0\", 0.001, 0.017]'", False, "17 times slower than float32 here: 17 ms against 1.0 ms"),
        ("echo '[\"2.13.0\", 0.001, 0.0031]'", False, "3.1 times slower"),
        ("echo a warning; echo '[\"2.13.0\", 0.001, 0.0005]'", True, "no slower than float32 here"),
        ("echo 'ModuleNotFoundError: no torch' >&2; exit 1", None, "ModuleNotFoundError: no torch"),
        ("echo nonsense", None, "could not be measured"),
        ("echo '[\"2.13.0\", 0.0, 0.1]'", None, "could not be measured"),
    ],
)
def test_what_is_said(tmp_path: Path, answer: str, ok: bool | None, part: str) -> None:
    check = measure(python(tmp_path, answer))
    assert check.ok is ok
    assert part in check.detail
    assert bool(check.fix) is (ok is not True)


def test_no_such_python(tmp_path: Path) -> None:
    assert measure(str(tmp_path / "nowhere")).ok is None


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the variable is one of x86")
@pytest.mark.slow("times matrix products in bfloat16")
def test_without_units_it_is_many_times_slower() -> None:
    requirements.met(requirements.torch())
    command = [*HANGDOC, "doctor", "--bf16"]
    env = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    answer = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 3
    assert "times slower" in answer.stdout, answer.stdout + answer.stderr
