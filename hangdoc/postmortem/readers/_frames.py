"""Stacks from what a text shows of them, as probe `stacks` would have made them.

Texts shorten file names: py-spy leaves out the folder that holds a package. Analysis tells libraries from the user's
own code by that folder, so that of a package known to be a library it is put back as far as it is certain:
`.../site-packages/`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from hangdoc.evidence import Frame, Stack, Stacks, Variable
from hangdoc.introspect import local_variables
from hangdoc.introspect.frame_names import INNERMOST, OUTERMOST, ends, short_name

MOST_THREADS = 2048  # of a process
NAME = 300  # characters of a thread's or function's name that are kept
PATH = 1024
VARIABLES = 40  # a frame

# Modules of the standard library by whose names people call their own scripts.
_NOT_STANDARD = frozenset(
    {"test", "code", "profile", "trace", "site", "this", "cmd", "io", "types", "token", "statistics"}
)
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
_OF_DATASETS = re.compile(
    r"datasets/(?:arrow_|iterable_|table|builder|load|formatting/|fingerprint|dataset_dict|utils/)"
)


def full_name(short: str) -> str:
    """`.../site-packages/torch/nn/x.py` of `torch/nn/x.py`; a name that may be the user's own stays as it is."""
    if short.startswith(("/", "<", ".")) or ":" in short[:3]:
        return short
    top = short.split("/", 1)[0].removesuffix(".py")
    if "/" in short and (top in _PACKAGES or _OF_DATASETS.match(short)):
        return f".../site-packages/{short}"
    if top in sys.stdlib_module_names and top not in _NOT_STANDARD:
        return f".../lib/python3/{short}"
    return short


def python_frame(function: str, file: str, line: int | None, variables: Sequence[Variable] | None = None) -> Frame:
    """A frame of Python, named as a live look names it."""
    file = file[:PATH]
    short = short_name(file) if file.startswith("/") else file
    name = function.rpartition(".")[2] if not function.endswith(">") else function.rpartition(".<")[2]
    name = name if not function.endswith(">") or name.startswith("<") else f"<{name}"
    kept = None if variables is None or name == "<module>" else tuple(variables)
    return Frame(name[:NAME], full_name(file), line or None, short, variables=kept)


def native_frame(symbol: str, module: str, line: int | None = None) -> Frame:
    """A frame of C or C++; a long symbol is kept without its middle."""
    name = symbol if len(symbol) <= NAME else f"{symbol[: NAME - 100]}...{symbol[-97:]}"
    return Frame(name, module[:PATH], line or None, module[:PATH].rsplit("/", 1)[-1], native=True)


def variable(name: str, text: str, argument: bool, address: int | None = None) -> Variable | None:
    """A variable from its printed form, without secrets; None where it is of no use (a module, a function)."""
    if not local_variables.is_data(name, text):
        return None
    return local_variables.of_text(name[:NAME], text, address, argument, None, None)


@dataclass(slots=True)
class Thread:
    """A thread while its lines come in."""

    tid: int
    name: str | None
    gil: bool = False
    active: bool = False
    frames: list[Frame] = field(default_factory=list)  # innermost first
    left_out: int = 0

    def add(self, frame: Frame) -> None:
        """The next frame outwards; the middle of a very deep recursion is let go."""
        if len(self.frames) >= 2 * (INNERMOST + OUTERMOST):
            self.frames[:], left_out = ends(self.frames)
            self.left_out += left_out
        self.frames.append(frame)

    def stack(self) -> Stack:
        frames, left_out = ends(self.frames)
        name = self.name[:NAME] if self.name is not None else None
        return Stack(self.tid, name, tuple(frames), self.gil, self.active, self.left_out + left_out)


def stacks(threads: Sequence[Thread], python: str | None = None) -> Stacks | None:
    """The record of a process; None where no thread of it showed a frame."""
    found = tuple(thread.stack() for thread in threads if thread.frames)
    native = any(frame.native for stack in found for frame in stack.frames)
    return Stacks(found, native, python) if found else None
