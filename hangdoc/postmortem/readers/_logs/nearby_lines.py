"""What the lines near a matched line say of it: whose it is, who prints the same, and how it went on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from hangdoc.postmortem.readers._host_names import listed_numbers
from hangdoc.postmortem.readers._logs.prefixes import PrefixStyle, parse
from hangdoc.postmortem.readers._logs.scan import MatchedLine

_RAISER = re.compile(r"\(RANK (\d{1,6})\)|DeadLock detected from rank: (\d{1,6})")
_NUMBERED = re.compile(r"([\w.-]{1,100}?[-_.]?)(\d{1,6})")
# Behind the lines of one rank: `(2, 3, 5, 6 the same. 0: nothing)`, `... ranks 4-7 are identical`.
_ALIKE = re.compile(
    r"\W{0,8}(?:and |also )?(?:ranks? )?(\d{1,6}(?: ?(?:,(?: and)?|and|&|-|\u2013|to) ?\d{1,6}){0,64})"
    r" (?:(?:are|is|all|both|say|print|report|have|show) ){0,2}(?:exactly )?(?:the )?(?:same|identical|alike)\b"
    r"(?: (?:as|to) (?:rank )?(?P<as>\d{1,6}))?(?:[.;] (?P<tail>[^()\n]{1,60}))?\W{0,4}",
    re.IGNORECASE,
)
# The other way round: `... (same for 1 3 4 6 7)`, `[same from ranks 4-7]`.
_SAME_FOR = re.compile(
    r"\W{0,8}(?:and )?(?:the )?(?:exact(?:ly)? )?same (?:lines? |error |message |output )?(?:for|on|from|in|with|of)"
    r" (?:the )?(?:other )?(?:ranks? )?"
    r"(\d{1,6}(?: ?(?:,(?: and)?|and|&|-|\u2013|to| ) ?\d{1,6}){0,64})\W{0,4}",
    re.IGNORECASE,
)
MAX_ALIKE = 512  # ranks in such a line
MAX_BEHIND = 4  # lines between
MAX_CONTAINERS = 64  # rows before and after one
_RECORD_OF_ERROR = re.compile(r"\b(?:ERROR|CRITICAL|EXCEPTION|FATAL)\b")  # of logging, loguru, absl
# The rank that speaks, and not one that it speaks of: `rank 4: loop failed`, `- rank 1 step 2207 bad`, `[rank=3]`
_RANK_IN_RECORD = re.compile(
    r"(?:[\[(|:-] ?|(?:ERROR|CRITICAL|EXCEPTION|FATAL)\]? ?:? ?)(?:global[_ ])?[Rr]ank[ :=#]{0,2}(\d{1,6})\b"
)
_SPAWNED = re.compile(r"-- Process (\d{1,4}) terminated with the following error:")
# The end of a save, in the words of frameworks and scripts.
_SAVED = re.compile(
    r"\bsaved (?:the |a |model |training ){0,2}checkpoint|checkpoint (?:was |has been |successfully )?(?:saved|written)"
    r"|(?:finished|done|completed?) (?:saving|writing)|(?:save|saving) (?:finished|done|completed?|took)"
    r"|\[Torch\] Saved ",
    re.IGNORECASE,
)
MAX_SAVE = 200  # lines behind its beginning
MAX_LINE = 400  # characters of a line that are searched
_SHAPE = re.compile(r"(?:^|[\s-])Process (\d{1,6}): (\[[\d, \[\]]{0,200}\])\s*$")
MAX_PROCESSES = 1024  # lines of a list


def raising_rank(matched: MatchedLine) -> int | None:
    """The rank whose traceback another rank prints: DCP's `(RANK 5)`, Lightning's `DeadLock detected from rank: 5`."""
    found = _RAISER.search(matched.text) or next(filter(None, map(_RAISER.search, matched.before(1))), None)
    return int(found[1] or found[2]) if found else None


def spawned_rank(matched: MatchedLine) -> int | None:
    """The local rank of a process of torch.multiprocessing.spawn whose traceback follows."""
    found = next(filter(None, map(_SPAWNED.search, matched.before(1))), None)
    return int(found[1]) if found else None


def recorded_rank(matched: MatchedLine) -> int | None:
    """The rank that a log record names, with whose exception the logger prints the traceback below it."""
    above = next(iter(matched.before(1)), "")
    found = {int(one[1]) for one in _RANK_IN_RECORD.finditer(above)} if _RECORD_OF_ERROR.search(above) else ()
    return found.pop() if len(found) == 1 else None


def has_peers(name: str, matched: MatchedLine) -> bool:
    """True if the list around a container shows another one whose name differs only in its number."""
    numbered = _NUMBERED.fullmatch(name)
    if numbered is None:
        return False
    around = " ".join([*matched.before(MAX_CONTAINERS), *matched.after(MAX_CONTAINERS)])
    found = re.findall(rf"(?<![\w.-]){re.escape(numbered[1])}(\d{{1,6}})(?![\w.-])", around)
    return any(number != numbered[2] for number in found)


def odd_process(matched: MatchedLine) -> int | None:
    """The only process with another shape in the list that Accelerate prints below its exception."""
    shapes = {int(one[1]): one[2] for text in matched.after(MAX_PROCESSES) if (one := _SHAPE.search(text))}
    counts = Counter(shapes.values()).most_common(2)
    if len(counts) < 2 or counts[1][1] != 1 or counts[0][1] < 2 or len(set(shapes.values())) > 2:
        return None
    return next(process for process, shape in shapes.items() if shape == counts[1][0])


def save_ended(matched: MatchedLine) -> bool:
    """True if a line below the beginning of a save tells of its end."""
    return any(_SAVED.search(text[:MAX_LINE]) for text in matched.after(MAX_SAVE))


def ranks_alike(matched: MatchedLine, rank: int, style: PrefixStyle) -> Sequence[int]:
    """The ranks that print the same line, as the text says behind it."""
    last = True  # the line is the last one above
    for text in matched.after(MAX_BEHIND):
        plain = parse(text, style).text
        if found := _SAME_FOR.fullmatch(text) or _SAME_FOR.fullmatch(plain):
            meant = last
        elif found := _ALIKE.fullmatch(text) or _ALIKE.fullmatch(plain):
            meant = int(found["as"]) == rank if found["as"] else last
        if found:
            others = {rank, *map(int, re.findall(r"\d{1,6}", found.groupdict().get("tail") or ""))}
            return [one for one in listed_numbers(found[1], MAX_ALIKE) if one not in others] if meant else ()
        last = last and "Watchdog caught" not in text
    return ()
