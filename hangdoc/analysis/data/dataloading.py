"""Analysis `inputs`: how much of its time each rank spends waiting for data, and where that time goes.

A rank starves while it stands in its loader and no byte crosses to or from it: the steps of the others wait for it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from hangdoc.analysis import Case, Key
from hangdoc.analysis.data.workers import LOADER, loads, starts, user_line, waits_for_helpers, worker_story
from hangdoc.analysis.network.data_connections import data_connections
from hangdoc.analysis.network.tcp_counters import identity, idle, least
from hangdoc.analysis.ranks.call_path import Code, Step
from hangdoc.analysis.ranks.process import process_looks
from hangdoc.analysis.ranks.progress import Look, ProgressFacts, looks_at, spots
from hangdoc.evidence import Process, Sockets, Source, Stacks

WAITS = 0.8  # of the looks
GAP_S = 0.5  # without a byte: shorter ones tell nothing
STARTS = re.compile(r"^(__init__|_get_iterator|__iter__|_reset|start)$")  # in the loader's files: its workers are made
ENDS = "_shutdown_workers"  # there too: they have nothing more to do, and are waited for
PREPARES = re.compile(r"/datasets/(arrow_dataset|dataset_dict|iterable_dataset|builder|load)\.py|/tokenizers/")


@dataclass(frozen=True, slots=True)
class DataLoadingFacts:
    """One rank over the looks; None: its stacks were not seen."""

    share: float | None = None  # of the looks that found it in its loader
    starved_s: float | None = None  # longest time without a byte to or from other ranks that it spent there, first
    # batches of workers that were just made left out
    batch_s: float | None = None  # how long a batch takes, by the counter of the loop over the loader it was seen in
    gap_s: float | None = None  # how long it goes on without data: `starved_s`, or `batch_s` where bytes tell nothing
    prepare_share: float | None = None  # of the looks: helpers, or a library, make a data set for it
    where: str | None = None  # most frequent line of the user's own code that makes the data: "f (data.py:31)"
    text: str | None = None  # the source line there
    where_share: float | None = None  # of the looks at the code that makes the data, in that function
    worker: int | None = None  # PID of the worker that was seen there; None: the rank itself
    awaited: bool | None = None  # meanwhile another rank does nothing but wait for the others
    advancing: bool | None = None  # it sleeps in its loader, for a time that it set itself


UNSEEN = DataLoadingFacts()


@dataclass(slots=True)
class DataLoadingAnalysis:
    name: str = "inputs"
    order: int = 44
    rank_facts: type | None = DataLoadingFacts
    job_facts: type | None = None

    def derive(self, case: Case) -> tuple[dict[Key, DataLoadingFacts], None]:
        waits = {key: _waits(case, key) for key in case.ranks}
        waiting = sum(waits.values())
        return {key: _facts(case, key, waiting > waits[key]) for key in case.ranks}, None


def _facts(case: Case, key: Key, awaited: bool) -> DataLoadingFacts:
    looks = looks_at(case, key)
    if not looks or case.ranks[key].alive is False:
        return UNSEEN
    code = case.once(("inputs", spots(looks)), lambda: _code(looks))
    workers = list(_by_workers(case, key))
    if code.loading or workers:
        return _told(case, key, code, workers, awaited)
    # Of ranks that were at the same places, and never in a loader, all the same is told.
    return case.once(("inputs", id(code), awaited), lambda: _told(case, key, code, (), awaited))


def _told(
    case: Case, key: Key, code: _Code, workers: Sequence[tuple[int | None, Step]], awaited: bool
) -> DataLoadingFacts:
    looks = looks_at(case, key)
    loading = [looks[at] for at in code.loading]
    made = [*code.made, *workers]
    worker, step, share = _most(made) if made else (None, None, None)
    gaps = _gaps(case, key, loading)
    starved_s = max(_later(case, key, gaps), default=0.0) if gaps else None
    batch_s = _batch_s(looks) if loading else None
    return DataLoadingFacts(
        share=len(loading) / len(looks),
        starved_s=starved_s,
        batch_s=batch_s,
        gap_s=batch_s if starved_s is None else starved_s,
        prepare_share=code.preparing / len(looks),
        where=step.site if step else None,
        text=step.place.text if step and step.place else None,
        where_share=share,
        worker=worker,
        awaited=awaited,
        advancing=(bool(loading) and loading[-1] is looks[-1] and _sleeps(case, key)) or None,
    )


@dataclass(frozen=True, slots=True)
class _Code:
    """What the places tell that a rank was seen at."""

    loading: tuple[int, ...]  # looks that found it in its loader
    preparing: int
    made: tuple[tuple[None, Step], ...]  # where it makes the data itself


def _code(looks: Sequence[Look]) -> _Code:
    loading = tuple(at for at, look in enumerate(looks) if _feeds(look.code))
    return _Code(loading, sum(_prepares(look.code) for look in looks), tuple(_by_itself(looks)))


def _waits(case: Case, key: Key) -> bool:
    progress: Mapping[Key, ProgressFacts] = case.rank_facts["progress"]
    return (progress[key].wait_share or 0.0) >= WAITS


def _sleeps(case: Case, key: Key) -> bool:
    process = case.record(key, "cpu")
    threads = process.threads if isinstance(process, Process) else ()
    return any(thread.tid == key[1] and "nanosleep" in (thread.wchan or "") for thread in threads)


@lru_cache(maxsize=1024)
def _feeds(code: Code) -> bool:
    """In its loader, and not to start its workers or to end them."""
    inside = [function for file, function in code if LOADER.search(file)]
    starting = any(map(STARTS.search, inside)) and not waits_for_helpers(code) and not _fetches(code)
    return bool(inside) and not starting and ENDS not in inside


def _fetches(code: Code) -> bool:
    return any(function in ("fetch", "_next_data", "__next__") and LOADER.search(file) for file, function in code)


@lru_cache(maxsize=1024)
def _prepares(code: Code) -> bool:
    return (waits_for_helpers(code) and not loads(code)) or any(PREPARES.search(file) for file, _ in code)


def _gaps(case: Case, key: Key, loading: Sequence[Look]) -> list[tuple[Look, float]]:
    """At each of these looks: how long no byte has come or gone on its connections."""
    if not loading:
        return []
    between = {identity(one.connection) for one in data_connections(case).get(key, ())}
    sockets = {at: record.connections for at, record in case.series(key, "sockets") if isinstance(record, Sockets)}
    ages = [
        (look, least(idle(one) for one in sockets.get(look.at_s, ()) if identity(one) in between)) for look in loading
    ]
    return [(look, age) for look, age in ages if age is not None]


def _later(case: Case, key: Key, gaps: Sequence[tuple[Look, float]]) -> Iterator[float]:
    """The ages of those that are no wait for a first batch: workers that start, an index that is read."""
    if not gaps:
        return
    processes = dict(process_looks(case, key))
    starts = [look.at_s - age for look, age in gaps if age >= GAP_S]
    several = any(after - before >= GAP_S for before, after in pairwise(starts))
    for look, age in gaps:
        process = processes.get(look.at_s)
        made = [child.age_s for child in process.children if child.age_s is not None] if process else []
        if min(made) > age + GAP_S if made else several or _counters(look):
            yield age


def _batch_s(looks: Sequence[Look]) -> float | None:
    """By the counter that grew, of a loop outside the loader's frames."""
    if looks[0].story is looks[-1].story:
        return None
    first, last = _counters(looks[0]), _counters(looks[-1])
    grown = max((last[name] - first[name] for name in last if name in first), default=0.0)
    return (looks[-1].at_s - looks[0].at_s) / grown if grown > 0 else None


def _counters(look: Look) -> dict[str, float]:
    """Of the loops outside the loader's frames."""
    if not look.spot.counters:
        return {}
    files = [step.file for step in look.story]
    inside = next((at for at, file in enumerate(files) if _of_loader(file)), len(files))
    steps = [(look.story[at], name) for at, name in look.spot.counters if at < inside]
    return {
        f"{step.function}.{name}": one.number
        for step, name in steps
        if (one := step.variables.get(name)) and one.number is not None
    }


@lru_cache(maxsize=1024)
def _of_loader(file: str) -> bool:
    return bool(LOADER.search(file))


def _most(made: Sequence[tuple[int | None, Step]]) -> tuple[int | None, Step | None, float | None]:
    """The function seen most: the process and the line seen most in it, and its share of the looks."""
    if not made:
        return None, None, None
    functions = Counter((step.file, step.function) for _, step in made)
    function, often = functions.most_common(1)[0]
    inside = [(pid, step) for pid, step in made if (step.file, step.function) == function]
    worker, site = Counter((pid, step.site) for pid, step in inside).most_common(1)[0][0]
    return worker, next(step for pid, step in inside if (pid, step.site) == (worker, site)), often / len(made)


def _by_itself(looks: Sequence[Look]) -> Iterator[tuple[None, Step]]:
    """The user's lines below the frames of the loader."""
    for look in (look for look in looks if loads(look.code)):
        inside = [i for i, step in enumerate(look.story) if LOADER.search(step.file)]
        own = user_line(look.story[inside[0] + 1 :])
        if own is not None:
            yield None, own


def _by_workers(case: Case, key: Key) -> Iterator[tuple[int | None, Step]]:
    """The user's lines that its workers were seen at."""
    for _, rank in case.rounds(key):
        stacks = rank.records.get("stacks")
        for pid, threads in stacks.children if isinstance(stacks, Stacks) else ():
            source = rank.records.get("source")
            steps = worker_story(threads, source if isinstance(source, Source) else None)
            own = None if starts(steps) else user_line(steps)
            if own is not None:
                yield pid, own


ANALYSIS = DataLoadingAnalysis()
