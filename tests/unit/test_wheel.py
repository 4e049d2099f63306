"""The wheel: what is in it, and that hangdoc runs from it.

Takes some 5 s: hatchling builds it, pip installs it, and hangdoc starts twice, each a Python of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

import hangdoc

TREE = Path(hangdoc.__file__).parent.parent
PACKAGES = ("hangdoc", "probes", "playbooks")
NO_PART = ("capture.jsonl.zst",)  # recordings for the tests


def run(*command: str | Path, cwd: Path, path: Path | None = None) -> str:
    """The output of a command, with this folder of modules before all others; what it wrote where it fails."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    if path is not None:
        env["PYTHONPATH"] = str(path)
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder, cwd=TREE)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but the wheel's files and its scripts."""
    folder = tmp_path_factory.mktemp("installed")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    run(*pip, "install", "--no-index", "--no-deps", "--target", folder, wheel, cwd=folder)
    return folder


def of_tree() -> set[str]:
    """The files of the packages as they are in the tree."""
    files = (path for package in PACKAGES for path in (TREE / package).rglob("*") if path.is_file())
    return {str(path.relative_to(TREE)) for path in files if path.parent.name != "__pycache__"}


def test_it_has_every_file_of_the_packages_but_the_captures(wheel: Path) -> None:
    packed = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == {name for name in of_tree() if Path(name).name not in NO_PART}


def test_it_has_what_is_no_python(wheel: Path) -> None:
    packed = set(ZipFile(wheel).namelist())
    assert packed >= {f"{package}/py.typed" for package in PACKAGES}
    assert packed >= {"hangdoc/analysis/ranks/phases.yaml", "hangdoc/postmortem/readers/_logs/patterns.yaml"}
    assert packed >= {"hangdoc/render/report.css", "hangdoc/render/report.html.j2"}
    for playbook in (path.parent.name for path in (TREE / "playbooks").glob("*/playbook.yaml")):
        assert packed >= {f"playbooks/{playbook}/playbook.yaml", f"playbooks/{playbook}/runbook.md"}
    assert not any(name.startswith("tests/") or name.endswith(NO_PART) for name in packed)


def test_it_runs_outside_the_tree(installed: Path, tmp_path: Path) -> None:
    where = "import hangdoc, probes, playbooks; print(*(one.__file__ for one in (hangdoc, probes, playbooks)))"
    files = run(sys.executable, "-c", where, cwd=tmp_path, path=installed).split()
    assert files == [str(installed / package / "__init__.py") for package in PACKAGES]
    program = installed / "bin" / "hangdoc"
    assert hangdoc.__version__ in run(program, "--version", cwd=tmp_path, path=installed)
    listed = run(program, "runbook", cwd=tmp_path, path=installed)
    assert {path.parent.name for path in (TREE / "playbooks").glob("*/playbook.yaml")} <= set(listed.split())
