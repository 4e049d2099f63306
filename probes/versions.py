"""Probe `versions`: which builds of PyTorch, NCCL and Python a rank runs, by the files that it has mapped.

PyTorch: `torch/version.py` beside the library that is loaded. NCCL: the name of the library, else of the package that
brought it. Python: the name of libpython or of the executable.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from hangdoc import procfs
from probes import Observation, Request, Tier

_TORCH = re.compile(r"(/.*)/torch/lib/libtorch[\w.-]*\.so")
_NCCL = re.compile(r"(/.*?)(?:/nvidia/nccl/lib)?/libnccl\.so(?:\.(\d+\.[\d.]+)|\.\d+)?")
_PYTHON = re.compile(r"python(\d\.\d+)")
_VERSION = re.compile(r"^__version__\b[^=\n]*=\s*['\"]([\w.+-]{1,60})['\"]", re.MULTILINE)
_PACKAGE = re.compile(r"nvidia_nccl_cu\d+-([\d.]{1,20})\.dist-info")
_MOST = 65536  # bytes of a version.py


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions of what a rank has loaded (record of probe `versions`); None: not loaded, or not told by its files."""

    torch: str | None = None
    nccl: str | None = None
    python: str | None = None


class VersionsProbe:
    name = "versions"
    scope = "rank"
    tier = Tier.EXAMINE
    needs = "nothing"
    record = Versions
    order = 90
    steady = True

    def observe(self, request: Request) -> Observation:
        found = ((target.pid, versions_of(target.pid)) for target in request.targets)
        return Observation({pid: versions for pid, versions in found if versions is not None})


def versions_of(pid: int) -> Versions | None:
    """The versions that a process runs; None where its memory map may not be read."""
    files = list(dict.fromkeys(_mapped(pid)))
    if not files:
        return None
    torch = next((match[1] for file in files if (match := _TORCH.fullmatch(file))), None)
    nccl = next((match for file in files if (match := _NCCL.fullmatch(file))), None)
    executable = procfs.link(f"/proc/{pid}/exe") or ""
    names = [*(os.path.basename(file) for file in files if "/libpython" in file), os.path.basename(executable)]
    return Versions(
        _torch(pid, torch) if torch else None,
        (nccl[2] or _packaged(pid, nccl[1])) if nccl else None,
        next((match[1] for name in names if (match := _PYTHON.search(name))), None),
    )


def _mapped(pid: int) -> Iterator[str]:
    for line in (procfs.text(f"/proc/{pid}/maps") or "").splitlines():
        at = line.find("/")
        if at > 0:
            yield line[at:]


def _torch(pid: int, packages: str) -> str | None:
    try:
        with open(f"/proc/{pid}/root{packages}/torch/version.py", encoding="utf-8", errors="replace") as file:
            match = _VERSION.search(file.read(_MOST))
    except OSError:
        return None
    return match[1] if match else None


def _packaged(pid: int, packages: str) -> str | None:
    try:
        names = os.listdir(f"/proc/{pid}/root{packages}")
    except OSError:
        return None
    return next((match[1] for name in names if (match := _PACKAGE.fullmatch(name))), None)


PROBE = VersionsProbe()
