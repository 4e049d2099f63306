"""Probe `versions`: the versions of PyTorch, NCCL and Python that a rank runs, from the files it has mapped.

PyTorch: `torch/version.py` next to the loaded library. NCCL: the file name of the library, else its package. Python:
the file name of libpython or of the executable.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from hangdoc.evidence import Unseen
from hangdoc.evidence.software import Versions
from hangdoc.system import procfs
from hangdoc.system.target_files import TargetFiles, read_failure
from probes import Observation, Request, Tier

_TORCH = re.compile(r"(/.*)/torch/lib/libtorch[\w.-]*\.so")
_NCCL = re.compile(r"(/.*?)(?:/nvidia/nccl/lib)?/libnccl\.so(?:\.(\d+\.[\d.]+)|\.\d+)?")
_PYTHON = re.compile(r"python(\d\.\d+)")
_VERSION = re.compile(r"^__version__\b[^=\n]*=\s*['\"]([\w.+-]{1,60})['\"]", re.MULTILINE)
_PACKAGE = re.compile(r"nvidia_nccl_cu\d+-([\d.]{1,20})\.dist-info")
_MAX = 65536  # bytes of a version.py
_MAX_NAMES = 20_000  # in a folder of packages


class VersionsProbe:
    name = "versions"
    scope = "rank"
    tier = Tier.EXAMINE
    needs = "nothing"
    record = Versions
    order = 90
    steady = True

    def observe(self, request: Request) -> Observation:
        records: dict[int, Versions] = {}
        unseen: list[Unseen] = []
        for target in request.targets:
            versions, lacks = versions_of(target.pid)
            if versions is not None:
                records[target.pid] = versions
            unseen += [Unseen(self.name, text, target.rank, target.pid, target.host) for text in lacks]
        return Observation(records, unseen=tuple(unseen))


def versions_of(pid: int) -> tuple[Versions | None, list[str]]:
    """The versions that a process runs (None: its memory map may not be read), and what else could not be read."""
    files = list(dict.fromkeys(_mapped(pid)))
    lacks: list[str] = []
    if not files:
        return None, lacks
    torch = next((match[1] for file in files if (match := _TORCH.fullmatch(file))), None)
    nccl = next((match for file in files if (match := _NCCL.fullmatch(file))), None)
    executable = procfs.link(f"/proc/{pid}/exe") or ""
    names = [*(os.path.basename(file) for file in files if "/libpython" in file), os.path.basename(executable)]
    found = Versions(
        _torch(pid, torch, lacks) if torch else None,
        (nccl[2] or _packaged(pid, nccl[1], lacks)) if nccl else None,
        next((match[1] for name in names if (match := _PYTHON.search(name))), None),
    )
    return found, lacks


def _mapped(pid: int) -> Iterator[str]:
    for line in (procfs.text(f"/proc/{pid}/maps") or "").splitlines():
        at = line.find("/")
        if at > 0:
            yield line[at:]


def _torch(pid: int, packages: str, lacks: list[str]) -> str | None:
    file = f"{packages}/torch/version.py"
    try:
        text = TargetFiles(pid).read(file, _MAX).data.decode(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        lacks.append(f"{file} could not be read ({read_failure(error)}); the PyTorch version is unknown")
        return None
    match = _VERSION.search(text)
    return match[1] if match else None


def _packaged(pid: int, packages: str, lacks: list[str]) -> str | None:
    try:
        names = TargetFiles(pid).names(packages, _MAX_NAMES)
    except FileNotFoundError:
        return None
    except OSError as error:
        lacks.append(f"{packages} could not be listed ({read_failure(error)}); the NCCL version is unknown")
        return None
    return next((match[1] for name in names if (match := _PACKAGE.fullmatch(name))), None)


PROBE = VersionsProbe()
