"""What a rank runs: versions of its libraries, types named in its source (probes `versions`, `types`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Types:
    """Lines that name bfloat16 (record of probe `types`): "train.py:31: dtype = torch.bfloat16", decisions first."""

    bf16: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions of what a rank has loaded (record of probe `versions`); None: not loaded, or not told by its files."""

    torch: str | None = None
    nccl: str | None = None
    python: str | None = None
