"""Analysis `tallies`: whose counters stand apart in tables and lists of a text: steps done, errors of links.

Ranks of a job that synchronises are at the same step, or one apart where a table was made in between. A rank that is
behind several equal ones is the one that they wait for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from hangdoc.analysis import Case, Detector, Key, Suspect
from hangdoc.analysis.logs.figures import MAX_SUSPECTS, Numbered, called, case_figures, numbered_as_ranks, suspect
from hangdoc.analysis.thresholds import COMPARABLE_RANKS, LINK_ERRORS, LINK_ERRORS_APART
from hangdoc.evidence.figures import Figure

MAX_SHOWN = 4
COUNT, LOSSES = "count", "losses"  # kinds of figures

Owner = tuple[str, str]  # kind, name


@dataclass(frozen=True, slots=True)
class TalliesJob:
    """None or empty: no owner stands apart."""

    behind: tuple[Suspect, ...] = ()  # ranks that counted fewer steps or calls than several equal ones
    behind_why: str | None = None  # "step: 4372 on rank 2; 4410 on the other 7"
    lossy: tuple[Suspect, ...] = ()  # hosts or ranks with by far the most errors of a link
    lossy_why: str | None = None  # "retrans: 48122 on nd-07; 12 on the other 3"


class TalliesDetector(Detector[object, TalliesJob]):
    job_facts = TalliesJob

    def derive(self, case: Case) -> tuple[dict[Key, object], TalliesJob]:
        records = case_figures(case)
        numbered = numbered_as_ranks(records)
        values = [one for record in records for one in record.values if one.kind in (COUNT, LOSSES)]
        behind, behind_why = _first(_behind(name, tally) for name, tally in _tallies(values, COUNT))
        lossy, lossy_why = _first(_lossy(name, tally) for name, tally in _tallies(values, LOSSES))
        return {}, TalliesJob(_suspects(behind, numbered), behind_why, _suspects(lossy, numbered), lossy_why)


def _tallies(values: Iterable[Figure], kind: str) -> Iterable[tuple[str, Mapping[Owner, float]]]:
    """By name, the counters of all owners at one time: each has one value, or those of the newest line are used."""
    series: dict[str, dict[Owner, list[Figure]]] = defaultdict(lambda: defaultdict(list))
    for one in values:
        if one.kind == kind and one.owner and float(one.value).is_integer():
            series[one.name][one.of, one.owner].append(one)
    for name, owners in series.items():
        last = max(one.line for several in owners.values() for one in several)
        if all(len(several) == 1 for several in owners.values()):
            tally = {owner: float(several[0].value) for owner, several in owners.items()}
        else:
            tally = {
                owner: float(one.value) for owner, several in owners.items() for one in several if one.line == last
            }
        if len(tally) >= COMPARABLE_RANKS:
            yield name, tally


def _behind(name: str, tally: Mapping[Owner, float]) -> tuple[Sequence[Owner], str | None]:
    (usual, count), *_ = Counter(tally.values()).most_common()
    behind = [owner for owner, value in tally.items() if value < usual]
    if not behind or count < COMPARABLE_RANKS - 1 or len(behind) + count < len(tally) or len(behind) >= count:
        return (), None
    return behind, _why(name, tally, behind, usual)


def _lossy(name: str, tally: Mapping[Owner, float]) -> tuple[Sequence[Owner], str | None]:
    usual = median(tally.values())
    lossy = [one for one, value in tally.items() if value >= LINK_ERRORS and value >= LINK_ERRORS_APART * usual]
    return (lossy, _why(name, tally, lossy, usual)) if 0 < 2 * len(lossy) < len(tally) else ((), None)


def _why(name: str, tally: Mapping[Owner, float], owners: Sequence[Owner], usual: float) -> str:
    shown = ", ".join(f"{tally[owner]:.0f} on {called(*owner)}" for owner in owners[:MAX_SHOWN])
    return f"{name}: {shown}; {usual:.0f} on the other {len(tally) - len(owners)}"


def _first(found: Iterable[tuple[Sequence[Owner], str | None]]) -> tuple[Sequence[Owner], str | None]:
    return next(((owners, why) for owners, why in found if owners), ((), None))


def _suspects(owners: Sequence[Owner], numbered: Numbered) -> tuple[Suspect, ...]:
    named = (suspect(of, owner, numbered) for of, owner in owners)
    return tuple(one for one in named if one is not None)[:MAX_SUSPECTS]


ANALYSIS = TalliesDetector()
