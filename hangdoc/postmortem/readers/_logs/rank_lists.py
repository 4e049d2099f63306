"""Values of all ranks in one line, or one to a line, under a name: dictionaries, lists, tensors, numbered lines.

* `fwd ms per rank: {0: 812.2, 1: 811.9}`, `{"rank0": 0.21, "rank1": 0.22}`: a gathered dictionary
* `all_gather of step time: [0.21, 0.22]`, `tensor([0.21, 0.22], device='cuda:0')`: in the order of ranks, if the text
  says that the list goes over ranks
* `next batch per rank (s): 0-8: 0.02, 9: 3.1, 10-15: 0.02`: pairs in one line
* `step 3000  0-12: c2047be8  13: 8e91d35f  14-15: c2047be8`: checksums of all ranks, from 0, without the word
* `step 212   r0 0.31s   r1 0.30s   r2 28.74s`: all ranks, from 0, by a short name
* `0 -> 0.21` or `3 = 0.22` under such a name
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hangdoc.postmortem.readers._host_names import is_host_name, listed_numbers
from hangdoc.postmortem.readers._logs.figure_kinds import UNIT, is_known
from hangdoc.postmortem.readers._logs.figure_values import GPU, HEX, HOST, NUMBER, RANK, Owner, Value, cell_value

MAX_ITEMS = 1_024
LEAST_ITEMS = 3  # of a list without keys
MAX_NAME = 60  # characters
MAX_OPEN_LINES = 256  # of one list
MAX_OPEN = 8_000  # characters of one list

_OVER_RANKS = re.compile(
    r"\b(?:(?:per|by|each|all|every|across|over|of|from|in)[ -](?:the )?(?:dp |global )?"
    r"(?:ranks?|replicas?|process(?:es)?)\b|ranks? ?(?:->|=>|:|-|order)|per[_ -]rank|(?:all[_ ]?)?gather(?:ed)?"
    r"|replicas?\b|rank\W)",
    re.IGNORECASE,
)
_OVER_GPUS = re.compile(r"\b(?:per|by|each|all|every|across|of)[ -](?:gpu|device)s?\b|per[_-]gpu\b", re.IGNORECASE)
_NO_RANKS = re.compile(r"\b(?:lora|low|matrix|svd|adapter|tucker|cp)[ _-]ranks?\b|\branks?[ _]?@", re.IGNORECASE)
_VALUE = rf"(?:{HEX}|{NUMBER})(?: ?(?:{UNIT}))?"
_ITEM = rf"[\"']?(?P<key>[A-Za-z0-9][\w.-]{{0,60}})[\"']?\s?[:=]\s?[\"']?(?P<value>{_VALUE})[\"']?"
_PLAIN_PAIR = rf"\d{{1,6}}(?:-\d{{1,6}})?\s?[:=]\s?{_VALUE}"
_DICTIONARY = re.compile(r"\{([^{}]{3,8000})\}")
_OPEN = re.compile(r"(?:tensor\()?[{\[](?=\s?[\"']?[\w.-]{1,62}[\"']?[:=, ])[^{}\[\]]{4,8000}$")
_ONE_ITEM = re.compile(_ITEM, re.IGNORECASE)
_LIST = re.compile(r"(?:tensor\()?\[([-\d.,\seE+]{5,8000})\]")
_PAIR = re.compile(rf"(?P<keys>\d{{1,6}}(?:-\d{{1,6}})?)\s?[:=]\s?(?P<value>{_VALUE})", re.IGNORECASE)
_INLINE = re.compile(rf"(?<![\w.])(?:{_PLAIN_PAIR}\s?[,;]\s?){{2,256}}{_PLAIN_PAIR}(?=\W*$)", re.IGNORECASE)
_CHECKSUM = rf"\d{{1,6}}(?:-\d{{1,6}})?\s?[:=]\s?{HEX}"
_CHECKSUMS = re.compile(
    rf"(?<![\w.:-])(?:{_CHECKSUM}(?:\s?[,;|]\s?|\s{{2,8}})){{0,256}}{_CHECKSUM}(?=\W*$)", re.IGNORECASE
)
_BY_SHORT_NAME = re.compile(
    rf"(?<![\w.:-])(?:r\d{{1,6}}[ :=]{{1,3}}{_VALUE}\s?[,;|]?\s{{1,8}}){{2,256}}r\d{{1,6}}[ :=]{{1,3}}{_VALUE}(?=\W*$)",
    re.IGNORECASE,
)
_SHORT_NAME = re.compile(r"(?<![\w.])r(\d{1,6})[ :=]{1,3}", re.IGNORECASE)
_SECONDS = re.compile(r"\d ?m?s\b")
_COUNT = re.compile(r"\W{0,4}\w{1,20}[ :=#]{1,3}\d{1,9}\W{0,8}")  # "step 212", in any language
_OF_WEIGHTS = re.compile(r"\b(?:params?|parameters?|weights?|model|replicas?|checksums?|hash|crc\d*|md5|sha\d*)\b")
_PLACE = re.compile(r"\b(?:global[ _]?)?(?:step|iter(?:ation)?|epoch|update)s?[ :=#@]{1,4}\d{1,9}", re.IGNORECASE)
_ROW = re.compile(
    rf"\W{{0,8}}(?P<key>\d{{1,6}})\s{{0,8}}(?:->|=>|=|:|\|)\s{{0,8}}(?P<value>{_VALUE})\W{{0,4}}", re.IGNORECASE
)
_SUM_ROW = re.compile(rf"\s{{0,8}}(?P<key>\d{{1,6}})\s{{2,8}}(?P<value>{HEX})\s{{0,8}}", re.IGNORECASE)
_OWNER_NAME = re.compile(r"(?:(?P<rank>rank|r)|(?P<gpu>gpu|cuda))?[ _:-]?(?P<number>\d{1,6})", re.IGNORECASE)
_GATHERED = re.compile(r"\b(?:all[_ ]?)?gather(?:ed)?\b(?: of| from)?", re.IGNORECASE)
_EDGES = " \t:=([{<>\"'~`*_+]})|,;@-"


@dataclass(slots=True)
class RankLists:
    """Takes the lines of a text in order. A list may go over several lines."""

    _open: str = ""  # a list that has begun
    _lines: int = 0

    def feed(self, text: str, heading: str) -> list[Value]:
        """The values of a list that ends in this line, or of a numbered line below a heading."""
        if self._open and self._lines < MAX_OPEN_LINES:
            text = f"{self._open} {text.strip()}"
        found = [] if len(text) > MAX_OPEN else _in_line(text, heading)
        begins = _OPEN.search(text[-MAX_OPEN:])
        goes_on = begins is not None and not found and bool(_of(f"{heading} {text[: begins.start()]}"))
        self._open, self._lines = (text[-MAX_OPEN:], self._lines + 1) if goes_on else ("", 0)
        return found


def _in_line(text: str, heading: str) -> list[Value]:
    """The values of a dictionary, a list, or a numbered line below a heading."""
    for found in _DICTIONARY.finditer(text):
        name = _name_before(text[: found.start()], heading)
        around = f"{heading} {text[: found.start()]} {text[found.end() :]}"
        if name and (values := _dictionary(found[1], name, around)):
            return values
    if _NO_RANKS.search(f"{heading} {text}"):
        return []
    inline = _INLINE.search(text)
    if inline and (of := _of(text[: inline.start()])):
        return _pairs(inline[0], of, _name_before(text[: inline.start()], heading))
    sums = _CHECKSUMS.search(text)
    if sums and "-" in sums[0] and _are_all(sums[0]):
        name = _name_before(_PLACE.sub(" ", text[: sums.start()]), heading)
        return _pairs(sums[0], RANK, next(filter(_OF_WEIGHTS.search, name.split(", ")), name))
    short = _BY_SHORT_NAME.search(text)
    if short and _are_all(pairs := _SHORT_NAME.sub(r"\1: ", short[0])):
        before, timed = text[: short.start()], _SECONDS.search(pairs)
        if not _COUNT.fullmatch(before):
            return _pairs(pairs, RANK, _name_before(before, heading))
        return _pairs(pairs, RANK, "step" if timed and not is_known(heading) else _name_before("", heading))
    if _OF_WEIGHTS.search(heading) and (row := _SUM_ROW.fullmatch(text)):  # checksums of replicas, in numbered rows
        of, heading = RANK, heading.partition("(")[0].strip(_EDGES) or heading
    elif row := _ROW.fullmatch(text):
        of = _of(heading)
    if row and of:
        value = cell_value(Owner(of, str(int(row["key"]))), heading, row["value"])
        return [value] if value else []
    for found in _LIST.finditer(text):
        if values := _sequence(found[1], text[: found.start()], heading):
            return values
    return []


def _are_all(text: str) -> bool:
    """True if the numbers and spans in front of the values are 0, 1, 2 and so on, each of them once."""
    numbers = [number for item in _PAIR.finditer(text) for number in listed_numbers(item["keys"], MAX_ITEMS)]
    return 1 < len(numbers) <= MAX_ITEMS and numbers == list(range(len(numbers)))


def _pairs(text: str, of: str, name: str) -> list[Value]:
    """The values in `0-8: 0.02, 9: 3.1`."""
    values = []
    for item in _PAIR.finditer(text):
        for number in listed_numbers(item["keys"], MAX_ITEMS):
            values.append(cell_value(Owner(of, str(number)), name, item["value"]))
    return [one for one in values[:MAX_ITEMS] if one] if name else []


def _sequence(inner: str, before: str, heading: str) -> list[Value]:
    """The values of a list in the order of ranks, if the text says so."""
    of = _of(before) or ("" if before.strip() else _of(heading))
    items = [one.strip() for one in inner.split(",")]
    name = _name_before(before, heading)
    if not of or not name or not LEAST_ITEMS <= len(items) <= MAX_ITEMS:
        return []
    listed = (cell_value(Owner(of, str(at)), name, item) for at, item in enumerate(items))
    return [one for one in listed if one]


def _of(text: str) -> str:
    """Whose values these are, as a name or a heading says; "": it does not say."""
    return RANK if _OVER_RANKS.search(text) else GPU if _OVER_GPUS.search(text) else ""


def _name_before(before: str, heading: str) -> str:
    """The name of a list: what stands before it, else the heading."""
    name = _GATHERED.sub("", before).strip(_EDGES)
    return (name if re.search(r"[A-Za-z]", name) else heading)[-2 * MAX_NAME :].lower().strip(_EDGES)


def _dictionary(inner: str, name: str, around: str) -> list[Value]:
    """The values of a dictionary with a key for each rank, GPU or host. Empty: it has other keys as well."""
    items = list(_ONE_ITEM.finditer(inner))
    if not 1 < len(items) <= MAX_ITEMS or re.sub(r"[\s,]|\.\.\.", "", _ONE_ITEM.sub("", inner)):
        return []
    of = "" if _NO_RANKS.search(around) else _of(around)
    values = []
    for item in items:
        key = _OWNER_NAME.fullmatch(item["key"])
        owner = None
        if key:
            named = RANK if key["rank"] else GPU if key["gpu"] else of
            owner = Owner(named, str(int(key["number"]))) if named else None
        elif is_host_name(item["key"]):
            owner = Owner(HOST, item["key"])
        value = cell_value(owner, name, item["value"]) if owner else None
        if value is None:
            return []
        values.append(value)
    return values
