"""Probe `versions`: the versions of PyTorch, NCCL, Python and packages that a rank runs, and digests of its scripts.

PyTorch: `torch/version.py` next to the loaded library. NCCL: the file name of the library, else its package. Python:
the file name of libpython or of the executable. Packages: the metadata next to PyTorch. Scripts: the script on the
command line and the user's files on the stacks, as they are on disk now.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from hangdoc.evidence import Process, Stacks, Unseen
from hangdoc.evidence.software import Versions
from hangdoc.introspect.source_files import MAX_BYTES, own_files
from hangdoc.system import procfs
from hangdoc.system.target_files import Content, TargetFiles, content, read_failure
from probes import Observation, Request, Tier

_TORCH = re.compile(r"(/.*)/torch/lib/libtorch[\w.-]*\.so")
_NCCL = re.compile(r"(/.*?)(?:/nvidia/nccl/lib)?/libnccl\.so(?:\.(\d+\.[\d.]+)|\.\d+)?")
_PYTHON = re.compile(r"python(\d\.\d+)")
_VERSION = re.compile(r"^__version__\b[^=\n]*=\s*['\"]([\w.+-]{1,60})['\"]", re.MULTILINE)
_PACKAGE = re.compile(r"nvidia_nccl_cu\d+-([\d.]{1,20})\.dist-info")
_MAX = 65536  # bytes of a version.py
_MAX_NAMES = 20_000  # in a folder of packages
_DISTRIBUTION = re.compile(r"([\w.]+)-([\w.+!]{1,40})\.dist-info")
# Packages that shape a training, in lower case: with all of them, the records of thousands of ranks would be large.
_SHOWN = re.compile(
    r"accelerate|apex|bitsandbytes|composer|datasets|deepspeed|fairscale|flash_attn|horovod|(?:pytorch_)?lightning"
    r"|liger_kernel|megatron\w*|mosaicml\w*|mpi4py|numpy|nvidia_dali\w*|peft|pyarrow|pytorch_ignite|ray|safetensors"
    r"|sentencepiece|timm|tokenizers|torch\w+|transformer_engine|transformers|triton|trl|unsloth|webdataset|xformers"
)
_MAX_SCRIPTS = 16  # of a rank
_DIGITS = 12  # of a digest


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
                own = (request.records or {}).get(target.pid, {})
                records[target.pid] = replace(versions, scripts=_scripts(target.pid, own))
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
        _packages(pid, torch) if torch else {},
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


def _packages(pid: int, folder: str) -> dict[str, str]:
    """Versions of the packages that are shown; {}: the folder could not be listed."""
    try:
        names = TargetFiles(pid).names(folder, _MAX_NAMES)
    except OSError:
        return {}
    found = (match.groups() for name in names if (match := _DISTRIBUTION.fullmatch(name)))
    return {name: version for name, version in sorted(found) if _SHOWN.fullmatch(name.lower())}


def _scripts(pid: int, records: Mapping[str, Any]) -> dict[str, str]:
    """Digests of the script and of the user's files on the stacks, by base name."""
    process, stacks = records.get("cpu"), records.get("stacks")
    files = list(own_files(stacks)) if isinstance(stacks, Stacks) else []
    if isinstance(process, Process) and (script := _script(process.command)):
        files.insert(0, script)
    found: dict[str, str] = {}
    read = TargetFiles(pid).each(files[:_MAX_SCRIPTS], lambda fd: content(fd, MAX_BYTES))
    for file, one in read.items():
        if isinstance(one, Content) and len(one.data) == one.status.st_size:
            found.setdefault(os.path.basename(file), hashlib.sha256(one.data).hexdigest()[:_DIGITS])
    return found


def _script(command: Sequence[str]) -> str | None:
    """The script on the command line of an interpreter: its first word that is no option."""
    return next((word for word in command[1:] if not word.startswith("-") and word.endswith(".py")), None)


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
