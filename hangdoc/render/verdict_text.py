"""What a report rests on, in a line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hangdoc.formatting import size
from hangdoc.render.text import clean

if TYPE_CHECKING:
    from hangdoc.incident.incident import File


def summary(files: Sequence[File]) -> str:
    """`3 files, 12 MiB: 2 Flight Recorder dumps, 1 training log`; empty where no file was read."""
    if not files:
        return ""
    kinds = Counter(clean(file.kind) for file in files)
    sizes = [file.size for file in files if file.size is not None]
    whole = f", {size(sum(sizes))}" if len(sizes) == len(files) else ""
    told = ", ".join(f"{count} {kind}{'s' * (count != 1)}" for kind, count in kinds.most_common())
    return f"{len(files)} file{'s' * (len(files) != 1)}{whole}: {told}"


def about(file: File) -> str:
    """`training log, 12 MiB, sha256 0123456789abcdef`."""
    hashed = f"sha256 {clean(file.sha256)}" if file.sha256 else ""
    return ", ".join(part for part in (clean(file.kind), size(file.size) * (file.size is not None), hashed) if part)
