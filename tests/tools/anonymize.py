"""Remove the paths of this machine from a recording.

python -m tests.tools.anonymize FROM TO [PREFIX=NAME ...]
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import zstandard

from tests.support.paths import ROOT


def here() -> dict[str, str]:
    """Prefixes of this machine, the longest first, and what stands in their place."""
    return {str(ROOT): "/repo", sys.prefix: "/venv", sys.base_prefix: "/usr"}


def rewrite(source: Path, target: Path, names: Mapping[str, str]) -> None:
    """Replace the prefixes in every line of a recording."""
    with source.open("rb") as file:
        text = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()
    for prefix in sorted(names, key=len, reverse=True):
        text = text.replace(prefix.encode(), names[prefix].encode())
    target.write_bytes(zstandard.ZstdCompressor(level=19).compress(text))


if __name__ == "__main__":
    given = dict(pair.split("=", 1) for pair in sys.argv[3:])
    rewrite(Path(sys.argv[1]), Path(sys.argv[2]), {**here(), **given})
