"""How many members each host says that its group has: `from 2 peers`, `participants=3`, `world size 4`.

Decentralised and elastic trainings (hivemind, torchft, elastic Horovod, DiLoCo) go on with whoever they find, so that a
host that finds nobody trains alone. The host is in a heading or a prompt above its lines, which may be its name alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._host_context import HostContext
from hangdoc.postmortem.readers._host_names import is_host_name
from hangdoc.postmortem.readers._pasted_text import text_lines
from hangdoc.redaction.text import redact_text

KIND = "members_counted"
MAX_LINES = 20_000
MAX_LINE = 400  # characters
MAX_HOSTS = 4_096
LEAST_HOSTS = 3
_WHO = r"(?:peers?|participants?|members?|replica groups?|replicas)"
_COUNT = re.compile(
    rf"\b(?:from|with|among|across|of|sees?|found|have|has) (?P<behind>\d{{1,6}}) (?:other )?{_WHO}\b"
    rf"|\b(?:num[_ ]?(?:peers|participants|members|replicas)|participants|peers|members|replica_world_size"
    rf"|quorum[_ ]size|(?:hvd|horovod)[._ ]size(?:\(\))?|swarm[_ ]size)[\"']?\s?[:=]\s?(?P<named>\d{{1,6}})\b",
    re.IGNORECASE,
)
_NONE = re.compile(rf"\b(?:there are )?no other {_WHO}\b|\bno {_WHO} (?:found|joined|available)\b", re.IGNORECASE)
_ALONE = re.compile(r"\s{0,4}([A-Za-z][\w.-]{1,100})\s{0,4}:?\s*")
_LABEL = re.compile(r"\s{0,4}\[?([A-Za-z][\w.-]{1,100})\]?\s?(?::|\|)\s")


@dataclass(slots=True)
class _Host:
    """The counts of one host, in order."""

    counts: list[int] = field(default_factory=list)
    line: int = 0
    text: str = ""


class MemberCountReader:
    name = "members that each host counts"
    order = 65
    help = "the last minutes of the log of every peer, each below the name of its host"

    def recognises(self, source: Source) -> bool:
        return len(_COUNT.findall(source.head_text)) >= LEAST_HOSTS

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        hosts = _hosts(list(text_lines(source, context))[:MAX_LINES])
        for host, seen in hosts.items() if len(hosts) >= LEAST_HOSTS else ():
            fields = {"least": str(min(seen.counts)), "most": str(max(seen.counts)), "owner": host}
            event = LogEvent(KIND, redact_text(seen.text.strip())[:MAX_LINE], source.name, seen.line, None, fields)
            yield Piece(ProcessRef(None, host), "logs", Logs((event,)))


def _hosts(lines: list[str]) -> dict[str, _Host]:
    found: dict[str, _Host] = {}
    for number, host, text in _owned(lines):
        count = _COUNT.search(text[:MAX_LINE])
        none = _NONE.search(text[:MAX_LINE])
        if (count is None and none is None) or (host not in found and len(found) >= MAX_HOSTS):
            continue
        seen = found.setdefault(host, _Host())
        if count is not None:
            seen.counts.append(int(count["behind"] or count["named"]))
        seen.line, seen.text = number, text
    return {host: seen for host, seen in found.items() if seen.counts}


def _owned(lines: list[str]) -> Iterator[tuple[int, str, str]]:
    """The lines with their hosts."""
    context, below = HostContext("\n".join(lines).encode()), None
    for number, text in enumerate(lines, 1):
        if (alone := _ALONE.fullmatch(text)) and is_host_name(alone[1]):
            below = alone[1]
        label = _LABEL.match(text)
        named = label[1] if label and is_host_name(label[1]) else None
        if host := named or below or context.at(number):
            yield number, host, text


READER = MemberCountReader()
