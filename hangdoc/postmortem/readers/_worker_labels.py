"""Puts the rank in front of each line with the label of a worker, where the text gives the labels their ranks.

Launchers of clusters name their workers in their own way, and print the name in front of each line: `W3 | ...`,
`[worker-3] ...`, `(Trainer#4) ...`. A line of each worker states its rank, in the same words: `W3 | ml-w3 | launched
rank=2 world=4`. Or a sentence does: `worker-3 is rank 2`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hangdoc.evidence import limits
from hangdoc.postmortem.readers._cleaning import TextLine
from hangdoc.postmortem.readers._host_names import as_rank

MAX_LINE = 400  # characters of a line that states a rank
MAX_LINES = 20_000  # searched for statements
MAX_LABELS = 4096
LEAST = 2  # workers

_NAME = r"[A-Za-z](?:[A-Za-z_.-]{0,40}[#_.:-]?\d{1,6}|[A-Za-z_-]{2,40})"
_LABEL = re.compile(
    rf"\s{{0,4}}(?:\[(?P<square>{_NAME})\]:?|\((?P<round>{_NAME})(?:[ ,][^()\n]{{1,60}})?\):?|<(?P<angle>{_NAME})>:?"
    rf"|(?P<bar>{_NAME})\s{{0,20}}[|>](?!\|)|(?P<colon>{_NAME}):)(?=\s)\s?"
)
_RANK = re.compile(
    r"(?<![\w-])(?:(?:global|world)[ _-]?)?rank(?:[ _]id)?\s{0,2}(?:=|:|#|is|->)?\s{0,2}(\d{1,6})(?!\w|\.\d|-\d)"
    r"|(?<= )\[r(\d{1,6})\](?= )",
    re.IGNORECASE,
)
_OTHER_RANKS = re.compile(
    r"(?:local|node|group|tp|pp|dp|tensor|pipeline|data)[ _-]?(?:parallel[ _-])?rank", re.IGNORECASE
)
_SAYS = re.compile(
    rf"(?<![\w.-])(?P<name>{_NAME})\s{{0,3}}(?:=|is|was given|got|has|runs|->|\u2192|:|\()\s{{0,3}}(?:the )?"
    r"(?:global[ _-]?)?rank[ =:#]{0,2}(?P<rank>\d{1,6})(?!\w|\.\d)",
    re.IGNORECASE,
)
_NO_LABEL = re.compile(
    r"(?:INFO|WARN(?:ING)?|ERROR|DEBUG|FATAL|CRITICAL|TRACE|NOTE|Error|Exception|Traceback|File|Thread|Process|step|epoch"
    r"|iter(?:ation)?|loss|rank|default|NCCL|pid|node_?rank|local_?rank|gpu|cuda)[ _#:.-]?\d*",
    re.IGNORECASE,
)


def with_worker_ranks(lines: Sequence[TextLine]) -> list[TextLine]:
    """The lines, with `[rank2]: ` in place of the label of a worker whose rank is stated."""
    labels = [_label(line.text) for line in lines[:MAX_LINES]]
    used = Counter(label for label in labels if label is not None)
    if len(used) < LEAST:
        return list(lines)
    ranks = _ranks(lines, labels, used)
    if max((used[label] for label in ranks), default=0) < 2:  # none, or a list of places: `hb1: rank 0, pid 3120`
        return list(lines)
    found = []
    for line in lines:
        match = _LABEL.match(line.text)
        rank = ranks.get(_name(match)) if match else None
        text = f"[rank{rank}]: {line.text[match.end() :]}" if match and rank is not None else line.text
        found.append(line if text is line.text else replace(line, text=text))
    return found


def _name(match: re.Match[str]) -> str:
    return next(name for name in match.groups() if name)


def _label(text: str) -> str | None:
    match = _LABEL.match(text) if text[:60].strip() else None
    name = _name(match) if match else None
    return None if name is None or _NO_LABEL.fullmatch(name) or as_rank(name) is not None else name


def _ranks(lines: Sequence[TextLine], labels: Sequence[str | None], used: Mapping[str, int]) -> Mapping[str, int]:
    """Label -> rank, if each worker that states one has its own."""
    stated: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))  # words -> label -> ranks
    told: dict[str, set[int]] = defaultdict(set)
    for line, label in zip(lines, labels, strict=False):
        text = line.text
        if len(text) > MAX_LINE or not ("rank" in text.lower() or " [r" in text) or len(told) > MAX_LABELS:
            continue
        if label is not None and not _OTHER_RANKS.search(text):
            numbers = {found[1] or found[2] for found in _RANK.finditer(text)}
            if len(numbers) == 1:
                words = re.sub(r"[\w.-]*\d[\w.:-]*", "#", text.replace(label, "", 1))
                stated[words][label].add(int(numbers.pop()))
        elif label is None:
            for found in _SAYS.finditer(text):
                if found["name"] in used:
                    told[found["name"]].add(int(found["rank"]))
    for by_label in (told, *stated.values()):
        ranks = {label: next(iter(of)) for label, of in by_label.items() if len(of) == 1}
        distinct = len(set(ranks.values())) == len(ranks) == len(by_label)
        if distinct and len(ranks) >= LEAST and max(ranks.values()) < limits.MAX_RANKS:
            return ranks
    return {}
