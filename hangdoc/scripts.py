"""The source of a job that is gone: of scripts given along, or that still lie where the stacks say.

A file counts only where it fits: every function that a stack names must be around its line there, most lines must name
what is called from them, and the file must not be younger than the evidence. Files are parsed, never imported.
"""

from __future__ import annotations

import ast
import os
import stat
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hangdoc.analysis.story import is_library
from hangdoc.evidence import Place, RankEvidence, Snapshot, Source, Stacks
from hangdoc.partners import Script, with_partners
from probes._module import Module

Frames = set[tuple[str, str | None]]  # function, and the one of the user's own code that it is seen to call
Lines = Mapping[str, Mapping[int, Frames]]  # file -> line -> frames there

MAX_BYTES = 1_000_000  # a larger file is generated code
MOST_FILES = 500
_WAIT_S = 5.0  # for files that may lie on storage that does not answer
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def with_source(
    shots: Sequence[Snapshot], given: Iterable[Path], taken: float | None, problem: Callable[[str], None]
) -> tuple[Snapshot, ...]:
    """The snapshots with a record `source` for ranks of which stacks were found and none was taken along.

    `taken`: Unix time (s) when the evidence was last written; None: unknown.
    """
    lines = _lines(shots)
    if not lines:
        return tuple(shots)
    modules: dict[str, Module] = {}
    problems: list[str] = []
    scripts = list(given)

    def look() -> None:
        found: dict[str, Module] = {}
        for file, named in list(lines.items())[:MOST_FILES]:
            if (module := _of_file(file, named, scripts, taken, problems)) is not None:
                found[file] = module
        modules.update(found)

    thread = threading.Thread(target=look, daemon=True)  # a dead mount must not hold up the report
    thread.start()
    thread.join(_WAIT_S)
    for text in list(problems):
        problem(text)
    if thread.is_alive() or not modules:
        if not problems:
            name = Path(next(iter(lines))).name
            problem(
                f"the source of {name} is not here: give it along (`hangdoc report ... {name}`), it tells the loops"
            )
        return tuple(shots)
    places = {key: place for file, module in modules.items() for key, place in _places(file, module, lines[file])}
    told = _Told(Source(places), {file: Script.of(module.tree) for file, module in modules.items()}, _size(shots))
    return tuple(replace(shot, ranks=tuple(told.of(rank) for rank in shot.ranks)) for shot in shots)


@dataclass(frozen=True, slots=True)
class _Told:
    """What the source tells of ranks."""

    record: Source
    scripts: Mapping[str, Script]
    size: int  # ranks of the job, 0: not known

    def of(self, rank: RankEvidence) -> RankEvidence:
        stacks, number = _wanting(rank), rank.target.rank
        if stacks is None:
            return rank
        if self.size and number is not None:
            stacks = with_partners(stacks, self.scripts, number, self.size)
        return replace(rank, records={**rank.records, "source": self.record, "stacks": stacks})


def _size(shots: Sequence[Snapshot]) -> int:
    """As declared; else the ranks that there are, if none is missing between them."""
    targets = [rank.target for shot in shots for rank in shot.ranks]
    numbers = {target.rank for target in targets if target.rank is not None}
    declared = max((target.world_size or 0 for target in targets), default=0)
    return declared or (len(numbers) if numbers and max(numbers) == len(numbers) - 1 else 0)


def _wanting(rank: RankEvidence) -> Stacks | None:
    """The stacks of a rank that is judged without having been watched, and without its source."""
    stacks = rank.records.get("stacks")
    missing = "aftermath" in rank.records and "source" not in rank.records
    return stacks if missing and isinstance(stacks, Stacks) else None


def _lines(shots: Sequence[Snapshot]) -> Lines:
    """The lines of the users' own code on the stacks."""
    found: dict[str, dict[int, Frames]] = defaultdict(lambda: defaultdict(set))
    for rank in (rank for shot in shots for rank in shot.ranks):
        for stack in stacks.threads if (stacks := _wanting(rank)) else ():
            callee: str | None = None
            for frame in stack.frames:
                own = (
                    bool(frame.line) and not frame.native and not is_library(frame.file) and frame.file.endswith(".py")
                )
                if own:
                    found[frame.file][frame.line or 0].add((frame.function, callee))
                callee = frame.function if own and frame.function.strip("_").isidentifier() else None
    return found


def _of_file(
    file: str, named: Mapping[int, Frames], given: Sequence[Path], taken: float | None, problems: list[str]
) -> Module | None:
    """The first file that fits: those given, the most alike in name first, then the one at its place."""
    candidates = sorted((path for path in given if path.name == Path(file).name), key=lambda path: -_alike(path, file))
    for path in candidates:
        module = _parsed(path)
        if module is not None and _fits(module, named):
            return module
        problems.append(
            f"{path}: not the {path.name} that ran (its functions lie on other lines); its loops are not used"
        )
    here = Path(file)
    if not here.is_absolute():
        return None
    try:
        changed = taken is not None and here.stat().st_mtime > taken
    except OSError:
        return None
    module = None if changed else _parsed(here)
    if module is None or not _fits(module, named):
        if changed or module is not None:
            problems.append(f"{file} has changed since; its loops and branches are not used")
        return None
    return module


def _places(file: str, module: Module, named: Mapping[int, Frames]) -> Iterator[tuple[str, Place]]:
    return ((f"{file}:{line}", place) for line in named if (place := module.place(line)) is not None)


def _alike(path: Path, file: str) -> int:
    """How many parts, from the last, two paths have in common."""
    pairs = zip(reversed(path.absolute().parts), reversed(Path(file).parts), strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), 99)


def _parsed(path: Path) -> Module | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return Module.parse(str(path)) if stat.S_ISREG(status.st_mode) and status.st_size <= MAX_BYTES else None


def _fits(module: Module, named: Mapping[int, Frames]) -> bool:
    """Whether each line lies in the functions that frames on it name, and most name what is called from there."""
    spans = [(n.lineno, n.end_lineno or n.lineno, n.name) for n in ast.walk(module.tree) if isinstance(n, _DEFINITIONS)]
    right = wrong = 0
    for line, frames in named.items():
        around = max(((first, last, name) for first, last, name in spans if first <= line <= last), default=None)
        place = module.place(line)
        if place is None or not all(_within(function, line, around) for function, _ in frames):
            return False
        names = {name.rpartition(".")[2] for name in place.calls}
        for callee in {callee for _, callee in frames if callee is not None and not callee.startswith("__")}:
            right, wrong = (right + 1, wrong) if callee in names else (right, wrong + 1)
    return right >= wrong


def _within(function: str, line: int, around: tuple[int, int, str] | None) -> bool:
    """Whether code of a function can run at a line, in the innermost definition around it."""
    if function == "<module>":
        return around is None or around[0] == line
    if function.startswith("<"):
        return True
    return around is not None and around[2] == function and (line > around[0] or around[0] == around[1])
