"""SVG of a report: the grid of ranks and the lanes of the timeline. It contains only numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from hangdoc.analysis.ranks.phases import PHASES
from hangdoc.incident.incident import Incident
from hangdoc.incident.timeline import Lane

CELL = 20  # units
NUMBERED = 128  # ranks; with more, the cells are too small for numbers
WIDEST = 1 << 16  # ranks; above this, missing ranks are not drawn
LANE = 1000.0  # units: width of the timeline
THIN = 4.0  # units: width of a single sample
MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Cells:
    """All cells of one phase, as one path."""

    phase: str
    path: str


@dataclass(frozen=True, slots=True)
class Text:
    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True)
class Grid:
    """One cell per rank, row by row."""

    width: int
    height: int
    left: int  # units: width of the row labels
    cells: tuple[Cells, ...]
    blamed: str  # path of the outlines of culprits
    rules: str  # path of the lines between cells
    numbers: tuple[Text, ...]
    labels: tuple[Text, ...]  # first rank of a row
    letter: float  # height of the labels
    stroke: float  # of the outlines


@dataclass(frozen=True, slots=True)
class Bar:
    phase: str
    path: str


def phase_class(phase: str) -> str:
    """A phase as a class name of the style sheet."""
    return phase if phase in PHASES or phase == MISSING else "unknown"


def grid(incident: Incident) -> Grid | None:
    """The ranks of a job in order; ranks without a number, or with a duplicate one, come last."""
    phases, blamed, numbers = _places(incident)
    if not phases:
        return None
    across = 16 if len(phases) <= NUMBERED else 32 if len(phases) <= 1024 else 64 if len(phases) <= 16384 else 128
    columns = min(across, -(-len(phases) // 8) * 8)  # hosts usually have eight ranks, or a fraction or multiple
    rows = -(-len(phases) // columns)
    left = 0 if len(phases) <= NUMBERED else columns * CELL // 12
    letter = columns * CELL / 40
    step = max(1, round(1.6 * letter / CELL))
    paths: dict[str, list[str]] = defaultdict(list)
    for row in range(rows):
        column = 0
        for phase, run in groupby(phases[row * columns : (row + 1) * columns]):
            count = len(list(run))
            paths[phase].append(_box(left + column * CELL, row * CELL, count * CELL))
            column += count
    width, height = left + columns * CELL, rows * CELL
    return Grid(
        width,
        height,
        left,
        tuple(Cells(phase_class(phase), "".join(boxes)) for phase, boxes in paths.items()),
        "".join(_box(left + i % columns * CELL, i // columns * CELL, CELL) for i in blamed),
        "".join(f"M{left + i * CELL} 0V{height}" for i in range(columns + 1))
        + "".join(f"M{left} {i * CELL}H{width}" for i in range(rows + 1)),
        tuple(Text((i % columns + 0.5) * CELL, i // columns * CELL + 13.5, number) for i, number in numbers),
        tuple(Text(left - 6, (row + 0.8) * CELL, str(row * columns)) for row in range(0, rows, step) if left),
        letter,
        max(3.0, letter / 4),
    )


def _places(incident: Incident) -> tuple[list[str], list[int], list[tuple[int, str]]]:
    """The phase of each cell, the cells of culprits, and the numbers to print."""
    lines = incident.verdict.job.ranks
    known = {line.rank for line in lines if line.rank is not None and 0 <= line.rank < WIDEST}
    size = max([*known, *(min(last, WIDEST - 1) for first, last in incident.missing if first < WIDEST)], default=-1) + 1
    phases = [MISSING] * size
    taken, cell_of = set[int](), dict[int, int]()
    for i, line in enumerate(lines):
        if line.rank is not None and line.rank in known and line.rank not in taken:
            taken.add(line.rank)
            phases[line.rank], cell_of[i] = line.phase, line.rank
        else:
            cell_of[i] = len(phases)
            phases.append(line.phase)
    numbered = range(size) if len(phases) <= NUMBERED else ()
    return phases, [cell_of[i] for i in incident.blamed if i in cell_of], [(i, str(i)) for i in numbered]


def _box(x: int, y: int, width: int) -> str:
    return f"M{x} {y}h{width}v{CELL}h-{width}z"


def bars(lane: Lane, window_s: float) -> tuple[Bar, ...]:
    """Stacked shares of the phases over time; a bar is 20 units high."""
    paths: dict[str, list[str]] = defaultdict(list)
    for span in lane.spans:
        x, end = _x(span.start_s, window_s), _x(span.end_s, window_s)
        x, width = (x, end - x) if end - x >= THIN else (min(x, LANE - THIN), THIN)
        y = 0.0
        for phase, share in span.mix:
            height = share * CELL
            paths[phase_class(phase)].append(f"M{x:.1f} {y:.1f}h{width:.1f}v{height:.1f}h-{width:.1f}z")
            y += height
    return tuple(Bar(phase, "".join(boxes)) for phase, boxes in paths.items())


def ticks(ages: Sequence[float], window_s: float, top: int = 0) -> str:
    """A path with a vertical stroke from `top` down for each moment; coinciding strokes are drawn once."""
    return "".join(f"M{x} {top}V{CELL}" for x in sorted({round(_x(age, window_s)) for age in ages}))


def _x(age_s: float, window_s: float) -> float:
    return LANE * (1 + age_s / window_s) if window_s > 0 else LANE


def shown_phases(incident: Incident) -> Iterable[str]:
    """Phases for the legend, in the order of the table."""
    seen = {phase_class(line.phase) for line in incident.verdict.job.ranks}
    seen |= {phase_class(phase) for lane in incident.timeline.lanes for span in lane.spans for phase, _ in span.mix}
    return [phase for phase in PHASES if phase in seen] + [MISSING] * bool(incident.missing)
