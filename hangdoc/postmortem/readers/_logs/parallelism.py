"""Whether a text says that its ranks differ by design: stages of a pipeline, or parts of a sharded model."""

from __future__ import annotations

import re
from dataclasses import dataclass

_MORE = r"(?:[2-9]|[1-9]\d{1,3})\b"
_STAGED = re.compile(
    rf"\bpp(?:[_ ]?size)?\s?[=:x]?\s?{_MORE}|\b1f1b\b|\b{_MORE} (?:pipeline )?stages\b|\bpipeline stages?\b"
    rf"|\bpipeline[ _-](?:model[ _-])?parallel(?:ism)?(?:[ _-]size)?\s?[=:]?\s?{_MORE}|\bpipeline parallel(?:ism)?\b"
    r"|\brank ?= ?(?:pipeline |pp )?stage\b|\b(?:per|each|by) (?:pipeline |pp )?stage\b",
    re.IGNORECASE,
)
_SHARDED = re.compile(
    rf"\btp(?:[_ ]?size)?\s?[=:x]?\s?{_MORE}|\bTP rank\b|\btensor parallel(?:ism)?\b|\bexpert parallel(?:ism)?\b"
    rf"|\btensor[ _-](?:model[ _-])?parallel(?:ism)?(?:[ _-]size)?\s?[=:]?\s?{_MORE}"
    r"|(?<!\bno )(?<!\bnot )(?<!\bwithout )\b(?:zero[ -]?(?:stage[ -]?)?[23]|fsdp2?)\b"
    r"|\b(?:flat_?|local )?(?:param(?:eter)?s?|weights?|model|state)[ _-]?(?:is |are )?"
    r"(?:shards?|sharded|partition(?:s|ed)?)\b|\b(?:sharded|partitioned) (?:param(?:eter)?s?|weights?|model|state)",
    re.IGNORECASE,
)


@dataclass(slots=True)
class Parallelism:
    """Takes the lines of a text in order."""

    staged: bool = False  # ranks are stages, with more or less work
    sharded: bool = False  # ranks hold parts, with checksums and norms of their own; also true of stages

    def feed(self, text: str) -> None:
        self.staged = self.staged or _STAGED.search(text) is not None
        self.sharded = self.sharded or self.staged or _SHARDED.search(text) is not None
