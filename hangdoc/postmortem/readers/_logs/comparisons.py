"""Sentences that compare one rank, GPU or host with the rest: `rank 5 takes 1.9 s for a step, the others 0.8`.

The first value belongs to the party that the sentence names first. What the values mean follows from their unit and
from the words around them (figure_kinds.yaml); a sentence about anything but the pace of the training counts for
nothing. The report shows two values, whatever the number of owners behind them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from hangdoc.evidence.figures import Figure
from hangdoc.postmortem.readers._host_names import NAME, is_host_name, listed_numbers
from hangdoc.postmortem.readers._logs.extremes import EXTREME, USUAL
from hangdoc.postmortem.readers._logs.figure_kinds import SPENT, UNIT, Meaning, meaning

MAX_FIGURES = 256
MAX_LINE = 600  # characters
MAX_OWNERS = 64
NEAR = 60  # characters in front of what is compared, and behind it, in which its name may stand
OTHERS = "others"  # owner of the usual value, beside a GPU or host
CLOCK = "mhz"

_SENTENCE = re.compile(
    r"(?<=[\w)]{2}[.?!])(?<!vs\.)(?<!e\.g\.)(?<!approx\.)(?<!avg\.)\s+|(?<=[.?!])(?<!vs\.)\s+(?=[A-Z])|;\s"
)
_COUNT = r"(?:\d{1,5}|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen)"
_THINGS = r"(?:ranks?|gpus?|cards?|devices?|nodes?|hosts?|machines?|servers?|processes|workers|ones?)"
_REST = re.compile(
    rf"\b(?:(?:(?:all|each|every|any) (?:of )?)?(?:the )?(?:others\b|other(?: {_COUNT})?(?: {_THINGS})?)"
    rf"|(?:the )?(?:rest(?: of (?:the |them))?|remaining(?: {_COUNT})?)(?: {_THINGS})?"
    r"|every(?:one|body) else|its (?:peers|neighbou?rs)"
    r"|all (?:the )?(?:ranks|gpus|nodes|hosts)(?= .{1,60}\b(?:except|but|apart from|other than)\b)"
    r"|(?:vs\.?|versus|against|compared (?:to|with)) (?:the |a )?(?:global )?(?:median|typical|average|mean)"
    r"(?: (?:global )?rank(?: ?r?\d{1,6})?)?)(?![\w-])",
    re.IGNORECASE,
)
_OWNER = re.compile(
    r"\b(?:(?P<kind>rank|gpu|cuda|card|device)s?[ :#]{0,2}r?"
    r"(?P<numbers>\d{1,6}(?:(?:, ?| and | & |, and )\d{1,6}){0,8})(?![\w/]|\.\d|-\d)"
    rf"|(?:node|host|machine|server|box) (?P<host>{NAME}))",
    re.IGNORECASE,
)
_VALUE = re.compile(
    r"(?<![\w.:/#@+-])(?P<value>\d{1,9}(?:,\d{3})?(?:\.\d{1,9})?)"
    r"(?: ?(?:-|\u2013|to|and|\.\.) ?(?P<high>\d{1,9}(?:\.\d{1,9})?))?"
    rf"(?: ?(?P<unit>{UNIT}|MHz|TF))?(?![\w/:]|\.\d|-\d)",
    re.IGNORECASE,
)
# It happened once, is no pace of the training, or no measurement.
_OTHER_TOPIC = re.compile(
    r"\b(?:start\w*|join\w*|connect\w*|(?<!same )(?<!under )(?<!full )load\w*|init\w*|import\w*|compil\w*|exit\w*"
    r"|hang\w*|hung|stuck|die[ds]?|kill\w*|fail\w*|crash\w*|time ?out|timed out|ago|later|earlier|ahead|behind"
    r"|sav(?:e|ed|ing)|checkpoint\w*|ckpt|tokeni[sz]\w*|download\w*|eval\w*|validat\w*|generat\w*|first|warm\w*"
    r"|read\w*|disk|storage|ping|latency|rtt|idle|if|suppose|imagine|e\.g|example|would|could|should|might|expect\w*"
    r"|used to|previously|formerly|fixed|solved|no longer|any ?more|not)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class _Party:
    start: int
    end: int
    of: str = ""
    owners: tuple[str, ...] = ()  # empty: the rest


@dataclass(slots=True)
class Comparisons:
    """Takes the lines of a text in order."""

    found: list[Figure] = field(default_factory=list)

    def feed(self, text: str, number: int) -> None:
        if len(text) > MAX_LINE or len(self.found) >= MAX_FIGURES or not _REST.search(text):
            return
        for sentence in _SENTENCE.split(text):
            self.found += _compared(sentence, number)


def _compared(text: str, number: int) -> list[Figure]:
    """The figures of both parties of a sentence; empty: it compares no two."""
    rests = [_Party(*one.span()) for one in _REST.finditer(text)]
    named = [_named(one) for one in _OWNER.finditer(text) if _outside(one, rests)]
    if len(rests) != 1 or len(named) != 1 or not named[0].owners:
        return []
    parties = sorted((rests[0], named[0]), key=lambda one: one.start)
    values = _two_values(text, parties)
    if not values:
        return []
    around = _around(text, parties, values)
    of = EXTREME if named[0].of == "rank" else named[0].of
    figures: list[Figure] = []
    for party, value in zip(parties, values, strict=True):
        unit = (value["unit"] or values[0]["unit"]).lower()
        known = _meaning(around, unit)
        if known is None or _OTHER_TOPIC.search(around):
            return []
        amount = f"{_amount(value) * (known.factor or 1.0):.9g}"
        name = "clock" if unit == CLOCK else "own work" if known.kind == "work" else known.kind
        for owner in party.owners or (USUAL if of == EXTREME else OTHERS,):
            figures.append(Figure(known.kind, name, of, owner, amount, False, known.factor is not None, None, number))
    return figures if _is_worse(figures, of) else []


def _is_worse(figures: Sequence[Figure], of: str) -> bool:
    """True if those who are named are slower than the rest; who is faster explains nothing."""
    rest = next(float(one.value) for one in figures if one.owner == (USUAL if of == EXTREME else OTHERS))
    named = [float(one.value) for one in figures if one.owner not in (USUAL, OTHERS)]
    return max(named) < rest if figures[0].kind == "rate" else min(named) > rest


def _outside(found: re.Match[str], parties: Sequence[_Party]) -> bool:
    return all(found.end() <= one.start or found.start() >= one.end for one in parties)


def _named(found: re.Match[str]) -> _Party:
    if found["host"]:
        return _Party(*found.span(), "host", (found["host"],) if is_host_name(found["host"]) else ())
    of = "rank" if found["kind"].lower() == "rank" else "gpu"
    return _Party(*found.span(), of, tuple(map(str, listed_numbers(found["numbers"], MAX_OWNERS))))


def _two_values(text: str, parties: Sequence[_Party]) -> list[re.Match[str]]:
    """The values of both parties: the first has a unit, the second one may lack it. Empty: there are not two."""
    found = [one for one in _VALUE.finditer(text) if _outside(one, parties) and one["unit"] not in ("%", "x")]
    while found and not found[0]["unit"]:
        found = found[1:]  # a number of something else
    if len(found) > 2:
        found = [one for one in found if one["unit"]]
    return found if len(found) == 2 and found[1].start() > parties[0].start else []


def _amount(value: re.Match[str]) -> float:
    """The value; of a span, its middle."""
    low = float(value["value"].replace(",", ""))
    return (low + float(value["high"])) / 2 if value["high"] else low


def _meaning(around: str, unit: str) -> Meaning | None:
    """What values in this unit mean between these words; None: not the pace of the training."""
    if unit == CLOCK:
        return Meaning("rate")
    known = meaning(" ".join(around.split()), "tflops" if unit == "tf" else unit, True)
    if known is None or (known.kind == "rate") == (known.factor is not None):
        return None
    return known if known.kind in (SPENT | {"input", "rate"}) - {"wait"} else None


def _around(text: str, parties: Sequence[_Party], values: Sequence[re.Match[str]]) -> str:
    """The words near the parties and values of a sentence, without these."""
    spans = sorted([(one.start, one.end) for one in parties] + [one.span() for one in values])
    parts = [text[max(spans[0][0] - NEAR, 0) : spans[0][0]]]
    parts += [text[before[1] : behind[0]] for before, behind in pairwise(spans)]
    return " ".join([*parts, text[spans[-1][1] :][:NEAR]]).lower()
