"""Builds stacks from the text of a dump, as probe `stacks` records them.

Dumps shorten file names: py-spy drops the folder above a package. Analyses recognise libraries by that folder, so
`.../site-packages/` is restored for packages that are certainly libraries.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from hangdoc.evidence import Frame, Stack, Stacks, Variable
from hangdoc.introspect import local_variables
from hangdoc.introspect.frames import INNERMOST, OUTERMOST, short_name, trim_frames
from hangdoc.postmortem.readers._elided import EarlierStacks, Elision

MAX_THREADS = 2048  # per process
MAX_NAME = 300  # characters of a thread or function name
MAX_PATH = 1024
MAX_VARIABLES = 40  # per frame

# Standard library modules whose names are also common names of scripts.
_COMMON_SCRIPT_NAMES = frozenset(
    {"test", "code", "profile", "trace", "site", "this", "cmd", "io", "types", "token", "statistics"}
)
_OF_DEBUGGER = frozenset({("cmdloop", "cmd.py"), ("onecmd", "cmd.py")})  # of `cmd`, which pdb is built upon
_PACKAGES = frozenset(
    [
        "torch", "torchvision", "torchaudio", "torchtext", "torchdata", "torchrec", "torchao", "torchft", "functorch",
        "triton", "accelerate", "transformers", "diffusers", "peft", "trl", "tokenizers", "huggingface_hub",
        "safetensors", "lightning", "lightning_fabric", "lightning_utilities", "pytorch_lightning", "torchmetrics",
        "deepspeed", "apex", "transformer_engine", "flash_attn", "xformers", "bitsandbytes", "horovod", "ray",
        "mpi4py", "numpy", "scipy", "pandas", "sklearn", "pyarrow", "webdataset", "fsspec", "s3fs", "gcsfs",
        "aiohttp", "requests", "urllib3", "filelock", "tqdm", "wandb", "mlflow", "tensorboard", "fairscale", "hydra",
        "omegaconf", "typer", "nvidia", "cupy", "dill", "multiprocess", "joblib", "psutil", "zmq", "IPython",
        "ipykernel",
    ]
)  # fmt: skip
_DATASETS_FILES = re.compile(
    r"datasets/(?:arrow_|iterable_|table|builder|load|formatting/|fingerprint|dataset_dict|utils/)"
)


def full_path(short: str) -> str:
    """Expand `torch/nn/x.py` to `.../site-packages/torch/nn/x.py`; keep names that may be user code."""
    if short.startswith(("/", "<", ".")) or ":" in short[:3]:
        return short
    top = short.split("/", 1)[0].removesuffix(".py")
    if "/" in short and (top in _PACKAGES or _DATASETS_FILES.match(short)):
        return f".../site-packages/{short}"
    if top in sys.stdlib_module_names and top not in _COMMON_SCRIPT_NAMES:
        return f".../lib/python3/{short}"
    return short


def python_frame(function: str, file: str, line: int | None, variables: Sequence[Variable] | None = None) -> Frame:
    """A Python frame, named as probe `stacks` names it."""
    file = file[:MAX_PATH]
    short = short_name(file) if file.startswith("/") else file
    name = function.rpartition(".")[2] if not function.endswith(">") else function.rpartition(".<")[2]
    name = name if not function.endswith(">") or name.startswith("<") else f"<{name}"
    kept = None if variables is None or name == "<module>" else tuple(variables)
    path = f".../lib/python3/{file}" if (name, file) in _OF_DEBUGGER else full_path(file)
    return Frame(name[:MAX_NAME], path, line or None, short, variables=kept)


def native_frame(symbol: str, module: str, line: int | None = None) -> Frame:
    """A C or C++ frame; the middle of a long symbol is cut."""
    name = symbol if len(symbol) <= MAX_NAME else f"{symbol[: MAX_NAME - 100]}...{symbol[-97:]}"
    return Frame(name, module[:MAX_PATH], line or None, module[:MAX_PATH].rsplit("/", 1)[-1], native=True)


def variable(name: str, text: str, argument: bool, address: int | None = None) -> Variable | None:
    """A variable from its printed form, without secrets; None if it is not data (a module, a function)."""
    if not local_variables.is_data(name, text):
        return None
    return local_variables.from_text(name[:MAX_NAME], text, address, argument, None, None)


@dataclass(slots=True)
class ThreadBuilder:
    """Collects the frames of one thread, line by line."""

    tid: int
    name: str | None
    gil: bool = False
    active: bool = False
    frames: list[Frame] = field(default_factory=list)  # innermost first
    left_out: int = 0
    gap: tuple[int, Elision] | None = None  # behind so many frames, a person left some out

    def add(self, frame: Frame) -> None:
        """Add the next outer frame; the middle of a very deep stack is dropped."""
        if len(self.frames) >= 2 * (INNERMOST + OUTERMOST):
            self.frames[:], left_out = trim_frames(self.frames)
            self.left_out += left_out
        self.frames.append(frame)

    def leave_out(self, mark: Elision) -> None:
        """Note that frames are left out here."""
        self.gap = self.gap or (len(self.frames), mark)

    def fill(self, earlier: EarlierStacks, rank: int | None) -> None:
        """Fill the gap from an earlier stack; or keep this stack, if it has none, for later ones."""
        if self.gap is None:
            earlier.add(rank, self.frames)
            return
        at, mark = self.gap
        self.frames[at:at] = earlier.between(self.frames[:at], self.frames[at:], mark)
        self.gap = None

    def stack(self) -> Stack:
        frames, left_out = trim_frames(self.frames)
        name = self.name[:MAX_NAME] if self.name is not None else None
        return Stack(self.tid, name, tuple(frames), self.gil, self.active, self.left_out + left_out)


def stacks_record(threads: Sequence[ThreadBuilder], python: str | None = None) -> Stacks | None:
    """The `stacks` record of a process; None: no thread has a frame."""
    found = tuple(thread.stack() for thread in threads if thread.frames)
    native = any(frame.native for stack in found for frame in stack.frames)
    return Stacks(found, native, python) if found else None
