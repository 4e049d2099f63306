"""Lists of ranks that report at the start: `init 3/16 a101 -> tcp://a101:29411`, `[r3] connecting`.

Scripts print such a line before init_process_group, each in its own words. A list has lines of one form for several
ranks, in which only the rank and what belongs to it differ. `3/16` without the word rank counts only if a line of
another kind names the same number of ranks.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from hangdoc.evidence import limits
from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._pasted_text import text_lines
from hangdoc.redaction.text import redact_text

KIND = "announced"
LEAST_RANKS = 3  # of a list
MAX_LINES = 20_000
MAX_LINE = 240  # characters
MAX_FORMS = 256
_ARRIVES = re.compile(
    r"\b(?:init(?:iali[sz](?:ing|ed?|ation))?|init_process_group|connect(?:ing|ed)?|join(?:ing|ed)?|start(?:ing|ed|up)?"
    r"|launch(?:ing|ed)?|hello|hi from|register(?:ing|ed)?|rendezvous|rdzv|bootstrap(?:ping|ped)?|alive|online|spawned"
    r"|check(?:ing|ed)? ?in|reporting|waiting for (?:the )?(?:others|peers|ranks|master|store|everyone)|entering)\b"
    r"|\btcp://|\benv://",
    re.IGNORECASE,
)
_NO_ARRIVAL = re.compile(
    r"\b(?:steps?|iter(?:ation)?s?|epoch|batch|shards?|files?|chunks?|layers?|stages?|attempts?|retr(?:y|ies)|try|tries"
    r"|gc(?![-\d])|download\w*|loss|save|saving|saved|checkpoint\w*|eval\w*|barrier|all_?reduce|all_?gather|failed|failure|fail"
    r"|errors?|exception|timed|timeout|killed|exit\w*|workers?|dataloader|refused|lost|clos(?:ed|ing)|not|never|missing)\b",
    re.IGNORECASE,
)
_NAMED = re.compile(
    r"(?<![A-Za-z_])(?:(?:global|world)[ _]?)?(?:rank|rk)[ _=:#\[(-]{0,3}(?P<rank>\d{1,6})(?![\d.])"
    r"(?:[\])]?,? ?(?:/|of|out of) ?(?P<of>\d{1,6})(?![\d.]))?"
    r"|[\[(<]r[ _=:-]?(?P<short>\d{1,6})(?:/(?P<total>\d{1,6}))?[\])>]|(?<![\w.-])r[=:]?(?P<bare>\d{1,6})(?=[:,]? )",
    re.IGNORECASE,
)
_OF = re.compile(r"(?<![\w./:-])(?P<rank>\d{1,6}) ?(?:/|of|out of) ?(?P<of>\d{1,6})(?![\w./:-])")
_WORLD = re.compile(r"\b(?:world(?:[ _]?size)?|ws|nranks|n_ranks|num_ranks|size)[\s=:]{1,3}(\d{1,6})\b", re.IGNORECASE)
# A number within a part of the job.
OTHER_RANK = re.compile(r"\b(?:local|node|group|tp|pp|dp|cp|ep)[ _-]?rank[ _=:#]{0,3}\d{1,6}", re.IGNORECASE)
_LOGGED = re.compile(r"NCCL (?:INFO|WARN)|ProcessGroup|Traceback|Error:")
_VARIES = re.compile(r"[\w.@:/-]*\d[\w.@:/-]*")


@dataclass(slots=True)
class _Form:
    """Lines of one form."""

    named: bool  # they say `rank`
    ranks: dict[int, tuple[int, str]] = field(default_factory=dict)  # rank -> line number, text
    sizes: set[int] = field(default_factory=set)

    def size(self) -> int | None:
        """The number of ranks that all lines give. None: none, or several."""
        return next(iter(self.sizes)) if len(self.sizes) == 1 else None

    @property
    def counts(self) -> bool:
        """True if it is a list of ranks, numbered from 0."""
        size = self.size()
        below = size is None or (limits.valid_world_size(size) is not None and max(self.ranks) < size)
        return len(self.ranks) >= LEAST_RANKS and len(self.sizes) < 2 and below and (self.named or 0 in self.ranks)


class ArrivalListReader:
    name = "list of ranks that report at the start"
    order = 64
    help = "print `rank R/WORLD on HOST` before init_process_group, on every rank"

    def recognises(self, source: Source) -> bool:
        lines = source.head_text.splitlines()[:MAX_LINES]
        return any(len(form.ranks) >= LEAST_RANKS for form in _forms(enumerate(lines, 1)))

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        lines = list(islice(text_lines(source, context), MAX_LINES))
        sizes = {int(size) for text in lines for size in _WORLD.findall(text[:MAX_LINE])}
        for form in _forms(enumerate(lines, 1)):
            form.sizes = form.sizes or (sizes if form.named and len(sizes) == 1 else set())
            if form.counts:
                yield from _pieces(form, source.name)


def _pieces(form: _Form, source: str) -> Iterator[Piece]:
    size = form.size()
    for rank, (number, text) in form.ranks.items():
        fields = {"rank": str(rank)} | ({"size": str(size)} if size is not None else {})
        fields |= {} if form.named else {"loose": "yes"}
        event = LogEvent(KIND, redact_text(text.strip())[:MAX_LINE], source, number, None, fields)
        process = ProcessRef(rank if form.named else None)
        yield Piece(process, "logs", Logs((event,)), None, size if form.named else None)


def _forms(lines: Iterable[tuple[int, str]]) -> list[_Form]:
    """The lists of a text: lines that differ only in words with digits."""
    found: dict[tuple[bool, str], _Form] = defaultdict(lambda: _Form(False))
    for number, text in lines:
        if len(text) > MAX_LINE or not _ARRIVES.search(text) or _NO_ARRIVAL.search(text) or _LOGGED.search(text):
            continue
        plain = OTHER_RANK.sub(" ", text)
        named = _NAMED.search(plain)
        numbered = named or _OF.search(plain)
        if numbered is None:
            continue
        groups = numbered.groupdict()
        rank = int(next(groups[name] for name in ("rank", "short", "bare") if groups.get(name)))
        total = groups.get("of") or groups.get("total")
        world = _WORLD.search(plain)
        key = named is not None, _VARIES.sub("#", plain)
        if rank >= limits.MAX_RANKS or (key not in found and len(found) >= MAX_FORMS):
            continue
        form = found[key]
        form.named = named is not None
        form.ranks.setdefault(rank, (number, text))
        if total or world:
            form.sizes.add(int(total or (world[1] if world else 0)))
    return list(found.values())


READER = ArrivalListReader()
