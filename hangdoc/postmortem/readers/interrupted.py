"""Where each rank stood when somebody interrupted a hang: tracebacks that end in KeyboardInterrupt.

A person who writes that the job hangs and then presses Ctrl-C gets a traceback of every rank. Its innermost frame is
the place where that rank waited. Without a word of a hang, the job may have run well: the tracebacks then say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from hangdoc.evidence import Stacks
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._dump_ranks import ProcessDump, process_dumps, rank_pieces
from hangdoc.postmortem.readers._frames import ThreadBuilder, python_frame, stacks_record
from hangdoc.postmortem.readers._owner_hints import OwnerHints
from hangdoc.postmortem.readers._pasted_text import text_lines

NAME = "tracebacks of interrupted ranks"
MAX_TEXT = 2**20  # characters
MAX_FRAMES = 500
LEAST = 2  # processes: one alone shows no difference

_OPENING = re.compile(r"Traceback \(most recent call last\):?\s*$")
_FRAME = re.compile(r'\s*File "([^"]{1,1000})", line (\d{1,9}), in (\S.{0,200}?)\s*')
_INTERRUPT = re.compile(r"(?:\w{1,60}\.){0,8}(?:KeyboardInterrupt|\w{0,40}SIGTERM\w{0,40}|SIGINT\w{0,40})\b.{0,200}")
_OTHER_END = re.compile(r"[A-Za-z_][\w.]{0,200}(?:Error|Exception|Exit|Warning|StopIteration)\b")
_CHAINED = re.compile(r"During handling of the above exception|The above exception was the direct cause")
_SPAWNED = re.compile(r"Process (?:Spawn|Fork)Process-(\d{1,5}):\s*")
_CARET = re.compile(r"^(?:\^[C\\]|\u0003){1,8}\s?")
_DISTRIBUTED = re.compile(r"torch/distributed/|horovod/|mpi4py|torch/nn/parallel/distributed\.py$")
_HANGS = re.compile(
    r"\bhang(?:s|ing)?\b|\bhung\b|\bstuck\b|\bfr(?:eezes?|oze|ozen|eezing)\b|\bstall(?:s|ed|ing)?\b|\bdeadlock"
    r"|\bno (?:progress|output|step)|\bnever (?:returns?|finish|continues?|ends?|gets?)"
    r"|\bstops? (?:at|after|in|there|on)\b"
    r"|\bnothing happens|\bblocks? (?:at|in|for)|\bdoes(?:n't| not) (?:continue|move|proceed|progress|return)",
    re.IGNORECASE,
)


class InterruptedReader:
    name = NAME
    order = 35
    marks = ("KeyboardInterrupt",)
    help = "py-spy dump --pid PID of every rank, before the job is interrupted"

    def recognises(self, source: Source) -> bool:
        text = source.head_text
        if len(text) > MAX_TEXT or "Traceback (most recent call last)" not in text or not _INTERRUPT.search(text):
            return False
        return _HANGS.search(_told(text)) is not None

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        found = list(process_dumps(_lines(source, context), _OPENING, _Parser))
        pieces = list(rank_pieces(_firsts(found), source, context))
        if len({piece.process for piece in pieces}) >= LEAST and _differ(pieces):
            yield from pieces


def _differ(pieces: Iterable[Piece]) -> bool:
    """True if some process was in a call of torch.distributed, and another one elsewhere."""
    frames = [piece.record.threads[0].frames for piece in pieces if isinstance(piece.record, Stacks)]
    waits = any(_DISTRIBUTED.search(frame.file) for stack in frames for frame in stack)
    return waits and len({tuple((frame.file, frame.line) for frame in stack) for stack in frames}) > 1


def _told(text: str) -> str:
    """The lines that are no part of a traceback."""
    rows = (row for row in text.split("\n") if not row.lstrip().startswith(("File ", "[rank")) and len(row) < 400)
    return "\n".join(row for row in rows if "Error" not in row and "Traceback" not in row)


def _lines(source: Source, context: ReadContext) -> Iterator[str]:
    return (_CARET.sub("", text, count=1) if text[:1] in "^\u0003" else text for text in text_lines(source, context))


def _firsts(found: Iterable[ProcessDump]) -> Iterator[ProcessDump]:
    """The first traceback of each process: later ones are of the cleaning up."""
    seen: set[ProcessRef] = set()
    for dump in found:
        if dump.process == ProcessRef(host=dump.process.host) or dump.process not in seen:
            seen.add(dump.process)
            yield dump


class _Parser:
    """Parses one channel (`_pasted_text.ChannelParser`)."""

    def __init__(self, hints: OwnerHints) -> None:
        self.pieces: list[Piece] = []
        self._hints = hints
        self._thread: ThreadBuilder | None = None
        self._process = ProcessRef()
        self._frames: list[tuple[str, str, int]] = []
        self._chained = False

    def feed(self, text: str) -> bool:
        if spawned := _SPAWNED.fullmatch(text):
            self._hints.local, self._hints.updated = int(spawned[1]) - 1, True
            return True
        if _OPENING.match(text.strip()):
            self._frames, self._thread = [], None if self._chained else ThreadBuilder(0, "MainThread")
            if self._thread is not None:
                self._process = self._hints.take()
            self._chained = False
            return True
        if _CHAINED.search(text):
            self._chained = True
            return True
        if self._thread is None:
            return False
        if frame := _FRAME.fullmatch(text):
            if len(self._frames) < MAX_FRAMES:
                self._frames.append((frame[3], frame[1], int(frame[2])))
            return True
        if text[:1].isspace() or not text.strip():
            return True
        if _INTERRUPT.fullmatch(text.strip()):
            self._finish()
        elif not _OTHER_END.match(text):
            return False
        self._thread = None
        return True

    def _finish(self) -> None:
        thread = self._thread
        if thread is None or not self._frames:
            return
        for function, file, line in reversed(self._frames):
            thread.add(python_frame(function, file, line))
        if record := stacks_record([thread]):
            self.pieces.append(Piece(self._process, "stacks", ProcessDump(self._process, record)))

    def end(self) -> None:
        self._thread = None


READER = InterruptedReader()
