"""Library versions of a rank, and number types in its source (probes `versions`, `types`)."""

from __future__ import annotations

from hangdoc.evidence.record import Record


class Types(Record, frozen=True):
    """Source lines that mention bfloat16 (record of probe `types`)."""

    bf16: tuple[str, ...]  # "train.py:31: dtype = torch.bfloat16"; lines that choose the type first


class Versions(Record, frozen=True):
    """Versions of loaded libraries (record of probe `versions`); None: not loaded, or unknown."""

    torch: str | None = None
    nccl: str | None = None
    python: str | None = None
