"""Source that is pasted beside stacks: lines with their numbers (editors, `nl`, pdb's `list`), or Python without any.

The line above may name the file, and a command there that prints it the number of its first line: `sed -n 205,222p`.

`source_excerpts` lays it under the frames of the stacks: it shows the loops, branches and locks around their lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from hangdoc.evidence.pieces import Piece
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._host_names import prompt_of
from hangdoc.postmortem.readers._text_source import TextSource

EXCERPTS = "source excerpts"  # key of ReadContext.shared
MAX_TEXT = 2**19  # bytes: a longer text is a log
MAX_EXCERPTS = 64
MAX_ROWS = 1000  # of an excerpt
MAX_ROW = 500  # characters
MAX_NUMBER = 200_000
MAX_GAP = 40  # lines that an excerpt leaves out
MAX_FRAME_LINES = 48
MAX_ABOVE = 3  # lines between the name of a file and its source

_FILE = re.compile(r"(?<![\w.-])((?:[\w.+~-]{1,80}/){0,20}[\w+-]{1,80}\.py)\b")
_FRAME = re.compile(  # of a traceback, with its source
    r"^(?P<front>[^\n\"]{0,60}?)(?P<indent>[ ]{2,12})(?P<pystack>\(Python\) )?"
    r"File \"(?P<file>[^\"\n]{1,400}\.py)\", line (?P<line>\d{1,6}), in [^\n]{1,200}\n"
    r"(?P=front)(?P=indent)[ ]{2,8}(?![~^ ])(?P<source>(?!File \"|\(Python\)|\(C\))[^\n]{2,400})$",
    re.MULTILINE,
)
# In a sentence: optim.py 57/58 is `dist.all_reduce(norm)` / `return norm.item()`; utils.py:34 = `loss.item()`
_TOLD = re.compile(
    r"(?<![\w./-])(?P<file>(?:[\w.+~-]{1,80}/){0,20}[\w+-]{1,80}\.py)(?::| lines? | L| #? ?)"
    r"(?P<lines>\d{1,6}(?:\s?[/,&]\s?\d{1,6}){0,3})"
    r"(?: (?:is|are|was|reads|says|does|calls|has)| ?(?:=|:|->|\u2192))(?: (?:just|only|the|a|line|call))?\s{0,3}"
    r"(?P<code>`[^`\n]{2,200}`(?:\s?(?:[/,&]|and|then)\s?`[^`\n]{2,200}`){0,3})"
)
# The same without a file: line 119 is `out = model(x)`, 124 is `total += loss.item()`
_IS_CODE = r"\d{1,6}(?: (?:is|was|reads|says|does|calls)| ?(?:=|:|->|\u2192))(?: (?:just|the))? {0,3}`[^`\n]{2,200}`"
_TOLD_HERE = re.compile(
    rf"(?<![\w./-])(?:[Ll]ines? |L){_IS_CODE}(?:\s?(?:[,;/&]|and|then){{1,2}}\s?(?:lines? |L)?{_IS_CODE}){{0,6}}"
)
_PAIR = re.compile(r"(\d{1,6})[^`\n\d]{1,20}`([^`\n]{2,200})`")
_RAISED = re.compile(r"^[^\n]{0,60}?\b\w{1,60}(?:Error|Exception)\b", re.MULTILINE)
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3|^<")
_NUMBER = re.compile(r"\s{0,8}(?:[Ll]ine ?|L)?(\d{1,6})\s?(?:->|[:|\u2502>B]|\t)?(?=\s|$)")
_BAR = re.compile(r"\s?[|\u2502>] ?(?=\s|\w|[@#'\"(\[{]|$)")  # between the number of a line and its text
_HEADER = re.compile(
    r"\s*(?:async )?(?:def|class|if|elif|for|while|with|else|try|except|finally)\b[^\n]{0,400}:\s*(?:#.{0,200})?$"
)
_STATEMENT = re.compile(
    r"\s*(?:@\w|#|\"{3}|'{3}|(?:return|raise|yield|assert|pass|break|continue|await|import|from|global|nonlocal|del)\b"
    r"|(?:[\w.\[\]'\", *()-]{1,200}?(?::\s?[\w.\[\], ]{1,60})?\s?(?:=|\+=|-=|\*=|/=)(?!=)\s?\S)"
    r"|(?:await )?[A-Za-z_][\w.\[\]'\"]{0,200}\(.{0,400}\)?|[)\]}]|\.{3}\s*$)"
)
# A command that prints a part of a file, from which line on: `sed -n 205,222p train.py`, `cat train.py`
_PRINTS = re.compile(
    r"(?:sudo )?(?:sed -n ['\"]?(?P<sed>\d{1,6})(?:, ?(?P<to>\d{1,6}))?p['\"]?"
    r"|awk ['\"]NR ?[>=]= ?(?P<awk>\d{1,6})[^'\"\n]{0,60}['\"]|cat|head(?: -n? ?(?P<most>\d{1,6}))?)"
    r" (?P<file>[\w./+~-]{1,400}\.py)\s*"
)
_NO_SOURCE = re.compile(
    r'\s*(?:File "|Traceback|Thread |Process \d|\[?rank ?\d|#\d+ |\(gdb\)|\$ )|\w \([^()]{1,300}:\d+\)\s*$',
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class SourceExcerpt:
    """Lines of a source file."""

    file: str | None  # as the text names it
    rows: tuple[str, ...]
    numbers: tuple[int, ...] | None  # of each row; None: not shown
    of_frame: bool = False  # the line below a frame of a traceback, and `file` is as in the frame


class PastedSourceReader:
    name = "source beside stacks"
    order = 34
    help = "the source around the lines of the stacks, with its line numbers"

    def recognises(self, source: Source) -> bool:
        if not isinstance(source, TextSource) or len(source.content) > MAX_TEXT:
            return False
        may = any(mark in source.head_text for mark in (":\n", "File ", ".py"))
        return may and bool(_excerpts(source))

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        known: list[SourceExcerpt] = context.shared.setdefault(EXCERPTS, [])
        if isinstance(source, TextSource):
            known += _excerpts(source)[: MAX_EXCERPTS + MAX_FRAME_LINES - len(known)]
        return ()


@dataclass(frozen=True, slots=True)
class _Printed:
    """What a command prints of a file, in the lines below it."""

    index: int  # of the command, in the text
    file: str
    first: int  # number of its first line
    last: int  # and of its last one, at most

    def number(self, index: int) -> int | None:
        """Number of a line of the text in the file; None: the command has not printed it."""
        number = self.first + index - self.index - 1
        return number if number <= self.last else None


@dataclass(slots=True)
class _Run:
    numbered: bool
    file: str | None
    rows: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    code: int = 0  # rows that are certainly Python

    @property
    def counts(self) -> bool:
        """True for rows that look like source: with a statement that contains others, or a call under a number."""
        headers = sum(_HEADER.match(row) is not None for row in self.rows)
        return len([row for row in self.rows if row.strip()]) > 1 and headers > 0 and 2 * self.code >= len(self.rows)

    def excerpt(self) -> SourceExcerpt:
        return SourceExcerpt(self.file, tuple(self.rows), tuple(self.numbers) if self.numbered else None)


def _excerpts(source: TextSource) -> list[SourceExcerpt]:
    """The excerpts in a text."""
    found = [run.excerpt() for run in _joined(_runs(source)) if run.counts][:MAX_EXCERPTS]
    return [*found, *_frame_lines(source.head_text), *_told_lines(source.head_text)]


def _joined(runs: Iterable[_Run]) -> list[_Run]:
    """The runs, each with the statements behind a gap (`...`) that are no excerpt by themselves."""
    found: list[_Run] = []
    for run in runs:
        if not any(row.strip(" .") for row in run.rows):
            continue
        last = found[-1] if found else None
        if (
            last is not None
            and not run.counts
            and last.counts
            and last.numbered
            and run.numbered
            and run.file in (None, last.file)
            and run.code == len(run.rows)
            and 0 < run.numbers[0] - last.numbers[-1] <= MAX_GAP
        ):
            last.rows += run.rows
            last.numbers += run.numbers
            last.code += run.code
        else:
            found.append(run)
    return found


def _frame_lines(text: str) -> Iterator[SourceExcerpt]:
    """The source below the frames of user code, as pystack prints it, and Python for who was interrupted.

    Where an exception was raised, the line says nothing about a wait.
    """
    interrupted = "KeyboardInterrupt" in text and _RAISED.search(text) is None
    known: dict[tuple[str, int], str] = {}
    for frame in _FRAME.finditer(text):
        at = frame["file"], int(frame["line"])
        if (
            (frame["pystack"] or interrupted)
            and at not in known
            and len(known) < MAX_FRAME_LINES
            and not _LIBRARY.search(frame["file"])
        ):
            known[at] = frame["source"].strip()
    for (file, line), row in known.items():
        yield SourceExcerpt(file, (row,), (line,), of_frame=True)


def _told_lines(text: str) -> Iterator[SourceExcerpt]:
    """The lines of a file that a sentence quotes."""
    for told in islice(_TOLD.finditer(text), MAX_FRAME_LINES):
        numbers = [int(number) for number in re.findall(r"\d+", told["lines"])]
        rows = re.findall(r"`([^`\n]+)`", told["code"])
        if len(numbers) == len(rows):
            yield from (_told_line(told["file"], *pair) for pair in zip(numbers, rows, strict=True))
    for told in islice(_TOLD_HERE.finditer(text), MAX_FRAME_LINES):
        pairs = sorted((int(number), row.strip()) for number, row in _PAIR.findall(told[0]))
        if any(_HEADER.fullmatch(row) for _, row in pairs):
            yield from (_told_line(None, *pair) for pair in pairs)
        else:  # together, since one of them may show which file they are of
            yield SourceExcerpt(None, tuple(row for _, row in pairs), tuple(number for number, _ in pairs))


def _told_line(file: str | None, number: int, row: str) -> SourceExcerpt:
    if _HEADER.fullmatch(row.strip()):
        return SourceExcerpt(file, (row.strip(), "    ..."), (number, number + 1))
    return SourceExcerpt(file, (row.strip(),), (number,))


def _runs(source: TextSource) -> Iterator[_Run]:
    """Rows of source, one after the other."""
    run: _Run | None = None
    printed: _Printed | None = None
    above: list[str] = []
    for index, text in enumerate(source.head_text.split("\n")):
        prompt = prompt_of(text) if len(text) <= MAX_ROW else None
        command = _PRINTS.fullmatch(prompt.command) if prompt else None
        if command:
            printed = _printed(index, command)
        elif printed is not None and printed.number(index) is None:
            printed = None
        bare = run is not None and (not run.numbered or printed is not None)
        row = _row(text, source.listed.get(index), bare) if len(text) <= MAX_ROW and not command else None
        if row is None and bare and not text.strip():
            row = (None, "")
        if row is not None and row[0] is None and printed is not None:
            row = (printed.number(index), row[1])
        elif row is None and text.strip() and not command:
            printed = None
        if run is not None and (row is None or not _goes_on(run, row) or len(run.rows) >= MAX_ROWS):
            yield run
            run = None
        if row is not None and (run is not None or row[1].strip()):
            run = run or _Run(row[0] is not None, printed.file if printed is not None else _file_above(above))
            run.rows.append(row[1])
            run.numbers.append(row[0] or 0)
            run.code += not row[1].strip() or bool(_HEADER.match(row[1]) or _STATEMENT.match(row[1]))
        elif text.strip():
            above = [*above[1 - MAX_ABOVE :], text]
    if run is not None:
        yield run


def _printed(index: int, command: re.Match[str]) -> _Printed:
    first = int(command["sed"] or command["awk"] or 1)
    last = command["to"] or command["most"] or (command["sed"] and first) or MAX_NUMBER
    return _Printed(index, command["file"], first, int(last))


def _row(text: str, listed: int | None, bare: bool) -> tuple[int | None, str] | None:
    """The number, if there is one, and the source of a line; None: it is no source.

    `bare`: below a row without a number.
    """
    if listed is not None:
        bar = _BAR.match(text)
        return listed, text[bar.end() :] if bar else text
    if (found := _NUMBER.match(text)) and 0 < int(found[1]) <= MAX_NUMBER:
        return int(found[1]), text[found.end() :].removeprefix(" ") or ""
    if not text.strip() or _NO_SOURCE.search(text):
        return None
    if _HEADER.match(text) or _STATEMENT.match(text):
        return None, text
    return (None, text) if bare and text[0] in " \t" else None


def _goes_on(run: _Run, row: tuple[int | None, str] | None) -> bool:
    if row is None or (row[0] is not None) != run.numbered:
        return False
    return row[0] is None or row[0] > run.numbers[-1]


def _file_above(lines: list[str]) -> str | None:
    """The file that the nearest line above names, if it is no frame of a stack."""
    for text in reversed(lines):
        names = _FILE.findall(text) if len(text) <= MAX_ROW and not _NO_SOURCE.search(text) else []
        if len(set(names)) == 1:
            name: str = names[0]
            return name
    return None


READER = PastedSourceReader()
