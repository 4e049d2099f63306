"""Analysis `skew`: do the ranks read the same data? Folders that differ, how much is in them, and the variable that
sends one rank elsewhere.

Ranks that each read a folder of their own by design are no skew as long as the folders hold about the same.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hangdoc.analysis import Case, Key
from hangdoc.analysis.ranks.divergence import PositionFacts
from hangdoc.analysis.ranks.progress import ProgressFacts, looks_at, own_steps
from hangdoc.evidence import Environ, Io

WAITS = 0.5  # share of the looks
MORE = 2.0  # times as many entries: less is within what shards of one data set differ
PATH = re.compile(r"^[\"'](/[^\"']*)[\"']$")
OPEN = "open files"

Place = tuple[str, int]  # folder and number of its entries


@dataclass(frozen=True, slots=True)
class DataPathFacts:
    """One rank's data against the others'; None: no folder of data was seen on every rank, or they agree."""

    odd: bool | None = None  # it reads another folder than most; of two equal parts: that is waited for, or with less
    folder: str | None = None
    entries: int | None = None
    folder_others: str | None = None
    entries_others: int | None = None
    name: str | None = None  # what holds the path: "root in run (train.py)", or "open files"
    variable: str | None = None  # environment variable that makes the difference
    value: str | None = None  # None: not set here
    value_others: str | None = None
    parted: bool | None = None  # the ranks stand at different places, and divide as their data do


@dataclass(slots=True)
class DataPathAnalysis:
    name: str = "skew"
    order: int = 48
    rank_facts: type | None = DataPathFacts
    job_facts: type | None = None
    on_demand: bool = True

    def derive(self, case: Case) -> tuple[dict[Key, DataPathFacts], None]:
        facts = dict.fromkeys(case.ranks, DataPathFacts())
        sources = {key: _sources(case, key) for key in case.ranks}
        for name in _common(sources):
            places = {key: sources[key][name] for key in case.ranks}
            odd = _odd(case, places)
            if odd:
                parted = _parted(case, odd)
                one_of = {part: next(key for key in places if (key in odd) is part) for part in (True, False)}
                facts = {key: _facts(case, key, name, places, odd, one_of[key not in odd], parted) for key in places}
                break
        return facts, None


def _common(sources: Mapping[Key, Mapping[str, Place]]) -> list[str]:
    """What every rank has; what variables say comes before what is merely open."""
    everywhere = set.intersection(*(set(one) for one in sources.values())) if len(sources) > 1 else set[str]()
    return sorted(everywhere, key=lambda name: (name == OPEN, name))


def _sources(case: Case, key: Key) -> dict[str, Place]:
    """The folders that a rank's variables name, and the one most of its open files were in."""
    records = [io for _, io in case.series(key, "io") if isinstance(io, Io)]
    entries = {folder.path: folder.entries for io in records for folder in io.folders}
    if not entries:
        return {}
    found: dict[str, Place] = {}
    for name, path in _named(case, key):
        if path in entries:
            found[name] = (path, entries[path])
    opened = Counter(os.path.dirname(file) for io in records for file in io.files)
    usual = next((folder for folder, _ in opened.most_common() if folder in entries), None)
    if usual is not None:
        found[OPEN] = (usual, entries[usual])
    return found


def _named(case: Case, key: Key) -> Iterator[tuple[str, str]]:
    for step in own_steps(looks_at(case, key)):
        for variable in step.variables.values():
            if "/" in variable.text and (match := PATH.match(variable.text)):
                where = f"{step.function} ({step.short.rsplit('/', 1)[-1]})"
                yield f"{variable.name} in {where}", match[1].rstrip("/") or "/"


def _odd(case: Case, places: Mapping[Key, Place]) -> frozenset[Key]:
    """The ranks whose folder is not the usual one, where that makes a difference; empty where all agree."""
    by_folder: dict[str, list[Key]] = {}
    for key, (folder, _) in places.items():
        by_folder.setdefault(folder, []).append(key)
    counts = [entries for _, entries in places.values()]
    if len(by_folder) != 2 or max(counts) < MORE * min(counts) or max(counts) - min(counts) < 2:
        return frozenset()
    sides = sorted((len(keys), _wait(case, keys), places[keys[0]][1], folder) for folder, keys in by_folder.items())
    return frozenset(by_folder[sides[0][3]])


def _wait(case: Case, keys: Sequence[Key]) -> bool:
    """They mostly wait for other ranks."""
    progress: Mapping[Key, ProgressFacts] = case.rank_facts["progress"]
    return all((progress[key].wait_share or 0.0) >= WAITS for key in keys)


def _facts(
    case: Case, key: Key, name: str, places: Mapping[Key, Place], odd: frozenset[Key], other: Key, parted: bool
) -> DataPathFacts:
    """Of one rank, beside one of the `other` part."""
    (folder, entries), (folder_others, entries_others) = places[key], places[other]
    variable = _variable(case, key, other, folder, folder_others)
    return DataPathFacts(
        odd=key in odd,
        folder=folder,
        entries=entries,
        folder_others=folder_others,
        entries_others=entries_others,
        name=name,
        variable=variable,
        value=_environment(case, key).get(variable) if variable else None,
        value_others=_environment(case, other).get(variable) if variable else None,
        parted=parted,
    )


def _environment(case: Case, key: Key) -> Mapping[str, str]:
    record = case.record(key, "environ")
    return record.variables if isinstance(record, Environ) else {}


def _variable(case: Case, key: Key, other: Key, here: str, there: str) -> str | None:
    """A variable that one of the two does not have, or has otherwise, and that leads to the folder it reads."""
    mine, its = _environment(case, key), _environment(case, other)
    for name in sorted({*mine, *its}):
        ours, theirs = mine.get(name), its.get(name)
        if ours != theirs and (_leads(ours, here) or _leads(theirs, there)):
            return name
    return None


def _leads(value: str | None, folder: str) -> bool:
    return bool(value) and (folder + "/").startswith((value or "").rstrip("/") + "/")


def _parted(case: Case, odd: frozenset[Key]) -> bool:
    position: Mapping[Key, PositionFacts] = case.rank_facts["position"]
    sides = [{facts.side for key, facts in position.items() if (key in odd) is part} for part in (True, False)]
    return not sides[0] & sides[1] and None not in sides[0] | sides[1]


ANALYSIS = DataPathAnalysis()
