"""Nothing that belongs to another user is run as root: interpreters, programs on the PATH, modules where we stand."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.other_user import STRANGER, hangdoc, interpreter
from tests.support.requirements import met

TELLS = "#!/bin/sh\nid -u >> {canary}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder of STRANGER's that everybody may enter; whatever it can make us run writes its user to `canary`."""
    met(None if os.geteuid() == 0 else "only root can run things for others")
    made = Path("/tmp") / f"hangdoc-stranger-{os.getpid()}"
    made.mkdir(mode=0o755)
    os.chown(made, STRANGER, STRANGER)
    try:
        yield made
    finally:
        subprocess.run(["rm", "-r", str(made)], check=True)


def write(path: Path, text: str, owner: int = STRANGER) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    os.chown(path, owner, owner)
    return path


def users(folder: Path) -> set[str]:
    """Who ran something of the stranger's."""
    canary = folder / "canary"
    return set(canary.read_text().split()) if canary.exists() else set()


@pytest.mark.parametrize("owner", [STRANGER, 0])
def test_a_python_of_another_user_runs_as_he(folder: Path, owner: int) -> None:
    python = write(folder / "python", TELLS.format(canary=folder / "canary"), owner)
    done = hangdoc("doctor", "--bf16", "--python", str(python))
    assert done.returncode == 0 or "could not be measured" in done.stdout, done
    assert users(folder) == {str(STRANGER)}
    assert f"hangdoc ran this Python as user {STRANGER}" in " ".join(done.stdout.split())


def test_a_venv_of_another_user_runs_as_he(folder: Path) -> None:
    """Its interpreter is the system's, a file of root's; its modules are the stranger's."""
    subprocess.run([interpreter(), "-m", "venv", "--without-pip", str(folder / "venv")], user=STRANGER, check=True)
    (packages,) = (folder / "venv" / "lib").glob("python3.*/site-packages")
    canary = folder / "canary"
    write(packages / "torch.py", f"import os\nopen({str(canary)!r}, 'a').write(f'{{os.getuid()}} ')\n")
    hangdoc("doctor", "--bf16", "--python", str(folder / "venv" / "bin" / "python"))
    assert users(folder) == {str(STRANGER)}


def test_roots_secrets_stay_with_root(folder: Path) -> None:
    python = write(folder / "python", f"#!/bin/sh\nenv > {folder}/environment; id -u > {folder}/canary\n")
    hangdoc("doctor", "--bf16", "--python", str(python), environment={"TOKEN": "s3cret", "OMP_NUM_THREADS": "3"})
    told = (folder / "environment").read_text()
    assert ("s3cret" in told, "OMP_NUM_THREADS=3" in told) == (False, True)


def test_a_python_that_writes_for_ever_is_ended(folder: Path) -> None:
    python = write(folder / "python", "#!/bin/sh\n(sleep 600 &) ; exec yes\n")
    done = hangdoc("doctor", "--bf16", "--python", str(python), limit_s=30)
    assert done.returncode == 0, done
    assert "could not be measured" in done.stdout


@pytest.mark.parametrize("arguments", [("doctor",), ("doctor", "--bf16")], ids=" ".join)
def test_modules_where_root_stands_are_not_imported(folder: Path, arguments: tuple[str, ...]) -> None:
    for name in ("ctypes", "json", "time", "torch", "subprocess", "typer"):
        write(folder / f"{name}.py", f"import os\nopen({str(folder / 'canary')!r}, 'a').write(f'{{os.getuid()}} ')\n")
    command = os.environ.get("HANGDOC") or str(Path(sys.executable).parent / "hangdoc")
    subprocess.run([command, *arguments], cwd=folder, capture_output=True, timeout=120, check=False)
    assert users(folder) == set()


def test_programs_of_another_user_on_the_path_are_not_run(folder: Path) -> None:
    for name in ("py-spy", "iptables-save", "ip6tables-save", "nft", "srun", "squeue", "kubectl", "ssh"):
        write(folder / name, TELLS.format(canary=folder / "canary"))
    path = {"PATH": f"{folder}:{os.environ['PATH']}"}
    for arguments in (
        ("doctor",),
        ("watch", "--once", "--nodes", "node-1.invalid"),
        ("watch", "--once", "--via", "srun", "--jobid", "7"),
        ("watch", "--once", "--via", "kubectl", "--selector", "a=b"),
    ):
        hangdoc(*arguments, environment=path)
    assert users(folder) == set()


def test_the_agent_takes_no_argument(folder: Path) -> None:
    command = Path(sys.executable).parent / "hangdoc-agent"
    for arguments in (["--record", str(folder / "out")], ["watch", "--once"], ["--help"], ["agent"]):
        done = subprocess.run([command, *arguments], input=b"", capture_output=True, timeout=30, check=False)
        assert (done.returncode, done.stdout) == (64, b""), done
        assert b"takes no arguments" in done.stderr
    with subprocess.Popen([command], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        assert agent.stdout.readline().startswith(b'{"schema":"hangdoc.agent/1"')
        agent.stdin.write(b'{"do":"stop"}\n')
        agent.stdin.flush()
        assert agent.wait(60) == 0
