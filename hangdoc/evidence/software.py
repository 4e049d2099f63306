"""Versions, scripts, configuration and number types of a rank (probes `versions`, `configuration`, `types`)."""

from __future__ import annotations

from collections.abc import Mapping

from hangdoc.evidence.record import Record


class Types(Record, frozen=True):
    """Source lines that mention bfloat16 (record of probe `types`)."""

    bf16: tuple[str, ...]  # "train.py:31: dtype = torch.bfloat16"; lines that choose the type first


class Versions(Record, frozen=True):
    """Versions of loaded libraries (record of probe `versions`); None: not loaded, or unknown."""

    torch: str | None = None
    nccl: str | None = None
    python: str | None = None
    packages: Mapping[str, str] = {}  # versions of installed packages that shape a training, by name
    scripts: Mapping[str, str] = {}  # digests of the user's files that it runs, by base name


class Configuration(Record, frozen=True):
    """Small values in configuration objects (record of probe `configuration`)."""

    values: Mapping[str, str]  # "args.lr" -> "0.1"
