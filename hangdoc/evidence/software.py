"""Library versions of a rank, and number types in its source (probes `versions`, `types`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Types:
    """Source lines that mention bfloat16 (record of probe `types`)."""

    bf16: tuple[str, ...]  # "train.py:31: dtype = torch.bfloat16"; lines that choose the type first


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions of loaded libraries (record of probe `versions`); None: not loaded, or unknown."""

    torch: str | None = None
    nccl: str | None = None
    python: str | None = None
