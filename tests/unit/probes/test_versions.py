"""Versions from the mapped files of a process."""

from __future__ import annotations

import os
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from hangdoc.evidence import Process
from hangdoc.evidence.software import Versions
from probes import Request, Tier
from probes.versions import PROBE, versions_of
from tests.support.probe_targets import started

MAP = """
import json, mmap, sys, time
files = [open(path, "rb") for path in sys.argv[1:]]
kept = [mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) for file in files]
print(json.dumps(len(kept)), flush=True)
time.sleep(30)
"""


def mapped(folder: Path, *names: str) -> Versions | None:
    """What is said of a process that has these files mapped."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"\0" * 4096)
    with started("-c", MAP, *(str(folder / name) for name in names)) as program:
        return PROBE.observe(program.request()).by_pid.get(program.pid)


PYTHON = "{}.{}".format(*sys.version_info)


@pytest.mark.parametrize(
    ("text", "torch"),
    [
        ("from typing import Optional\n__version__ = '2.12.1+cu128'\ndebug = False\n", "2.12.1+cu128"),
        ('__version__: str = "2.5.0"\n', "2.5.0"),
        ("__version__ = make_version()\n", None),
        (None, None),
    ],
)
def test_torch(tmp_path: Path, text: str | None, torch: str | None) -> None:
    (tmp_path / "torch").mkdir()
    if text is not None:
        (tmp_path / "torch" / "version.py").write_text(text)
    assert mapped(tmp_path, "torch/lib/libtorch_cpu.so") == Versions(torch, None, PYTHON)


def test_nccl_by_its_name_and_by_its_package(tmp_path: Path) -> None:
    assert mapped(tmp_path, "lib/libnccl.so.2.21.5") == Versions(None, "2.21.5", PYTHON)
    (tmp_path / "nvidia_nccl_cu12-2.27.3.dist-info").mkdir()
    assert mapped(tmp_path, "nvidia/nccl/lib/libnccl.so.2") == Versions(None, "2.27.3", PYTHON)
    assert mapped(tmp_path / "other", "nvidia/nccl/lib/libnccl.so.2") == Versions(None, None, PYTHON)


def test_an_ended_process() -> None:
    assert versions_of(2**22 + 1) == (None, [])
    assert (versions_of(os.getpid())[0] or Versions()).python == PYTHON


def test_a_version_file_that_nobody_writes_to_is_not_waited_for(tmp_path: Path) -> None:
    library = tmp_path / "torch" / "lib" / "libtorch_cpu.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"\0" * 4096)
    os.mkfifo(tmp_path / "torch" / "version.py")
    with started("-c", MAP, str(library)) as program:
        seen = PROBE.observe(program.request())
    assert seen.by_pid[program.pid] == Versions(None, None, PYTHON)
    (lack,) = seen.unseen
    assert "version.py could not be read (it is a FIFO, not a regular file)" in lack.why


def test_packages_and_scripts(tmp_path: Path) -> None:
    for name in ("transformers-4.57.1", "NumPy-2.4.6", "unknown_tool-1.0"):
        (tmp_path / f"{name}.dist-info").mkdir()
    found = mapped(tmp_path, "torch/lib/libtorch_cpu.so")
    assert found is not None
    assert found.packages == {"NumPy": "2.4.6", "transformers": "4.57.1"}
    script = tmp_path / "train.py"
    script.write_text("import json, time\nprint(json.dumps(1), flush=True)\ntime.sleep(30)\n")
    with started(str(script)) as program:
        request = program.request()
        command = Process(1, 1, 0, "S", ("python", "-u", str(script)), None, None, 1.0, 1.0, 1, ())
        records = {program.pid: {"cpu": command}}
        seen = PROBE.observe(Request(request.targets, Tier.EXAMINE, records=records)).by_pid[program.pid]
    assert seen.scripts == {"train.py": sha256(script.read_bytes()).hexdigest()[:12]}
