"""Lists of what each rank does, one line a rank: heartbeat files, prints before each collective, notes of a person.

`rank 3: step 812, before all_reduce(grad)`, `[rank 3] saving checkpoint`. A list has a line for each
of several ranks, one after the other; most of them wait. A line that ends with a colon is a heading.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._pasted_text import text_lines
from hangdoc.redaction.text import redact_text

KIND = "rank_state"
LEAST_RANKS = 4  # of a list
MAX_RANKS = 4096
MAX_STATE = 160  # characters
WAITS = re.compile(
    r"\b(?:wait\w*|barrier|all_?-?reduce|all_?-?gather\w*|reduce_?-?scatter\w*|broadcast\w*|all_?to_?all\w*|collective"
    r"|blocked|stuck|pending|recv|rendezvous|synchroniz\w*)",
    re.IGNORECASE,
)
_LINE = re.compile(
    r"[\s>|*\-]{0,8}\[?(?:(?:global[ _-]?)?rank|RANK|Rank|worker|proc|r)[ _#=:-]{0,2}(?P<rank>\d{1,6})\]?[ ]?"
    r"(?:\([^()]{1,60}\))?[ ]?(?:[:|>=-]{1,2}|\t| )\s{0,12}(?P<state>[A-Za-z(\"'<\[][^\n]{1,399}[^\n:])"
)
_FIGURES = re.compile(  # a row of a table, and no state: `fwd 51.2 allreduce 152.0`
    r"(?:[A-Za-z][^\s=:]{0,40}[\s=:]{1,8}\d{1,12}(?:\.\d{1,9})? ?(?:m?s|%)?[\s,;|]{0,8}){2,32}"
)
_LOGGED = re.compile(r"NCCL|ProcessGroup|Traceback|\w(?:Error|Exception)\b|\d\d:\d\d:\d\d[.,]\d{3}")


@dataclass(slots=True)
class _List:
    states: dict[int, tuple[int, str]] = field(default_factory=dict)  # rank -> line number, state

    @property
    def counts(self) -> bool:
        """True if it lists enough ranks, and most of them wait."""
        waiting = sum(bool(WAITS.search(state)) for _, state in self.states.values())
        return len(self.states) >= LEAST_RANKS and 4 * waiting >= 3 * len(self.states)


class RankStateReader:
    name = "list of the states of ranks"
    order = 63
    help = "print `rank N: step S, before CALL` ahead of each collective, and collect the last line of every rank"

    def recognises(self, source: Source) -> bool:
        text = source.head.decode("utf-8", "replace")
        return len(text) < 2**16 and sum(bool(_LINE.fullmatch(line)) for line in text.splitlines()) >= LEAST_RANKS

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        lists, current = [_List()], _List()
        for number, text in enumerate(text_lines(source, context), 1):
            found = None if _LOGGED.search(text[:400]) else _LINE.fullmatch(text[:500])
            if found and "." in found["state"] and _FIGURES.fullmatch(found["state"]):
                found = None
            rank = int(found["rank"]) if found else None
            if found is None or rank is None or rank in current.states or len(current.states) >= MAX_RANKS:
                lists.append(current)
                current = _List()
            if found is not None and rank is not None:
                current.states[rank] = number, found["state"].strip()[:MAX_STATE]
        last = next((one for one in (current, *reversed(lists)) if one.counts), None)
        for rank, (number, state) in last.states.items() if last else ():
            event = LogEvent(KIND, redact_text(state), source.name, number, None, {"rank": str(rank)})
            yield Piece(ProcessRef(rank), "logs", Logs((event,)))


READER = RankStateReader()
