"""Adds source lines to stacks of a job that has ended, from given scripts or from the paths in the stacks.

A file is used only if it fits: each line of a stack lies in the function that the stack names, most lines name the
functions called from them, and the file is not newer than the evidence. Files are parsed in a sandboxed child process,
never imported.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from hangdoc.analysis.ranks.call_path import is_library
from hangdoc.evidence import Frame, Place, RankEvidence, Snapshot, Source, Stack, Stacks, Variable
from hangdoc.introspect.parsers.p2p_peers import ARGUMENTS
from hangdoc.introspect.source_records import Guards, guards, places_of
from hangdoc.postmortem.readers.pasted_source import SourceExcerpt
from hangdoc.postmortem.source_excerpts import Shown, shown_by
from hangdoc.postmortem.source_locks import locks_of
from hangdoc.system import sandbox
from hangdoc.system.target_files import Content, TargetFiles, content

C10D = "torch/distributed/distributed_c10d.py"


class Call(NamedTuple):
    """A send or receive on a stack, and the line of user code that called it."""

    file: str
    line: int
    function: str


NamedFrames = set[tuple[str, str | None]]  # function, and the user function that it calls on a stack
SourceLines = Mapping[str, Mapping[int, NamedFrames]]  # file -> line -> frames there
CallRanks = Mapping[Call, Sequence[int]]  # send or receive -> ranks in it

MAX_BYTES = 1_000_000  # larger files are generated code
MAX_FILES = 500
MAX_READ_BYTES = 64 << 20  # of all files
_PARSING_S = 30.0
_PARSER = "hangdoc.introspect.parsers.script_lines:places_and_peers"


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A file that may be the source of `file`."""

    file: str
    path: Path
    given: bool  # named by the user, not by the stacks


@dataclass(frozen=True, slots=True)
class _Script:
    """A parsed file, reduced to the lines on the stacks."""

    places: Mapping[int, Place]
    around: Mapping[int, tuple[int, int, str] | None]
    peers: Mapping[Call, Sequence[int | None]]  # one per rank, in the order of CallRanks
    locks: Sequence[Any] = ()  # `lock_calls.table`


def with_source(
    shots: Sequence[Snapshot],
    given: Iterable[Path],
    evidence_time: float | None,
    warn: Callable[[str], None],
    excerpts: Sequence[SourceExcerpt] = (),
) -> tuple[Snapshot, ...]:
    """Add a record `source` to ranks with stacks but no source.

    `evidence_time`: Unix time (s) of the last write to the evidence; None: unknown. `excerpts`: source that a text has
    beside the stacks; a whole script is preferred.
    """
    lines = _source_lines(shots)
    if not lines:
        return tuple(shots)
    calls = _p2p_calls(shots)
    problems: list[str] = []
    candidates = list(_candidates(list(islice(lines, MAX_FILES)), list(given)))
    parsed = _parsed_scripts(candidates, lines, calls, _world_size(shots), evidence_time)
    scripts = _fitting_scripts(candidates, parsed, lines, problems)
    for text in problems:
        warn(text)
    shown = shown_by(excerpts, shots) if excerpts else Shown({}, {})
    if not scripts and all(place.alone for place in shown.places.values()):
        if not problems:
            name = Path(next(iter(lines))).name
            warn(f"the source of {name} was not found: add it (`hangdoc report ... {name}`) to see loops and branches")
        if not shown.places:
            return tuple(shots)
    places = {
        **shown.places,
        **{f"{file}:{line}": place for file, script in scripts.items() for line, place in script.places.items()},
    }
    locks = {
        **shown.guards,
        **{f"{file}:{line}": guards(one.locks, line) for file, one in scripts.items() for line in one.places},
    }
    peers: dict[int, dict[Call, int]] = defaultdict(dict)
    for script in scripts.values():
        for call, peer_of_rank in script.peers.items():
            for rank, peer in zip(calls[call], peer_of_rank, strict=True):
                if peer is not None:
                    peers[rank][call] = peer
    source = Source(places)
    return tuple(
        replace(shot, ranks=tuple(_with_source_record(one, source, peers, locks) for one in shot.ranks))
        for shot in shots
    )


def _with_source_record(
    rank: RankEvidence, source: Source, peers: Mapping[int, Mapping[Call, int]], guarded: Mapping[str, Guards]
) -> RankEvidence:
    stacks, number = _stacks_without_source(rank), rank.target.rank
    if stacks is None:
        return rank
    if number is not None and number in peers:
        stacks = with_peers(stacks, peers[number])
    locks = locks_of(stacks, guarded) if "locks" not in rank.records else None
    return replace(
        rank, records={**rank.records, "source": source, "stacks": stacks, **({"locks": locks} if locks else {})}
    )


def _p2p_calls(shots: Sequence[Snapshot]) -> CallRanks:
    """Sends and receives on the stacks whose peer is unknown, with the ranks in them."""
    found: dict[Call, dict[int, None]] = defaultdict(dict)
    for rank in (rank for shot in shots for rank in shot.ranks):
        number = rank.target.rank
        for stack in stacks.threads if number is not None and (stacks := _stacks_without_source(rank)) else ():
            if number is not None and (call := innermost_call(stack)) is not None:
                found[call[1]][number] = None
    return {call: tuple(ranks) for call, ranks in found.items()}


def _world_size(shots: Sequence[Snapshot]) -> int:
    """The declared world size, else the number of ranks if they have no gaps, else 0."""
    targets = [rank.target for shot in shots for rank in shot.ranks]
    numbers = {target.rank for target in targets if target.rank is not None}
    declared = max((target.world_size or 0 for target in targets), default=0)
    return declared or (len(numbers) if numbers and max(numbers) == len(numbers) - 1 else 0)


def _stacks_without_source(rank: RankEvidence) -> Stacks | None:
    """The stacks of a rank that was not watched live and has no source; None: no such stacks."""
    stacks = rank.records.get("stacks")
    missing = "aftermath" in rank.records and "source" not in rank.records
    return stacks if missing and isinstance(stacks, Stacks) else None


def _source_lines(shots: Sequence[Snapshot]) -> SourceLines:
    """The lines of user code on the stacks."""
    found: dict[str, dict[int, NamedFrames]] = defaultdict(lambda: defaultdict(set))
    for rank in (rank for shot in shots for rank in shot.ranks):
        for stack in stacks.threads if (stacks := _stacks_without_source(rank)) else ():
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
    """Candidates for each file: given scripts of that name, closest path first, then the file at that path."""
    for file in files:
        named = (path for path in given if path.name == Path(file).name)
        for path in sorted(named, key=lambda path: -_common_suffix_length(path, file))[:MAX_FILES]:
            yield _Candidate(file, path, given=True)
        if Path(file).is_absolute():
            yield _Candidate(file, Path(file), given=False)


def _parsed_scripts(
    candidates: Sequence[_Candidate], lines: SourceLines, calls: CallRanks, size: int, evidence_time: float | None
) -> dict[_Candidate, _Script | str]:
    """The parsed candidates, or why one is not used; missing files are left out."""
    paths = {one: os.path.abspath(one.path) for one in candidates}
    left = MAX_READ_BYTES

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
            if not one.given and evidence_time is not None and file.status.st_mtime > evidence_time:
                found[one] = _changed_message(one.file)
                continue
            asked[one] = [call for call in calls if size and call.file == one.file]
            own = [[call.line, call.function, calls[call], size] for call in asked[one]]
            questions.append((file.data, {"lines": list(lines[one.file]), "calls": own}))
    answers = sandbox.run_each(_PARSER, questions, _PARSING_S) if questions else []
    for (one, own_calls), answer in zip(asked.items(), answers, strict=True):
        if isinstance(answer, sandbox.Failed):
            found[one] = f"{one.path}: could not be parsed ({answer.why}); its loops are ignored"
        else:
            found[one] = _script(answer, own_calls)
    return found


def _script(answer: Any, calls: Sequence[Call]) -> _Script:
    around = {int(line): tuple(span) if span else None for line, span in answer["around"].items()}
    return _Script(dict(places_of(answer)), around, dict(zip(calls, answer["partners"], strict=True)), answer["locks"])


def _fitting_scripts(
    candidates: Iterable[_Candidate],
    parsed: Mapping[_Candidate, _Script | str],
    lines: SourceLines,
    problems: list[str],
) -> dict[str, _Script]:
    """The first candidate that fits, for each file on the stacks."""
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
                f"{one.path}: not the {one.path.name} that ran (its functions are on other lines); "
                "its loops are ignored"
            )
        else:
            problems.append(_changed_message(one.file))
    return found


def _changed_message(file: str) -> str:
    return f"{file} has changed since the stacks were taken; its loops and branches are ignored"


def _common_suffix_length(path: Path, file: str) -> int:
    """Number of equal trailing path components."""
    pairs = zip(reversed(path.absolute().parts), reversed(Path(file).parts), strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), 99)


def _fits(script: _Script, named: Mapping[int, NamedFrames]) -> bool:
    """True if every line lies in the function of its frames, and most lines name the functions called from them."""
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
    """True if `function` can run at a line; `around`: first line, last line, name of its definition."""
    if function == "<module>":
        return around is None or around[0] == line
    if function.startswith("<"):
        return True
    return around is not None and around[2] == function and (line > around[0] or around[0] == around[1])


# --- peers of sends and receives ------------------------------------------------------------------


def innermost_call(stack: Stack) -> tuple[int, Call] | None:
    """The innermost send or receive without variables, and the index of its frame."""
    for i, frame in enumerate(stack.frames):
        if frame.file.endswith(C10D) and frame.function in ARGUMENTS and not frame.variables:
            own = next((one for one in stack.frames[i + 1 :] if not is_library(one.file)), None)
            if own is not None:
                return i, Call(own.file, own.line or 0, frame.function)
    return None


def with_peers(stacks: Stacks, peers: Mapping[Call, int]) -> Stacks:
    """Add the peer as a variable to the frame of each send and receive, if known."""
    threads = tuple(_with_peer(stack, peers) for stack in stacks.threads)
    return stacks if threads == stacks.threads else replace(stacks, threads=threads)


def _with_peer(stack: Stack, peers: Mapping[Call, int]) -> Stack:
    found = innermost_call(stack)
    if found is None or found[1] not in peers:
        return stack
    frames: list[Frame] = list(stack.frames)
    i, call = found
    peer = peers[call]
    argument = Variable(ARGUMENTS[call.function], str(peer), argument=True, number=float(peer), kind="int")
    frames[i] = replace(frames[i], variables=(argument,))
    return replace(stack, frames=tuple(frames))
