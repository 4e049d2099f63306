"""Analysis `inputs`: the share of its time that each rank waits for data, and the code that makes the data.

A rank starves while it is in its loader and its connections to other ranks are silent: its peers wait for its step.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hangdoc.analysis import Analysis, Case, Key
from hangdoc.analysis.data.batch_queues import filled_at, takes_batch
from hangdoc.analysis.data.workers import LOADER, is_importing, is_loading, user_line, waits_for_helpers, worker_story
from hangdoc.analysis.network.data_connections import data_connections
from hangdoc.analysis.network.tcp_counters import identity, idle, least
from hangdoc.analysis.ranks.call_path import CallPath, Step, per_path
from hangdoc.analysis.ranks.process import process_looks
from hangdoc.analysis.ranks.progress import Look, ProgressFacts, activities, looks_at
from hangdoc.analysis.thresholds import GAP_S, MOSTLY
from hangdoc.evidence import Process, Sockets, Source, Stacks

STARTS = re.compile(r"^(__init__|_get_iterator|__iter__|_reset|start)$")  # functions in loader files that start workers
FETCHES = frozenset({"fetch", "_next_data", "__next__"})  # functions in loader files that get a batch
ENDS = "_shutdown_workers"  # function in loader files that waits for finished workers
PREPARES = re.compile(r"/datasets/(arrow_dataset|dataset_dict|iterable_dataset|builder|load)\.py|/tokenizers/")


@dataclass(frozen=True, slots=True)
class DataLoadingFacts:
    """One rank over the looks. Shares are 0..1. None: stacks not seen."""

    share: float | None = None  # share of the looks that found the rank in its loader
    # Longest time in the loader without a byte to or from other ranks, seconds; without the first batch of new workers.
    starved_s: float | None = None
    batch_s: float | None = None  # seconds per batch, from the counter of the loop over the loader
    gap_s: float | None = None  # seconds without data: starved_s; if connections were not seen, batch_s
    prepare_share: float | None = None  # share of the looks with helpers, or a library, preparing a data set for it
    where: str | None = None  # most frequent line of user code that makes the data: "f (data.py:31)"
    text: str | None = None  # source line at that site
    worker: int | None = None  # PID of the worker at that site; None: the rank itself
    awaited: bool | None = None  # another rank spends most of its time waiting for other ranks
    advancing: bool | None = None  # it is in a timed sleep in its loader


UNSEEN = DataLoadingFacts()


class DataLoadingAnalysis(Analysis[DataLoadingFacts, None]):
    rank_facts = DataLoadingFacts

    def derive(self, case: Case) -> tuple[dict[Key, DataLoadingFacts], None]:
        waits = {key: _waits(case, key) for key in case.ranks}
        waiting = sum(waits.values())
        return {key: _facts(case, key, waiting > waits[key]) for key in case.ranks}, None


def _facts(case: Case, key: Key, awaited: bool) -> DataLoadingFacts:
    looks = looks_at(case, key)
    if not looks or case.ranks[key].alive is False:
        return UNSEEN
    code = case.once(("inputs", activities(looks)), lambda: _code(looks))
    workers = list(_by_workers(case, key))
    if code.loading:
        workers += [(None, step) for step in filled_at(case, key)]
    if code.loading or workers:
        return _derive(case, key, code, workers, awaited)
    # Ranks that were at the same places, and never in a loader, share their facts.
    return case.once((code, awaited), lambda: _derive(case, key, code, (), awaited))


def _derive(
    case: Case, key: Key, code: _Code, workers: Sequence[tuple[int | None, Step]], awaited: bool
) -> DataLoadingFacts:
    looks = looks_at(case, key)
    loading = [looks[at] for at in code.loading]
    made = [*code.made, *workers]
    worker, step = _most_frequent(made)
    gaps = _gaps(case, key, loading)
    starved_s = max(_without_first_batch(case, key, gaps), default=0.0) if gaps else None
    batch_s = _batch_s(looks) if loading else None
    return DataLoadingFacts(
        share=len(loading) / len(looks),
        starved_s=starved_s,
        batch_s=batch_s,
        gap_s=batch_s if starved_s is None else starved_s,
        prepare_share=code.preparing / len(looks),
        where=step.site if step else None,
        text=step.place.text if step and step.place else None,
        worker=worker,
        awaited=awaited,
        advancing=(bool(loading) and loading[-1] is looks[-1] and _sleeps(case, key)) or None,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Code:
    """Summary of the code that a rank was seen in; ranks that did the same throughout share one object."""

    loading: tuple[int, ...]  # indices of the looks that found it in its loader
    preparing: int  # number of looks that found it preparing a data set
    made: tuple[tuple[None, Step], ...]  # user code in the rank itself that makes the data


def _code(looks: Sequence[Look]) -> _Code:
    loading = tuple(at for at, look in enumerate(looks) if _in_loader(look.path))
    return _Code(loading, sum(_prepares(look.path) for look in looks), tuple(_by_itself(looks)))


def _waits(case: Case, key: Key) -> bool:
    progress = case.facts(ProgressFacts)
    return (progress[key].wait_share or 0.0) >= MOSTLY


def _sleeps(case: Case, key: Key) -> bool:
    process = case.record(key, "cpu")
    threads = process.threads if isinstance(process, Process) else ()
    return any(thread.tid == key[1] and "nanosleep" in (thread.wchan or "") for thread in threads)


@per_path
def _in_loader(path: CallPath) -> bool:
    """In its loader, but neither starting nor ending its workers; or where it takes a batch from a queue."""
    inside = [step.function for step in path.steps if LOADER.search(step.file)]
    starting = any(map(STARTS.search, inside)) and not waits_for_helpers(path) and FETCHES.isdisjoint(inside)
    return (bool(inside) and not starting and ENDS not in inside) or takes_batch(path)


@per_path
def _prepares(path: CallPath) -> bool:
    return (waits_for_helpers(path) and not is_loading(path)) or any(PREPARES.search(s.file) for s in path.steps)


def _gaps(case: Case, key: Key, loading: Sequence[Look]) -> list[tuple[Look, float]]:
    """For each of these looks: seconds since the last byte on the rank's connections to other ranks."""
    if not loading:
        return []
    known = {identity(data.connection) for data in data_connections(case).get(key, ())}
    sockets = {at: record.connections for at, record in case.series(key, "sockets") if isinstance(record, Sockets)}
    ages = [
        (look, least(idle(one) for one in sockets.get(look.at_s, ()) if identity(one) in known)) for look in loading
    ]
    return [(look, age) for look, age in ages if age is not None]


def _without_first_batch(case: Case, key: Key, gaps: Sequence[tuple[Look, float]]) -> Iterator[float]:
    """Lengths of the gaps, without waits for a first batch: workers that start, an index that is read."""
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
    """Seconds per batch, from the fastest loop counter outside the loader's frames. It starts again in each epoch."""
    if looks[0].thread is looks[-1].thread:
        return None
    grown: dict[str, float] = {}
    moved = [looks[0], *(b for a, b in pairwise(looks) if a.thread is not b.thread)]
    for old, new in pairwise(map(_counters, moved)):
        for name, value in new.items():
            grown[name] = grown.get(name, 0.0) + max(0.0, value - old.get(name, value))
    most = max(grown.values(), default=0.0)
    return (looks[-1].at_s - looks[0].at_s) / most if most > 0 else None


def _counters(look: Look) -> dict[str, float]:
    """Loop counters outside the loader's frames, by function and name."""
    steps = [(look.thread[depth], name) for depth, name in _outer_counters(look.path)]
    return {
        f"{step.function}.{name}": variable.number
        for step, name in steps
        if (variable := step.variables.get(name)) and variable.number is not None
    }


@per_path
def _outer_counters(path: CallPath) -> Sequence[tuple[int, str]]:
    inside = next((depth for depth, step in enumerate(path.steps) if LOADER.search(step.file)), len(path.steps))
    return [(depth, name) for depth, name in path.counters if depth < inside]


def _most_frequent(made: Sequence[tuple[int | None, Step]]) -> tuple[int | None, Step | None]:
    """Process and line at which the most frequent function was seen most often."""
    if not made:
        return None, None
    function, _ = Counter((step.file, step.function) for _, step in made).most_common(1)[0]
    inside = [(pid, step) for pid, step in made if (step.file, step.function) == function]
    worker, site = Counter((pid, step.site) for pid, step in inside).most_common(1)[0][0]
    return worker, next(step for pid, step in inside if (pid, step.site) == (worker, site))


def _by_itself(looks: Sequence[Look]) -> Iterator[tuple[None, Step]]:
    """User code that the loader called in the rank itself."""
    for look in (look for look in looks if is_loading(look.path)):
        steps = look.path.steps
        inside = next(depth for depth, step in enumerate(steps) if LOADER.search(step.file))
        own = user_line(steps[inside + 1 :])
        if own is not None:
            yield None, own


def _by_workers(case: Case, key: Key) -> Iterator[tuple[int | None, Step]]:
    """User code that the rank's workers were seen in, with their PIDs."""
    for _, rank in case.rounds(key):
        stacks = rank.records.get("stacks")
        for pid, threads in stacks.children if isinstance(stacks, Stacks) else ():
            source = rank.records.get("source")
            steps = worker_story(threads, source if isinstance(source, Source) else None)
            own = None if is_importing(steps) else user_line(steps)
            if own is not None:
                yield pid, own


ANALYSIS = DataLoadingAnalysis()
