"""Times that training loops print for each step: how much of a step was a wait for data.

Meters in one line: `Time 9.4 (9.1) Data 8.7 (8.4)` (examples of PyTorch), `data: 0.01 ... time: 0.23` (torchvision),
`time: 0.35, data_time: 0.31` (OpenMMLab, Detectron2), `Time: 0.5s ... Data: 0.4` (timm), `step_time=2.1 data_wait=1.8`.
Tables with a row a rank and a column for the data loader.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._logs.prefixes import PrefixStyle, parse
from hangdoc.postmortem.readers._text_source import text_source

MAX_STEPS = 5000  # lines with meters that are kept per rank
MAX_RANKS = 4096
MAX_LINE = 800  # characters
MAX_SEARCHED = 5000  # lines, for the first meters

_NUMBER = r"\d{1,7}(?:\.\d{1,9})?(?:e[+-]\d{1,2})?"
_UNIT = r"ms|msec|milliseconds|s|sec|secs|seconds|us"
# The name of a meter, its value, its unit, and its average where it has one.
_METER = re.compile(
    rf"(?<![\w./])(?P<name>[A-Za-z][A-Za-z_ /-]{{0,40}}?)(?:[ _]?[(\[]"
    rf"(?P<unit>{_UNIT})[)\]])?[\"']?[ \t]{{0,3}}[:= \t][ \t]{{0,6}}"
    rf"(?P<value>{_NUMBER})[ ]?(?P<after>{_UNIT})?(?![\w.%:/])[ ]?(?:[,(]? ?[(]?(?:avg:? )?(?P<mean>{_NUMBER})"
    rf"(?:{_UNIT})?[)])?"
)
_DATA = re.compile(
    r"(?:(?:avg|mean|train|time)[_ /-]?)?(?:data(?:set|[_ -]?load(?:er|ing)?)?(?:[_ /-]?(?:time|wait|ms|s"
    r"|wait[_ ]time|fetch|loading|next))?"
    r"|dt|(?:batch|data)[_ -]fetch(?:ing)?(?:[_ ]time)?|fetch[_ -]?time|load(?:ing)?[_ -](?:time|data)"
    r"|dataloader[_ ]?(?:ms|s|next|wait)?"
    r"|wait(?:ing)?[_ ](?:for[_ ])?data|next[_ ]batch|batch[_ -]generator|input[_ ](?:time|wait)|get[_ ]batch)",
    re.IGNORECASE,
)
_STEP = re.compile(
    r"(?:(?:avg|mean|train|total)[_ /-]?)?(?:time|(?:batch|step|iter|iteration)[_ -]?(?:time|s)?"
    r"|time[_ ]per[_ ](?:step|iter(?:ation)?)"
    r"|elapsed[_ ]time[_ ]per[_ ]iteration|train_step_timing|bt)",
    re.IGNORECASE,
)
_COUNTS = re.compile("step|iter|iteration|batch", re.IGNORECASE)
_PART = re.compile(  # of a step, besides the wait for data
    r"(?:fwd|bwd|opt|forward|backward|optim(?:izer)?|compute|model|gpu|train|h2d|to[_ ]device|comm"
    r"|all_?reduce)"
    r"(?:[_ -]?(?:time|step|ms|s|compute|backward))?",
    re.IGNORECASE,
)
_SCALE = {"ms": 1e-3, "msec": 1e-3, "milliseconds": 1e-3, "us": 1e-6}
_CELLS = re.compile(r"\s*\|\s*|\t+|\s{2,}|\s*,\s*")
_PLAIN_CELLS = re.compile(r"\s*\|\s*|\s+|\s*,\s*")
_VALUE = re.compile(rf"({_NUMBER}) ?({_UNIT})?")
_COLUMN_UNIT = re.compile(rf"[ _]?[(\[]?\b({_UNIT})[)\]]?$")
RANK_COLUMNS = frozenset({"rank", "global rank", "global_rank", "rk", "r"})


class LoadingTimeReader:
    name = "times of training steps"
    order = 45
    marks = ("data", "Data", "dt ", "dataloader")
    help = "print the time that each step waits for its batch, beside the time of the step"

    def recognises(self, source: Source) -> bool:
        if re.search(rb"data|load|fetch|\bdt\b|batch.generator", source.head, re.IGNORECASE) is None:
            return False
        lines = source.head.decode("utf-8", "replace").split("\n", MAX_SEARCHED)[:MAX_SEARCHED]
        return any(_step(text) or _header(text) for text in lines)

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        source = text_source(source, context)
        with source.open() as file:
            lines = (raw[:MAX_LINE].decode("utf-8", "replace").rstrip("\r\n") for raw in file)
            yield from _pieces(lines, source.name)


@dataclass(slots=True)
class _Steps:
    """The steps of one rank."""

    data: list[float] = field(default_factory=list)  # seconds
    step: list[float] = field(default_factory=list)
    line: int = 0  # of the last
    text: str = ""


def _pieces(lines: Iterable[str], source: str) -> Iterator[Piece]:
    steps: dict[int | None, _Steps] = {}
    table: tuple[int, int, float, int] | None = None  # columns of rank and data, scale, count
    rows: dict[int, tuple[float, int]] = {}
    style = PrefixStyle()
    for number, text in enumerate(lines, 1):
        if table := _header(text) or (table if text.strip(" |-:+=") else None if rows else table):
            if row := _row(text, table):
                if len(rows) < MAX_RANKS:
                    rows.setdefault(row[0], (row[1], number))
                continue
            if not _header(text) and rows and text.strip(" |-:+="):
                table = None
        found = _step(text)
        if found is None:
            continue
        line = parse(text, style)
        own = steps.setdefault(line.rank, _Steps()) if len(steps) < MAX_RANKS else _Steps()
        if len(own.data) < MAX_STEPS:
            own.data.append(found[0])
            own.step.append(found[1])
            own.line, own.text = number, line.text.strip()[:200]
    for rank, own in steps.items():
        if len(own.data) > 1:
            yield Piece(ProcessRef(rank), "logs", Logs((_event(own, source),)))
    for rank, (seconds, number) in rows.items() if len(rows) > 1 else ():
        text = f"rank {rank} waits {seconds:.3g} s for data in each step"
        event = LogEvent("data_wait", text, source, number, None, {"data": f"{seconds:.6f}", "rank": str(rank)})
        yield Piece(ProcessRef(rank), "logs", Logs((event,)))


def _event(own: _Steps, source: str) -> LogEvent:
    """The sums over the steps, without the first one: it waits for the workers to start."""
    data, step = sum(own.data[1:]), sum(own.step[1:])
    fields = {"data": f"{data:.6f}", "step": f"{step:.6f}", "steps": str(len(own.data))}
    return LogEvent("loading_time", own.text, source, own.line, None, fields)


def _step(text: str) -> tuple[float, float] | None:
    """The wait for data and the whole time of one step, in seconds, as one line prints them."""
    if len(text) > MAX_LINE or not any(word in text for word in ("ata", "oad", "fetch", "dt", "generator", "input")):
        return None
    data = step = None
    parts = 0.0
    for found in _METER.finditer(text):
        name = found["name"].strip(" _-/")
        scale = _SCALE.get((found["after"] or found["unit"] or _unit_in(name)).lower(), 1.0)
        value = float(found["value"]) * scale
        last = name.rsplit(" ", 1)[-1]
        if data is None and (_DATA.fullmatch(name) or _DATA.fullmatch(last)):
            data = value
        elif step is None and not _COUNTS.fullmatch(last) and (_STEP.fullmatch(name) or _STEP.fullmatch(last)):
            step = value
        elif _PART.fullmatch(name) or _PART.fullmatch(last):
            parts += value
    if data is None or (step is None and not parts):
        return None
    step = data + parts if step is None else step
    return (data, step) if data <= 1.02 * step else (data, data + step)  # some loops print the rest of the step


def _unit_in(name: str) -> str:
    found = re.search(rf"(?:^|[_ ])({_UNIT})$", name, re.IGNORECASE)
    return found[1] if found else "s"


def _cells(text: str) -> list[str]:
    text = text.strip().strip("|").strip()
    return [
        cell.strip() for cell in (_CELLS if "|" in text or "  " in text or "\t" in text else _PLAIN_CELLS).split(text)
    ]


def _header(text: str) -> tuple[int, int, float, int] | None:
    """The columns of a table with a row a rank, and a column with the wait for data."""
    if len(text) > 400 or "rank" not in text.lower():
        return None
    cells = [cell.lower() for cell in _cells(text)]
    if len(cells) < 2 or any(re.search(r"\d", cell) for cell in cells):
        return None
    rank = next((at for at, cell in enumerate(cells) if cell in RANK_COLUMNS), None)
    for at, cell in enumerate(cells):
        unit = _COLUMN_UNIT.search(cell)
        bare = cell[: unit.start()].strip() if unit else cell
        if rank is not None and at != rank and bare and _DATA.fullmatch(bare):
            return rank, at, _SCALE.get(unit[1] if unit else "s", 1.0), len(cells)
    return None


def _row(text: str, table: tuple[int, int, float, int]) -> tuple[int, float] | None:
    rank_at, data_at, scale, count = table
    cells = _cells(text)
    if len(cells) != count:
        return None
    rank, value = re.fullmatch(r"(?:rank )?(\d{1,6})", cells[rank_at], re.IGNORECASE), _VALUE.fullmatch(cells[data_at])
    if not rank or not value:
        return None
    return int(rank[1]), float(value[1]) * (_SCALE.get(value[2], 1.0) if value[2] else scale)


READER = LoadingTimeReader()
