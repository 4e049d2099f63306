"""Analysis `compute`: what a rank computes with, and whether its CPU has units for it.

bfloat16 without AVX512-BF16, AMX-BF16 or Arm BF16 is emulated: a product takes 3 times as long as in float32 with
AVX512, 80 to 200 times as long without (torch 2.13). ONEDNN_MAX_CPU_ISA takes units away that the CPU has;
ATEN_CPU_CAPABILITY=avx2 alone does not (both measured).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from hangdoc.analysis import Case, Key
from hangdoc.analysis.ranks.progress import Look, looks_at, spots
from hangdoc.evidence import Environ, Frame, Host, Stacks, Tensor, Variable
from hangdoc.evidence.software import Types

Held = tuple[Tensor, str]  # a tensor, and where it was

BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16", "svebf16"})
BF16_KERNEL = re.compile(r"bf16|bfloat16|BFloat16", re.IGNORECASE)
COMPILED = re.compile(r"/torchinductor_|/inductor_cache/")  # files that torch.compile writes
MOST_KERNELS = 3
# oneDNN's ISA names at or above which bf16 instructions are used (its CPU dispatcher control page)
BF16_ISA = re.compile(r"BF16|AMX|AVX512_CORE_FP16|AVX10|DEFAULT|ALL", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PrecisionFacts:
    """One rank; None: no tensor or no CPU flags were seen."""

    dtype: str | None  # the floating type most of its tensors on the CPU have
    bf16: bool | None  # its frames hold bfloat16 tensors on the CPU, or native kernels of that type run
    bf16_units: bool | None  # its CPU computes bfloat16 natively, as far as its environment lets it
    bf16_where: str | None  # variable and function that hold one: "x in forward (model.py:12)"
    bf16_line: str | None  # of its script that names the type: "train.py:31: dtype = torch.bfloat16"
    kernels: str | None  # where it was mostly seen computing: "forward (linear.py:134), code of torch.compile"
    bf16_limit: str | None  # the variable that takes the units away: "ONEDNN_MAX_CPU_ISA=AVX2"
    cpu_model: str | None
    on_gpu: bool | None  # some tensor is on an accelerator


@dataclass(slots=True)
class PrecisionAnalysis:
    name: str = "compute"
    order: int = 45
    rank_facts: type | None = PrecisionFacts
    job_facts: type | None = None
    on_demand: bool = True

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
    limit = _limit(environ.variables) if isinstance(environ, Environ) else None
    return PrecisionFacts(
        dtype=max(dict.fromkeys(kinds), key=kinds.count) if kinds else None,
        bf16=where is not None or kernel is not None if found or kernel else None,
        bf16_units=_units(host, limit),
        bf16_where=where or kernel,
        bf16_line=next(iter(types.bf16), None) if isinstance(types, Types) else None,
        kernels=kernel or _busiest(case, key),
        bf16_limit=limit,
        cpu_model=host.cpu_model if isinstance(host, Host) else None,
        on_gpu=any(t.device not in ("cpu", "meta") for t, _ in found) if found else None,
    )


def _tensors(case: Case, key: Key) -> list[Held]:
    """Every tensor seen in the rank's variables over the history, with where it was."""
    found: dict[Held, None] = {}
    known: dict[int, list[Held]] = case.once("tensors", dict)  # by identity: ranks that are alike share frames
    for stacks in case.distinct(key, "stacks"):
        if not isinstance(stacks, Stacks):
            continue
        for frame in [frame for stack in stacks.threads for frame in stack.frames if frame.variables]:
            if id(frame) not in known:
                known[id(frame)] = _held_by(frame)
            found.update(dict.fromkeys(known[id(frame)]))
        found.update(dict.fromkeys(_held(stacks.globals or (), "the script's module")))
    return list(found)


def _held_by(frame: Frame) -> list[Held]:
    if "/torch/distributed/" in frame.file:  # what is only sent in a smaller type
        return []
    return _held(frame.variables or (), f"{frame.function} ({frame.short.rsplit('/', 1)[-1]}:{frame.line})")


def _held(variables: Sequence[Variable], where: str) -> list[Held]:
    return [(v.tensor, f"{v.name} in {where}") for v in variables if v.tensor is not None]


def _bf16_kernel(case: Case, key: Key) -> str | None:
    for stacks in case.distinct(key, "stacks"):
        if isinstance(stacks, Stacks) and stacks.native:
            for frame in (f for stack in stacks.threads for f in stack.frames):
                if frame.native and _names_bf16(frame.function):
                    return frame.function
    return None


@lru_cache(maxsize=4096)
def _names_bf16(function: str) -> bool:
    return bool(BF16_KERNEL.search(function))


def _busiest(case: Case, key: Key) -> str | None:
    """The innermost places at which a rank was seen computing most often."""
    looks = looks_at(case, key)
    return case.once(("busiest", spots(looks)), lambda: _most_at(looks))


def _most_at(looks: Sequence[Look]) -> str | None:
    computing = [look.story[-1] for look in looks if look.phase == "compute" and look.story]
    names = Counter("code of torch.compile" if COMPILED.search(step.file) else step.site for step in computing)
    return ", ".join(name for name, _ in names.most_common(MOST_KERNELS)) or None


def _limit(variables: object) -> str | None:
    if not hasattr(variables, "get"):
        return None
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        isa = variables.get(name, "")
        if isa and not BF16_ISA.search(isa):
            return f"{name}={isa}"
    return None


def _units(host: object, limit: str | None) -> bool | None:
    if limit is not None:
        return False
    if not isinstance(host, Host) or host.cpu_flags is None:
        return None
    return bool(BF16_FLAGS & host.cpu_flags)


ANALYSIS = PrecisionAnalysis()
