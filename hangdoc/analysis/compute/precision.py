"""Analysis `compute`: the dtype a rank computes in, and whether its CPU supports bfloat16 natively.

Without AVX512-BF16, AMX-BF16 or Arm BF16, bfloat16 is emulated. A matrix product then takes 3 times as long as in
float32 with AVX512, and 80 to 200 times as long without it (torch 2.13). ONEDNN_MAX_CPU_ISA disables instructions that
the CPU has; ATEN_CPU_CAPABILITY=avx2 alone does not (both measured).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from hangdoc.analysis import Analysis, Case, Key
from hangdoc.analysis.ranks.progress import Look, activities, looks_at
from hangdoc.evidence import Environ, Frame, Host, Stacks, Tensor, Variable
from hangdoc.evidence.software import Types

LocatedTensor = tuple[Tensor, str]  # a tensor and its location: "x in forward (model.py:12)"

BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16", "svebf16"})
BF16_KERNEL = re.compile(r"bf16|bfloat16|BFloat16", re.IGNORECASE)
COMPILED = re.compile(r"/torchinductor_|/inductor_cache/")  # files written by torch.compile
MAX_KERNELS = 3
# oneDNN ISA names that allow bf16 instructions (oneDNN documentation, "CPU Dispatcher Control")
BF16_ISA = re.compile(r"BF16|AMX|AVX512_CORE_FP16|AVX10|DEFAULT|ALL", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PrecisionFacts:
    """Precision on one rank. None: no tensors or no CPU flags seen."""

    dtype: str | None  # most common floating-point dtype of its CPU tensors
    bf16: bool | None  # it holds bfloat16 tensors on the CPU, or runs native bfloat16 kernels
    bf16_units: bool | None  # its CPU has bfloat16 instructions, and the environment does not disable them
    bf16_where: str | None  # variable that holds a bfloat16 tensor: "x in forward (model.py:12)"; or the native kernel
    bf16_line: str | None  # line of its script that names the dtype: "train.py:31: dtype = torch.bfloat16"
    kernels: str | None  # where it computed most often: "forward (linear.py:134), code of torch.compile"
    bf16_limit: str | None  # the environment variable that disables bfloat16 instructions: "ONEDNN_MAX_CPU_ISA=AVX2"
    cpu_model: str | None
    on_gpu: bool | None  # at least one tensor is on an accelerator


class PrecisionAnalysis(Analysis[PrecisionFacts, None]):
    rank_facts = PrecisionFacts
    seen_by = ("environ", "aftermath")  # variables decide which units are used

    def derive(self, case: Case) -> tuple[dict[Key, PrecisionFacts], None]:
        hosts = {shot.host: shot.records["host"] for shot in case.history if "host" in shot.records}
        return {key: _facts(case, key, hosts.get(key[0])) for key in case.ranks}, None


def _facts(case: Case, key: Key, host: object) -> PrecisionFacts:
    found = _tensors(case, key)
    on_cpu = [(t, where) for t, where in found if (t.device == "cpu" and "float" in t.dtype) or t.dtype == "half"]
    kinds = [t.dtype for t, _ in on_cpu]
    where = next((place for t, place in on_cpu if t.dtype == "bfloat16"), None)
    kernel = _bf16_kernel(case, key)
    environ, types = case.record(key, "environ"), case.record(key, "types")
    limit = _isa_limit(environ.variables) if isinstance(environ, Environ) else None
    return PrecisionFacts(
        dtype=max(dict.fromkeys(kinds), key=kinds.count) if kinds else None,
        bf16=where is not None or kernel is not None if found or kernel else None,
        bf16_units=_has_bf16_units(host, limit),
        bf16_where=where or kernel,
        bf16_line=next(iter(types.bf16), None) if isinstance(types, Types) else None,
        kernels=kernel or _busiest(case, key),
        bf16_limit=limit,
        cpu_model=host.cpu_model if isinstance(host, Host) else None,
        on_gpu=any(t.device not in ("cpu", "meta") for t, _ in found) if found else None,
    )


def _tensors(case: Case, key: Key) -> list[LocatedTensor]:
    """Tensors seen in the rank's variables over the history, with their locations."""
    found: dict[LocatedTensor, None] = {}
    known: dict[int, list[LocatedTensor]] = case.once("tensors", dict)  # by identity: identical ranks share frames
    for stacks in case.distinct(key, "stacks"):
        if not isinstance(stacks, Stacks):
            continue
        for frame in [frame for stack in stacks.threads for frame in stack.frames if frame.variables]:
            if id(frame) not in known:
                known[id(frame)] = _tensors_of_frame(frame)
            found.update(dict.fromkeys(known[id(frame)]))
        found.update(dict.fromkeys(_tensors_in(stacks.globals or (), "the script's module")))
    return list(found)


def _tensors_of_frame(frame: Frame) -> list[LocatedTensor]:
    if "/torch/distributed/" in frame.file:  # communicated in a smaller dtype, not computed in it
        return []
    return _tensors_in(frame.variables or (), f"{frame.function} ({frame.short.rsplit('/', 1)[-1]}:{frame.line})")


def _tensors_in(variables: Sequence[Variable], where: str) -> list[LocatedTensor]:
    return [(v.tensor, f"{v.name} in {where}") for v in variables if v.tensor is not None]


def _bf16_kernel(case: Case, key: Key) -> str | None:
    for stacks in case.distinct(key, "stacks"):
        if isinstance(stacks, Stacks) and stacks.native:
            for frame in (f for stack in stacks.threads for f in stack.frames):
                if frame.native and _is_bf16_kernel(frame.function):
                    return frame.function
    return None


@lru_cache(maxsize=4096)
def _is_bf16_kernel(function: str) -> bool:
    return bool(BF16_KERNEL.search(function))


def _busiest(case: Case, key: Key) -> str | None:
    """The innermost sites where a rank computed most often."""
    looks = looks_at(case, key)
    return case.once(("busiest", activities(looks)), lambda: _busiest_sites(looks))


def _busiest_sites(looks: Sequence[Look]) -> str | None:
    computing = [look.path.steps[-1] for look in looks if look.phase == "compute" and look.path.steps]
    names = Counter("code of torch.compile" if COMPILED.search(step.file) else step.site for step in computing)
    return ", ".join(name for name, _ in names.most_common(MAX_KERNELS)) or None


def _isa_limit(variables: object) -> str | None:
    if not hasattr(variables, "get"):
        return None
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        isa = variables.get(name, "")
        if isa and not BF16_ISA.search(isa):
            return f"{name}={isa}"
    return None


def _has_bf16_units(host: object, limit: str | None) -> bool | None:
    if limit is not None:
        return False
    if not isinstance(host, Host) or host.cpu_flags is None:
        return None
    return bool(BF16_FLAGS & host.cpu_flags)


ANALYSIS = PrecisionAnalysis()
