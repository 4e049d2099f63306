"""The last pass over all that leaves: no text of a record shows what looks like a secret.

Probes and readers mask what they take in already, by the names of variables too; this catches what came past them,
whichever renderer shows it. The patterns are those of `probes/_redact.py`, and not the ones of detect-secrets (1.5):
made to gate commits, it says on which line a secret may be and replaces nothing, reports single words of a line given
to it (its entropy plugins), misses `password: hunter2` in prose, needs requests with four more packages, keeps its
settings in a global, takes 0.1 s to import and 0.4 ms a line, thirty times as long as these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from operator import is_
from typing import Any, TypeVar

from probes._redact import HIDDEN, redact

T = TypeVar("T")
_KERNEL = re.compile(r"(/(?:proc|sys/fs/cgroup)/[\w./@:-]+)")  # no secret is in these, but ids of containers are
LONGEST = 16_384  # characters of one text; what is longer is cut: no renderer shows as much


def masked(record: T) -> T:
    """`record`, a tree of dataclasses, tuples and mappings, with every secret in its texts hidden.

    Parts in which nothing is hidden stay the same objects.
    """
    made: T = _Mask().of(record)
    return made


def mask_text(text: str) -> str:
    """One text."""
    shown = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    parts = _KERNEL.split(shown)
    return "".join([part if i % 2 else redact("", part) for i, part in enumerate(parts)])


def hidden(record: object) -> int:
    """In how many texts of a record something is hidden."""
    if isinstance(record, str):
        return HIDDEN in record
    return sum(hidden(part) for part in _parts(record))


class _Mask:
    """One pass; equal texts and identical records, of which large jobs have many, are looked at once."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._records: dict[int, tuple[object, Any]] = {}  # with the original, so that its id stays its own

    def of(self, value: Any) -> Any:
        if isinstance(value, str):
            made = self._texts.get(value)
            if made is None:
                made = self._texts[value] = mask_text(value)
            return value if made == value else made
        if isinstance(value, tuple):
            parts = tuple([self.of(part) for part in value])
            return value if all(map(is_, parts, value)) else parts
        if isinstance(value, Mapping):
            return {self.of(name): self.of(part) for name, part in value.items()}
        if not is_dataclass(value) or isinstance(value, type):
            return value
        if id(value) not in self._records:
            self._records[id(value)] = value, self._record(value)
        return self._records[id(value)][1]

    def _record(self, value: Any) -> Any:
        changed = {
            name: new
            for name in type(value).__dataclass_fields__
            if (new := self.of(old := getattr(value, name))) is not old
        }
        return replace(value, **changed) if changed else value


def _parts(value: Any) -> list[Any]:
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Mapping):
        return [*value, *value.values()]
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, name) for name in type(value).__dataclass_fields__]
    return []
