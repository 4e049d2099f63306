"""The source of a job that is gone: of scripts given along, or that still lie where the stacks say.

A file counts only where it fits: every function that a stack names must be around its line there, most lines must name
what is called from them, and the file must not be younger than the evidence. Files are parsed in a child process that
they cannot harm, never imported.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from hangdoc.analysis.ranks.call_path import is_library
from hangdoc.evidence import Frame, Place, RankEvidence, Snapshot, Source, Stack, Stacks, Variable
from hangdoc.introspect.p2p_peers import ARGUMENTS
from hangdoc.introspect.place_records import places_of
from hangdoc.system import sandbox
from hangdoc.system.target_files import Content, TargetFiles, content

C10D = "torch/distributed/distributed_c10d.py"


class Call(NamedTuple):
    """A send or receive on a stack: what is called, and from where in the user's own code."""

    file: str
    line: int
    function: str


Frames = set[tuple[str, str | None]]  # function, and the one of the user's own code that it is seen to call
Lines = Mapping[str, Mapping[int, Frames]]  # file -> line -> frames there
Calls = Mapping[Call, Sequence[int]]  # sends and receives -> the ranks that are in them

MAX_BYTES = 1_000_000  # a larger file is generated code
MOST_FILES = 500
MOST_READ_BYTES = 64 << 20  # of all of them
_PARSING_S = 30.0
_LEFT = "hangdoc.introspect.script:left"


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A file that may be what ran as `file`."""

    file: str
    path: Path
    given: bool  # named by the user, not by the stacks


@dataclass(frozen=True, slots=True)
class _Script:
    """What a file that was parsed says of the lines of the stacks."""

    places: Mapping[int, Place]
    around: Mapping[int, tuple[int, int, str] | None]
    partners: Mapping[Call, Sequence[int | None]]  # by rank, as in Calls


def with_source(
    shots: Sequence[Snapshot], given: Iterable[Path], taken: float | None, problem: Callable[[str], None]
) -> tuple[Snapshot, ...]:
    """The snapshots with a record `source` for ranks of which stacks were found and none was taken along.

    `taken`: Unix time (s) when the evidence was last written; None: unknown.
    """
    lines = _lines(shots)
    if not lines:
        return tuple(shots)
    calls = _calls(shots)
    problems: list[str] = []
    candidates = list(_candidates(list(islice(lines, MOST_FILES)), list(given)))
    scripts = _chosen(candidates, _parsed(candidates, lines, calls, _size(shots), taken), lines, problems)
    for text in problems:
        problem(text)
    if not scripts:
        if not problems:
            name = Path(next(iter(lines))).name
            problem(
                f"the source of {name} is not here: give it along (`hangdoc report ... {name}`), it tells the loops"
            )
        return tuple(shots)
    places = {f"{file}:{line}": place for file, script in scripts.items() for line, place in script.places.items()}
    partners: dict[int, dict[Call, int]] = defaultdict(dict)
    for call, peers in (item for script in scripts.values() for item in script.partners.items()):
        for rank, peer in zip(calls[call], peers, strict=True):
            if peer is not None:
                partners[rank][call] = peer
    source = Source(places)
    return tuple(replace(shot, ranks=tuple(_with(rank, source, partners) for rank in shot.ranks)) for shot in shots)


def _with(rank: RankEvidence, source: Source, partners: Mapping[int, Mapping[Call, int]]) -> RankEvidence:
    stacks, number = _wanting(rank), rank.target.rank
    if stacks is None:
        return rank
    if number is not None and number in partners:
        stacks = with_partners(stacks, partners[number])
    return replace(rank, records={**rank.records, "source": source, "stacks": stacks})


def _calls(shots: Sequence[Snapshot]) -> Calls:
    """The sends and receives on the stacks of which nothing tells the other rank."""
    found: dict[Call, dict[int, None]] = defaultdict(dict)
    for rank in (rank for shot in shots for rank in shot.ranks):
        number = rank.target.rank
        for stack in stacks.threads if number is not None and (stacks := _wanting(rank)) else ():
            if number is not None and (call := call_of(stack)) is not None:
                found[call[1]][number] = None
    return {call: tuple(ranks) for call, ranks in found.items()}


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


def _candidates(files: Iterable[str], given: Sequence[Path]) -> Iterable[_Candidate]:
    """For each file those given, the most alike in name first, then the one at its place."""
    for file in files:
        named = (path for path in given if path.name == Path(file).name)
        for path in sorted(named, key=lambda path: -_alike(path, file))[:MOST_FILES]:
            yield _Candidate(file, path, given=True)
        if Path(file).is_absolute():
            yield _Candidate(file, Path(file), given=False)


def _parsed(
    candidates: Sequence[_Candidate], lines: Lines, calls: Calls, size: int, taken: float | None
) -> dict[_Candidate, _Script | str]:
    """What the candidates say that are there, or why that is not used."""
    paths = {one: os.path.abspath(one.path) for one in candidates}
    left = MOST_READ_BYTES

    def look(fd: int) -> Content | None:
        nonlocal left
        size = os.fstat(fd).st_size
        left -= size
        return content(fd, MAX_BYTES) if size <= MAX_BYTES and left >= 0 else None

    read = TargetFiles(os.getpid()).each(paths.values(), look)
    found: dict[_Candidate, _Script | str] = {}
    asked: dict[_Candidate, list[Call]] = {}
    questions: list[sandbox.Question] = []
    for one, path in paths.items():
        file = read[path]
        if isinstance(file, Content):
            if not one.given and taken is not None and file.status.st_mtime > taken:
                found[one] = _changed(one.file)
                continue
            asked[one] = [call for call in calls if size and call.file == one.file]
            own = [[call.line, call.function, calls[call], size] for call in asked[one]]
            questions.append((file.data, {"lines": list(lines[one.file]), "calls": own}))
    answers = sandbox.run_each(_LEFT, questions, _PARSING_S) if questions else []
    for (one, own_calls), answer in zip(asked.items(), answers, strict=True):
        if isinstance(answer, sandbox.Failed):
            found[one] = f"{one.path}: could not be parsed ({answer.why}); its loops are not used"
        else:
            found[one] = _script(answer, own_calls)
    return found


def _script(answer: Any, calls: Sequence[Call]) -> _Script:
    around = {int(line): tuple(span) if span else None for line, span in answer["around"].items()}
    return _Script(dict(places_of(answer)), around, dict(zip(calls, answer["partners"], strict=True)))


def _chosen(
    candidates: Iterable[_Candidate], parsed: Mapping[_Candidate, _Script | str], lines: Lines, problems: list[str]
) -> dict[str, _Script]:
    """The first that fits, for each file."""
    found: dict[str, _Script] = {}
    for one in candidates:
        script = parsed.get(one)
        if script is None or one.file in found:
            continue
        if isinstance(script, str):
            problems.append(script)
        elif _fits(script, lines[one.file]):
            found[one.file] = script
        elif one.given:
            problems.append(
                f"{one.path}: not the {one.path.name} that ran (its functions lie on other lines); "
                "its loops are not used"
            )
        else:
            problems.append(_changed(one.file))
    return found


def _changed(file: str) -> str:
    return f"{file} has changed since; its loops and branches are not used"


def _alike(path: Path, file: str) -> int:
    """How many parts, from the last, two paths have in common."""
    pairs = zip(reversed(path.absolute().parts), reversed(Path(file).parts), strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), 99)


def _fits(script: _Script, named: Mapping[int, Frames]) -> bool:
    """Whether each line lies in the functions that frames on it name, and most name what is called from there."""
    right = wrong = 0
    for line, frames in named.items():
        place = script.places.get(line)
        if place is None or not all(_within(function, line, script.around[line]) for function, _ in frames):
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


# --- peers of sends and receives ------------------------------------------------------------------


def call_of(stack: Stack) -> tuple[int, Call] | None:
    """The innermost one of which no variable is known, and the index of its frame."""
    for i, frame in enumerate(stack.frames):
        if frame.file.endswith(C10D) and frame.function in ARGUMENTS and not frame.variables:
            own = next((one for one in stack.frames[i + 1 :] if not is_library(one.file)), None)
            if own is not None:
                return i, Call(own.file, own.line or 0, frame.function)
    return None


def with_partners(stacks: Stacks, partners: Mapping[Call, int]) -> Stacks:
    """The stacks of a rank, with the other rank as a variable of each send and receive of which it is known."""
    threads = tuple(_told(stack, partners) for stack in stacks.threads)
    return stacks if threads == stacks.threads else replace(stacks, threads=threads)


def _told(stack: Stack, partners: Mapping[Call, int]) -> Stack:
    found = call_of(stack)
    if found is None or found[1] not in partners:
        return stack
    frames: list[Frame] = list(stack.frames)
    i, call = found
    peer = partners[call]
    told = Variable(ARGUMENTS[call.function], str(peer), argument=True, number=float(peer), kind="int")
    frames[i] = replace(frames[i], variables=(told,))
    return replace(stack, frames=tuple(frames))
