"""Stacks written on one line, with the ranks that are there: chains of calls, tables of stacks, merged dumps.

* `rank 3: main (train.py:80) -> step -> all_reduce`, also with `>`, `=>`, `<-`, `;` or arrows; `ranks 0-6: f (x.py:12)`
* rows of a list of ranks: ` 24 wait (connection.py:931) <- _try_get_data`
* rows of one native frame, of a loop over `gdb -batch -ex bt | grep`: `3| #8  0x14a8 in PMPI_Allreduce () from lib`
* a host with its ranks: `gx1 (0-7): all 8 f (x.py:12)`
* a roll call: `ranks [0, 2]  stopped at  loop.py:90 in step`, and `via loop.py:121 in train` below it
* merged stacks of xpu_timer (intelligent-machine-learning/dlrover, py_xpu_timer/stack_viewer.py):
  `main@train.py@0-7|;step@train.py@0-2/4-7|3 1`: the frame, the ranks that are in it, and those that are not

People leave out files. A function of torch that everybody knows then gets the file that defines it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from hangdoc.evidence import Frame, limits
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._frames import ThreadBuilder, native_frame, python_frame, stacks_record
from hangdoc.postmortem.readers._host_names import is_host_name, listed_numbers
from hangdoc.postmortem.readers._pasted_text import text_lines, without_time
from hangdoc.postmortem.readers._text_source import TextSource, text_source

MAX_LINE = 8_000  # characters
MAX_CALLS = 200  # of one chain
MAX_STACKS = 2_000  # of one text
MAX_RANKS = 4_096  # of one stack
LIST_GAP = 2  # lines from one rank of a list to the next

_NUMBERS = r"\d{1,6}(?:\s{0,2}(?:,|-|\u2013|/|&|and|to|\.\.)\s{0,2}\d{1,6}){0,64}"
_OWNER = re.compile(
    r"[\W_]{0,8}(?:\d{1,6} ?x? )?(?:(?:on|global|the) )?(?:ranks?|r)[\s:=#_]{0,3}"
    rf"[\[({{]?(?P<ranks>{_NUMBERS})[\])}}]?"
    r"(?: ?\(\d{1,6}(?: ranks?)?\)| ?[x\u00d7] ?\d{1,6})?"
    r"(?:(?:'s)? {1,12}(?:main thread|stack|stuck|stopped|hung|hangs|waiting|waits|blocked|is|are|at|in|here|still"
    r"|all)\b){0,4}"
    r"[\s:=|>\u2192-]{0,12}(?=\S)",
    re.IGNORECASE,
)
# A row of a list of ranks. Frames may be numbered as well, but each of them is another function.
_ROW = re.compile(r"\s{1,8}(?P<rank>\d{1,6})[ :|]{1,4}(?=[A-Za-z<].{0,400}\.py:\d)")
_NATIVE_ROW = re.compile(
    r"\s{0,8}(?:\[?(?:rank[ _-]?|r))?(?P<rank>\d{1,6})\]?\s?[:|]\s{0,4}#\d{1,3}\s{1,4}(?:0x[0-9a-f]{1,16} in )?"
    r"(?P<function>[A-Za-z_][\w:]{0,200}) \([^()\n]{0,400}\)(?: from (?P<library>\S{1,300})| at \S{1,300})?\s*"
)
_LEAST_ROWS = 3
_HOST_OF = re.compile(  # a host with its ranks
    rf"\s{{0,8}}(?P<host>[A-Za-z][\w.-]{{0,60}}) ?[\[(](?:ranks? )?(?P<ranks>{_NUMBERS})[\])][ :]{{1,4}}"
    r"(?:(?:all(?: \d{1,6})?|each|both)[ :]{1,4})?(?=[A-Za-z<].{0,400}\.py:\d)"
)
_HOST_ABOVE = re.compile(r"\s{0,8}([A-Za-z][\w.-]{0,60}) ?(?:[\[(][^\[\]()]{1,40}[\])])?:\s*")  # rows of ranks
_OUTER_FIRST = r"\s{1,40}(?:-+>|=+>|\u2192|\u21d2|>+|\u203a|\u00bb)\s{1,4}"
_INNER_FIRST = r"\s{1,40}(?:<-+|<=+|\u2190|\u21d0|<+|\u2039|\u00ab)\s{1,4}"
_SEPARATORS = tuple(map(re.compile, (_OUTER_FIRST, _INNER_FIRST, r"\s{0,2};\s{0,2}")))
_FUNCTION = r"(?P<function>(?:[A-Za-z_]\w{0,80}\.){0,6}(?:[A-Za-z_]\w{0,80}|<[a-z]{1,12}>))(?:\(\))?"
_FILE = r"(?P<file>[\w./+<>\[\]-]{1,300}?\.pyx?)"
_CALLS = tuple(
    re.compile(pattern)
    for pattern in (
        rf"{_FUNCTION}[ @]{{0,2}}(?:\(|\[|at |in |@)?{_FILE}:(?P<line>\d{{1,7}})[)\]]?",
        rf"{_FILE}:(?P<line>\d{{1,7}})(?: in |:| |\()\(?{_FUNCTION}\)?",
        rf"{_FILE}:{_FUNCTION}:(?P<line>\d{{1,7}})",
        rf"{_FUNCTION} ?[(\[@]{_FILE}[)\]]?",
        rf"{_FUNCTION}",
    )
)
_PREFIX = re.compile(r"(?!\s{0,4}(?:ranks?|r)?\s?[\d\[])[A-Za-z][\w.-]{0,80}(?: {0,20}\|| ?:) ")  # of a pod or a file
_VIA = re.compile(r"\s{2,60}(?:via|from|called (?:by|from|at)|by|at|\^|<-|\u2190|in)\s{1,4}(?P<call>\S.{0,400})")
_MERGED = re.compile(r"(?P<function>[^@;|]{1,300})@(?P<file>[^@;|]{0,300})@(?P<ranks>[\d/-]{1,4000})\|[\d/-]{0,4000}")
_CHAIN_MARK = re.compile(
    r"\branks?(?![a-z]).{0,200}?\(\S{1,200}\.py:\d{1,7}\)|\branks?(?![a-z]).{0,60}?(?:->|<-|\u2192|\u2190| > )"
    r"|\.py:\d{1,7} in \w"
    r"|@[\d/-]{1,400}\|[\d/-]{0,400}(?:;| \d)|\d\]?\s?[:|]\s{0,4}#\d{1,3}\s{1,4}(?:0x|\w)",
    re.IGNORECASE,
)
# One of them is in each line with such a mark; each begins with a literal, which makes the search fast.
_IN_CHAINS = tuple(
    map(
        re.compile,
        (r"\.py:\d{1,7}(?:\)| in \w)", "->", "<-", "\u2192", "\u2190", " > ", r"#\d{1,3}\s", r"@[\d/-]{1,400}\|"),
    )
)
_IS_CODE = re.compile(r"\.pyx?\b|<module>|\w\(\)|\b(?:torch|dist|nn|self)\.\w|\w__\b")  # not what a rank does in turn
_OUTERMOST = frozenset({"<module>", "main", "_bootstrap", "_run", "run", "train", "fit", "worker", "__main__"})
_COLLECTIVE = re.compile(
    r"(?:all_|reduce_|monitored_)?(?:reduce|gather|scatter|barrier|broadcast|to_all)(?:_\w{1,40})?|all_to_all\w{0,40}"
    r"|barrier|broadcast\w{0,40}|allreduce|allgather|batch_isend_irecv|isend|irecv"
)
_SPELLING = {"allreduce": "all_reduce", "allgather": "all_gather"}
_DEFINED = {  # function -> file, where a name of its own stands for one function of torch
    **dict.fromkeys(
        ("_next_data", "_try_get_data", "_get_data", "_next_index", "_worker_loop"), "torch/utils/data/dataloader.py"
    ),
    "_engine_run_backward": "torch/autograd/graph.py",
    "init_process_group": "torch/distributed/distributed_c10d.py",
    "destroy_process_group": "torch/distributed/distributed_c10d.py",
    "new_group": "torch/distributed/distributed_c10d.py",
}
_OF_CLASS = {  # class -> file
    "DataLoader": "torch/utils/data/dataloader.py",
    "_MultiProcessingDataLoaderIter": "torch/utils/data/dataloader.py",
    "_SingleProcessDataLoaderIter": "torch/utils/data/dataloader.py",
    "DistributedDataParallel": "torch/nn/parallel/distributed.py",
}
_FOLDERS = {  # file -> folder, of modules with names of their own
    "distributed_c10d.py": "torch/distributed/", "c10d_logger.py": "torch/distributed/",
    "_functional_collectives.py": "torch/distributed/", "dataloader.py": "torch/utils/data/",
    "serialization.py": "torch/", "grad_scaler.py": "torch/amp/", "file_baton.py": "torch/utils/",
}  # fmt: skip
_SAVES = {"torch.save": "torch/serialization.py", "torch.load": "torch/serialization.py"}
_TRAILING = frozenset({"wait", "result", "synchronize", "work.wait"})  # of a collective's handle
UNKNOWN_FILE = "script.py"
# Readers of whole dumps; a frame of theirs behind a rank is no chain of its own.
DUMPS = frozenset({"py-spy dump", "faulthandler dump", "pystack dump", "gdb backtrace"})


@dataclass(slots=True)
class _Stack:
    """A stack of several ranks, innermost frame first."""

    ranks: tuple[int, ...]
    frames: list[Frame] = field(default_factory=list)
    known: bool = True  # it names a file and a line, or a function of torch
    code: bool = True  # it looks like code, not like a list of what is done in turn
    open: bool = False  # frames may follow below it
    line: int = -1  # of the text; not of a row
    host: str | None = None


class CallChainReader:
    name = "chains of calls"
    order = 33
    marks = ("rank", "Rank", "| #", ": #")
    help = "`py-spy dump --pid PID` of every rank says more"

    def recognises(self, source: Source) -> bool:
        head = source.head_text
        marked = _marked_lines(head)
        rows = isinstance(source, TextSource) and source.listed and any(True for _ in marked)
        return bool((rows or any(map(_CHAIN_MARK.search, marked))) and stacks_in(_numbered(source, head.split("\n"))))

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        source = text_source(source, context)
        stacks = stacks_in(_numbered(source, text_lines(source, context)))
        if context.taken & DUMPS:
            listed = _in_lists(stacks)
            stacks = [stack for stack in stacks if stack.frames[0].native or stack.line in listed]
        for rank, stack in _by_rank(stacks):
            thread = ThreadBuilder(0, "MainThread")
            for frame in stack.frames:
                thread.add(frame)
            if record := stacks_record([thread]):
                yield Piece(ProcessRef(rank, stack.host), "stacks", record)


def _numbered(source: Source, lines: Iterable[str]) -> Iterator[str]:
    """The lines, with the numbers in front of them, as a listing of source has them, and a list of ranks as well."""
    listed = source.listed if isinstance(source, TextSource) else {}
    return (f" {listed[index]} {line}" if index in listed else line for index, line in enumerate(lines))


def _marked_lines(text: str) -> Iterator[str]:
    """The lines in which a chain may be, in no order; a line may come twice."""
    for mark in _IN_CHAINS:
        found = mark.search(text)
        while found:
            end = text.find("\n", found.end())
            end = len(text) if end < 0 else end
            yield text[text.rfind("\n", 0, found.start()) + 1 : end]
            found = mark.search(text, end)


def _by_rank(stacks: Sequence[_Stack]) -> Iterator[tuple[int, _Stack]]:
    """The newest stack of each rank."""
    found = {rank: stack for stack in stacks for rank in stack.ranks}
    yield from sorted(found.items())


def _in_lists(stacks: Sequence[_Stack]) -> set[int]:
    """The lines of lists of ranks in ascending order, one a line; a line between two of them may be another."""
    listed: set[int] = set()
    run: list[_Stack] = []
    for stack in [stack for stack in stacks if stack.line >= 0]:
        if run and not (0 < stack.line - run[-1].line <= LIST_GAP and stack.ranks > run[-1].ranks):
            run = []
        run.append(stack)
        if len(run) >= _LEAST_ROWS:
            listed.update(one.line for one in run)
    return listed


def stacks_in(lines: Iterable[str]) -> list[_Stack]:
    """The stacks in a text; empty if one rank alone has some, or if none is known for sure."""
    found: list[_Stack] = []
    rows: list[_Stack] = []
    host: str | None = None  # of the rows
    for number, line in enumerate(lines):
        if len(line) > MAX_LINE or len(found) >= MAX_STACKS:
            continue
        text = _PREFIX.sub("", without_time(line), count=1)
        if row := _row(text):
            rows.append(replace(row, host=host))
            continue
        found += _listed(rows)
        rows, above = [], _HOST_ABOVE.fullmatch(text)
        host = above[1] if above and is_host_name(above[1]) else None
        if found and found[-1].open and (via := _VIA.fullmatch(text)):
            calls = _chain(via["call"])
            if calls and len(found[-1].frames) < MAX_CALLS:
                found[-1].frames += [frame for frame, _ in calls]
                continue
        if "@" in text and "|" in text and (merged := _merged(text)):
            found.append(merged)
        elif (owner := _OWNER.match(text)) and (stack := _stack(_ranks(owner["ranks"]), text[owner.end() :])):
            found.append(replace(stack, line=number))
        elif (placed := _HOST_OF.match(text)) and (stack := _stack(_ranks(placed["ranks"]), text[placed.end() :])):
            found.append(replace(stack, host=placed["host"] if is_host_name(placed["host"]) else None))
        elif found and text.strip():
            found[-1].open = False
    found += _listed(rows)
    ranks = Counter(rank for stack in found for rank in stack.ranks)
    single = {rank for stack in found if len(stack.frames) == 1 for rank in stack.ranks}
    dumped = any(ranks[rank] > 1 for rank in single)  # the frames of a dump, one a line
    if len(ranks) < 2 or dumped or not any(stack.code and stack.known for stack in found):
        return []
    return found


def _row(text: str) -> _Stack | None:
    if native := _NATIVE_ROW.fullmatch(text):
        return _Stack((int(native["rank"]),), [native_frame(native["function"], native["library"] or "")])
    row = _ROW.match(text)
    return _stack((int(row["rank"]),), text[row.end() :]) if row else None


def _listed(rows: Sequence[_Stack]) -> Sequence[_Stack]:
    """The rows, if they are those of several ranks, most of them at the same place."""
    ranks = [stack.ranks[0] for stack in rows]
    places = {(stack.frames[0].function, stack.frames[0].file) for stack in rows}
    in_order = len(ranks) >= _LEAST_ROWS and ranks == sorted(set(ranks))
    return rows if in_order and 2 * len(places) <= len(rows) + 1 else ()


def _stack(ranks: tuple[int, ...], text: str) -> _Stack | None:
    calls = _chain(text.strip())
    if not ranks or not calls:
        return None
    known = any(sure for _, sure in calls)
    return _Stack(ranks, [frame for frame, _ in calls], known, _IS_CODE.search(text) is not None, True)


def _ranks(text: str) -> tuple[int, ...]:
    ranks = listed_numbers(text, MAX_RANKS)
    return ranks if all(rank < limits.MAX_RANKS for rank in ranks) else ()


def _chain(text: str) -> list[tuple[Frame, bool]]:
    """The frames of a chain, innermost first, each with whether its file is known; empty: it is none."""
    text = text.strip(" \t|`*\"',.")
    parts, separator = [text], 0
    for number, pattern in enumerate(_SEPARATORS):
        if len(found := pattern.split(text)) > 1:
            parts, separator = found, number
            break
    if not 0 < len(parts) <= MAX_CALLS:
        return []
    calls = [_call(part.strip(" \t`\"'")) for part in parts]
    if separator != 1 and calls and calls[-1] is None and len(calls) > 1 and " " in parts[-1]:
        # a remark behind the last call: "all_reduce (waiting)"
        calls[-1] = _call(parts[-1].strip().split(" ")[0])
    if separator == 1 and calls[-1] is None and len(calls) > 1:
        calls.pop()  # the outermost call is cut
    if any(call is None for call in calls):
        return []
    made = [call for call in calls if call is not None]
    if len(made) == 1 and not made[0][1]:
        return []
    if separator == 1 or (separator == 0 and len(made) > 1 and _is_outermost(made[-1]) and not _is_outermost(made[0])):
        innermost_first = made
    else:
        innermost_first = made[::-1]
    while len(innermost_first) > 1 and innermost_first[0][0].function in _TRAILING and not innermost_first[0][1]:
        innermost_first = innermost_first[1:]
    return innermost_first


def _is_outermost(call: tuple[Frame, bool]) -> bool:
    return call[0].function in _OUTERMOST


def _call(text: str) -> tuple[Frame, bool] | None:
    """A frame, and whether its file is known. None: the text is no call."""
    if not text or len(text) > 500:
        return None
    for pattern in _CALLS:
        if found := pattern.fullmatch(text):
            named = found.groupdict()
            file, line = named.get("file"), named.get("line")
            return _frame(named["function"], file, int(line) if line else None)
    return None


def _frame(name: str, file: str | None, line: int | None) -> tuple[Frame, bool]:
    owner, _, function = name.rpartition(".")
    function = _SPELLING.get(function, function)
    defined = (
        _SAVES.get(name)
        or _OF_CLASS.get(owner.rpartition(".")[2])
        or _DEFINED.get(function)
        or ("torch/distributed/distributed_c10d.py" if _COLLECTIVE.fullmatch(function) else None)
        or ("torch/utils/data/dataloader.py" if function == "__next__" and not file else None)
    )
    if file is None:
        return python_frame(function, defined or UNKNOWN_FILE, line), defined is not None
    if "/" not in file and file in _FOLDERS:
        file = _FOLDERS[file] + file
    return python_frame(function, file, line), line is not None or defined is not None


def _merged(text: str) -> _Stack | None:
    """A line of xpu_timer's merged stacks, outermost first: the ranks in the last frame are at it."""
    body = text.strip().rpartition(" ")[0] if re.search(r"\|[\d/-]{0,4000} \d{1,9}\s*$", text) else text.strip()
    parts = [_MERGED.fullmatch(part) for part in body.split(";")[:MAX_CALLS]]
    # The last part carries the ranks once more.
    if not parts or any(part is None for part in parts):
        return None
    frames = []
    for part in reversed([one for one in parts if one is not None]):
        file, _, line = part["file"].partition(":")
        frames.append(_frame(part["function"], file or None, int(line) if line.isdecimal() else None))
    last = parts[-1]
    ranks = _ranks(last["ranks"].replace("/", ",")) if last else ()
    known = any(sure for _, sure in frames) or any(frame.file != UNKNOWN_FILE for frame, _ in frames)
    return _Stack(ranks, [frame for frame, _ in frames]) if ranks and known and len(frames) > 1 else None


READER = CallChainReader()
