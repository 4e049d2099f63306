"""Analysis `skew`: do the ranks read different data: other folders, how many entries they have, and why?

Ranks that read one folder each by design show no skew if the folders have about the same number of entries.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hangdoc.analysis import Analysis, Case, Key
from hangdoc.analysis.ranks.divergence import DivergenceFacts
from hangdoc.analysis.ranks.progress import ProgressFacts, looks_at, own_steps
from hangdoc.analysis.thresholds import HALF, MORE_ENTRIES
from hangdoc.evidence import Environ, Io

PATH = re.compile(r"^[\"'](/[^\"']*)[\"']$")
OPEN = "open files"

Place = tuple[str, int]  # folder and number of its entries


@dataclass(frozen=True, slots=True)
class DataPathFacts:
    """One rank's data folder, compared with the other ranks. None: the ranks agree, or no folder was seen on all."""

    outlier: bool | None = None  # it reads another folder than most ranks; on a tie, the waited-for or smaller side
    folder: str | None = None  # the folder that this rank reads
    entries: int | None = None  # number of entries in it
    name: str | None = None  # source of the path: "root in run (train.py)", or "open files"
    variable: str | None = None  # environment variable that differs and points to the folder
    value: str | None = None  # its value on this rank; None: not set
    value_others: str | None = None  # its value on the other side; None: not set
    parted: bool | None = None  # the ranks are at different code positions, divided in the same way as by folder


class DataPathAnalysis(Analysis[DataPathFacts, None]):
    rank_facts = DataPathFacts
    seen_by = ("environ", "io")

    def derive(self, case: Case) -> tuple[dict[Key, DataPathFacts], None]:
        facts = dict.fromkeys(case.ranks, DataPathFacts())
        sources = {key: _sources(case, key) for key in case.ranks}
        for name in _common(sources):
            places = {key: sources[key][name] for key in case.ranks}
            outliers = _outliers(case, places)
            if outliers:
                parted = _parted(case, outliers)
                sides = {side: next(key for key in places if (key in outliers) is side) for side in (True, False)}
                facts = {
                    key: _facts(case, key, name, places, outliers, sides[key not in outliers], parted) for key in places
                }
                break
        return facts, None


def _common(sources: Mapping[Key, Mapping[str, Place]]) -> list[str]:
    """Names of path sources that every rank has; variables come before open files."""
    everywhere = set.intersection(*(set(names) for names in sources.values())) if len(sources) > 1 else set[str]()
    return sorted(everywhere, key=lambda name: (name == OPEN, name))


def _sources(case: Case, key: Key) -> dict[str, Place]:
    """Folders named by a rank's variables, and the folder with most of its open files."""
    records = [io for _, io in case.series(key, "io") if isinstance(io, Io)]
    entries = {folder.path: folder.entries for io in records for folder in io.folders}
    if not entries:
        return {}
    found: dict[str, Place] = {}
    for name, path in _path_variables(case, key):
        if path in entries:
            found[name] = (path, entries[path])
    opened = Counter(os.path.dirname(file) for io in records for file in io.files)
    usual = next((folder for folder, _ in opened.most_common() if folder in entries), None)
    if usual is not None:
        found[OPEN] = (usual, entries[usual])
    return found


def _path_variables(case: Case, key: Key) -> Iterator[tuple[str, str]]:
    """Variables in the user's own frames that hold an absolute path, and that path."""
    for step in own_steps(looks_at(case, key)):
        for variable in step.variables.values():
            if "/" in variable.text and (match := PATH.match(variable.text)):
                where = f"{step.function} ({step.base})"
                yield f"{variable.name} in {where}", match[1].rstrip("/") or "/"


def _outliers(case: Case, places: Mapping[Key, Place]) -> frozenset[Key]:
    """Ranks that read another folder than most, with far more or fewer entries. Empty: none.

    Most ranks: as many as possible with folders of a similar size. On a tie: those that wait, or that have more data.
    """
    folders, sizes = {folder for folder, _ in places.values()}, {entries for _, entries in places.values()}
    each_its_own = len(folders) == len(places) > 2  # shards, or folders for temporary files
    if each_its_own or not _differ(min(sizes), max(sizes)):
        return frozenset()

    def weight(size: int) -> tuple[int, bool, int]:
        alike = [key for key, (_, entries) in places.items() if not _differ(entries, size)]
        return len(alike), _all_wait(case, alike), size

    usual = max(sizes, key=weight)
    shared = {folder for folder, entries in places.values() if not _differ(entries, usual)}
    return frozenset(key for key, (folder, _) in places.items() if folder not in shared)


def _differ(size: int, other: int) -> bool:
    less, more = sorted((size, other))
    return more >= MORE_ENTRIES * less and more - less >= 2


def _all_wait(case: Case, keys: Sequence[Key]) -> bool:
    """All these ranks mostly wait for other ranks."""
    progress = case.facts(ProgressFacts)
    return all((progress[key].wait_share or 0.0) >= HALF for key in keys)


def _facts(
    case: Case, key: Key, name: str, places: Mapping[Key, Place], outliers: frozenset[Key], other: Key, parted: bool
) -> DataPathFacts:
    """Facts of one rank, compared with `other`, a rank of the other side."""
    folder, entries = places[key]
    variable = _environment_variable(case, key, other, folder, places[other][0])
    return DataPathFacts(
        outlier=key in outliers,
        folder=folder,
        entries=entries,
        name=name,
        variable=variable,
        value=_environment(case, key).get(variable) if variable else None,
        value_others=_environment(case, other).get(variable) if variable else None,
        parted=parted,
    )


def _environment(case: Case, key: Key) -> Mapping[str, str]:
    record = case.record(key, "environ")
    return record.variables if isinstance(record, Environ) else {}


def _environment_variable(case: Case, key: Key, other: Key, folder: str, folder_other: str) -> str | None:
    """An environment variable that differs between the two ranks and points to the folder that one of them reads."""
    own_environment, other_environment = _environment(case, key), _environment(case, other)
    for name in sorted({*own_environment, *other_environment}):
        own, others = own_environment.get(name), other_environment.get(name)
        if own != others and (_contains(own, folder) or _contains(others, folder_other)):
            return name
    return None


def _contains(path: str | None, folder: str) -> bool:
    """`path` is `folder` or one of its parents."""
    return bool(path) and (folder + "/").startswith((path or "").rstrip("/") + "/")


def _parted(case: Case, outliers: frozenset[Key]) -> bool:
    """The outliers and the other ranks are at different code positions."""
    position = case.facts(DivergenceFacts)
    sides = [{facts.side for key, facts in position.items() if (key in outliers) is side} for side in (True, False)]
    return not sides[0] & sides[1] and None not in sides[0] | sides[1]


ANALYSIS = DataPathAnalysis()
