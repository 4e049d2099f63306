"""The node that a text speaks about where it shows processes by their number on their host.

`[default1]:` of torchrun, `--local_rank=3` of a command line and `cuda:2` number the processes of one node. A sentence
or a heading above says which: `on the second node (node_rank 1)`, `### node 1`. Its number times the ranks of a node
gives the rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

MAX_LINE = 600  # characters of a sentence about nodes
MAX_LINES = 20_000  # of a text; longer ones are logs
MAX_BLOCK = 64  # sentences about nodes between two dumps
_ORDINALS = {
    word: number
    for number, words in enumerate(
        (("first", "1st"), ("second", "2nd"), ("third", "3rd"), ("fourth", "4th"), ("fifth", "5th"), ("sixth", "6th"))
    )
    for word in words
}
_NODE = re.compile(
    r"(?<![A-Za-z])(?:(?:node|machine|group)[ _-]?rank|slurm_nodeid|node[ _-]?(?:id|index|idx))[\s:=#(]{0,3}"
    r"(?P<rank>\d{1,4})"
    r"(?![\w.])|(?<![A-Za-z])(?:node|machine)[ _#=-]{1,2}(?P<bare>\d{1,3})(?![\w.]|-\d)"
    rf"|\b(?P<word>{'|'.join(_ORDINALS)}) (?:node|host|machine|box|server)\b",
    re.IGNORECASE,
)
_LABELLED = re.compile(r"\s{0,8}(?:>\s)?\[[A-Za-z]{0,24}\d{1,6}\]:?\s")
_LOCAL = re.compile(
    r"\[?\b(?:default|local[ _-]?(?:rank|id|process)[ :=#]{0,2}|lr[ =]?|worker[ _#]|cuda:|gpu[ _#]?)"
    r"(\d{1,4})\b(?!\.\d)",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.;!?])\s+|\s(?=but\b|while\b|whereas\b)")
_ENDS_HEADING = re.compile(r":\s*$|[-=#*\]]{1,4}\s*$")
_BEGINS_HEADING = re.compile(r"\s{0,8}(?:[-=#*>]{1,4}\s|\[)")


@dataclass(frozen=True, slots=True)
class _Sentence:
    nodes: frozenset[int]
    locals: frozenset[int]
    heading: bool = False


@dataclass(slots=True)
class NodeContext:
    """Takes the lines of a text in order."""

    _block: list[_Sentence] = field(default_factory=list)  # since the last process was shown
    _shown: bool = False  # a process was shown since
    _from_zero: bool = False  # bare numbers of nodes begin at 0

    def feed(self, text: str) -> None:
        if _LABELLED.match(text):
            self._shown = True
            return
        if len(text) > MAX_LINE or ("node" not in (lowered := text.lower()) and not _may_name(lowered)):
            return
        sentences = [one for one in map(self._sentence, _SENTENCE.split(text)) if one.nodes or one.locals]
        if not any(one.nodes for one in sentences):
            self._block += sentences if len(self._block) < MAX_BLOCK and self._block else []
            return
        heading = len(sentences) == 1 and len(sentences[0].nodes) == 1 and _is_heading(text)
        if self._shown or heading:
            self._block, self._shown = [], False
        if len(self._block) < MAX_BLOCK:
            self._block += sentences

    def at(self, local: int) -> int | None:
        """The node of a process that is shown here; None: not stated, or several may be."""
        nodes = frozenset().union(*(one.nodes for one in self._block))
        if len(nodes) < 2:
            return next(iter(nodes), None)
        beside = {one.nodes for one in self._block if local in one.locals and one.nodes}
        only = beside.pop() if len(beside) == 1 else frozenset()
        return next(iter(only)) if len(only) == 1 else None

    def _sentence(self, text: str) -> _Sentence:
        locals_ = frozenset(int(number) for number in islice(_LOCAL.findall(text), MAX_BLOCK))
        return _Sentence(frozenset(islice(self._nodes(text), MAX_BLOCK)), locals_)

    def _nodes(self, text: str) -> Iterator[int]:
        for found in _NODE.finditer(text):
            if found["word"]:
                yield _ORDINALS[found["word"].lower()]
            elif found["rank"]:
                yield int(found["rank"])
            else:
                self._from_zero = self._from_zero or int(found["bare"]) == 0
                if self._from_zero:
                    yield int(found["bare"])


@dataclass(slots=True)
class NodesOfText:
    """The node of each process that a text shows by its number; asked for in the order of the lines."""

    content: bytes = b""
    _lines: list[str] | None = None
    _read: int = 0
    _context: NodeContext = field(default_factory=NodeContext)

    def at(self, line: int, local: int) -> int | None:
        """The node of the process whose line (from 1) this is."""
        if self._lines is None:
            self._lines = self.content.decode("utf-8", "replace").split("\n", MAX_LINES)[:MAX_LINES]
        for text in self._lines[self._read : line]:
            self._context.feed(text)
        self._read = max(self._read, line)
        return self._context.at(local)


def _may_name(lowered: str) -> bool:
    return any(word in lowered for word in ("machine", "host", "box", "server", "rank", "default", "local"))


def _is_heading(text: str) -> bool:
    return len(text) <= 80 and (_ENDS_HEADING.search(text) is not None or _BEGINS_HEADING.match(text) is not None)
