"""The host that a line is about, where the line itself may not name it.

A line of the kernel or of a driver is about its host. The prompt of the shell in which it was printed names it
(`root@gn12:~# dmesg`), or a heading (`### gn12`, `On gn12:`; `HostContext`), or a label that a loop put before it
(`host_in_front`).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

from hangdoc.postmortem.readers._host_names import (
    MAX_LINES,
    NAME,
    as_rank,
    between_rulers,
    host_alone,
    is_host_name,
    is_lettered,
    prompt_of,
)
from hangdoc.postmortem.readers._shell_loops import shell_loop

# Kinds of messages about the host on which they were printed, whichever process reports them first.
OF_HOST = frozenset(
    {"xid", "gpu_lost", "gpu_hardware", "storage_lost", "storage_back", "port_event", "ib_event", "oom_kill"}
)

_TIME = re.compile(
    r"(?:\[?\s{0,8}\d{1,9}\.\d{3,9}\]?|\[?(?:[A-Z][a-z]{2} )?[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
    r"(?: \d{4})?\]?|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?"
    r"|\[?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]?)[:,]?\s+"
)
_LABEL = re.compile(rf"(?:\[({NAME})\][:,]?\s|\(({NAME})\)[:,]?\s|<({NAME})>:?\s|({NAME})(?::\s|\s{{0,20}}[|>]\s))\s*")
_LAST_LABEL = re.compile(
    rf"(?:^|[\s\[(])({NAME})[\])]?: ?(?:[A-Za-z_][\w.]{{0,60}}(?:Error|Exception): ?)?(?:CUDA error: ?)?$"
)
_WHEN = r"(?:,? (?:(?:right |just )?now|earlier|later|before|afterwards?|then|today|again|meanwhile|at that time))?"
_HEADING = re.compile(
    rf"\s{{0,3}}(?:#{{1,6}} ?|[=\-*~]{{2,}} ?|\d{{1,2}}[.)] )?(?:(?i:(?:and |only )?on|from|(?P<place>host|node"
    rf"|machine|server))[ :]+)?"
    rf"(?P<host>{NAME})(?P<note> ?\([^()\n]{{1,60}}\))?"
    rf"(?: (?:has|shows|says|printed|gives|had)(?: (?:this|these|that|only this))?)?{_WHEN}"
    r"(?:(?P<end> ?:)| ?[=\-*~]{2,})?\s*"
)
# `nid001240 (where ranks 0-3 are), dmesg:`, `gn7 kernel log`
_KERNEL_OF = re.compile(
    rf"[\s#*=-]{{0,6}}(?:on )?({NAME})(?: ?\([^()\n]{{1,60}}\))?[,:]? (?:has |'s )?"
    r"(?:dmesg|kernel(?: log| messages?)?|journal(?:ctl)?"
    r"|syslog)\b[^\n]{0,40}?[:=*#-]*\s*"
    # `dmesg, trn-b:`, `nvidia-smi (gn7):`
    rf"|[\s#*=-]{{0,6}}(?:dmesg|kernel log|journal(?:ctl)?|syslog|nvidia-smi|ibstat)(?:,| on| of| from)? "
    rf"\(?(?P<behind>{NAME})\)? ?[:=*#-]+\s*"
)
_SAYS = r"(?: (?:has|had|shows|showed|says|gives|printed|logged)(?: (?:only )?(?:this|these|that))?)"
_SENTENCE_END = re.compile(
    rf"(?:^|[\s,(])(?:on|from|of)(?: the)?(?: host| node| machine| server)? ({NAME}){_SAYS}?{_WHEN}\)?\s?[:.]?\s*$"
    rf"|(?:^|[\s,(])({NAME}){_SAYS}\s?:\s*$"
)
_CUE = re.compile(  # of a sentence that announces what was found on a host
    r"\b(?:dmesg|kernel|journal(?:ctl)?|syslog|logs?|found|see|saw|machine|node|host|box|nvidia-smi|output|this"
    r"|here|only"
    r"|checked|shows?|has|says)\b",
    re.IGNORECASE,
)
_INLINE = re.compile(
    rf"\b(?:dmesg|kernel log|journal(?:ctl)?|syslog|nvidia-smi)\b.{{0,20}}?\b(?:on|of|from) ({NAME})\b", re.IGNORECASE
)


@dataclass
class HostContext:
    """The host of each part of a text, found when it is first asked for."""

    content: bytes = b""

    def at(self, line: int) -> str | None:
        """The host of a line (from 1), by the text above it; None: not stated."""
        starts, hosts = self._parts
        part = bisect_right(starts, line) - 1
        return hosts[part] if part >= 0 else None

    @cached_property
    def _parts(self) -> tuple[list[int], list[str | None]]:
        starts: list[int] = []
        hosts: list[str | None] = []
        before, looped = ("", ""), frozenset[str]()
        alone: tuple[int, str] | None = None  # a line above that is nothing but a host
        for number, text in enumerate(self.content.decode("utf-8", "replace").split("\n", MAX_LINES)[:MAX_LINES], 1):
            known, host = _stated(text)
            if loop := shell_loop(text[:2000]):
                looped = frozenset(filter(is_host_name, loop.words))
            if text.strip() in looped:  # a host alone is a heading
                known, host = True, text.strip()
            if (ruled := between_rulers(*before, text)) and is_host_name(ruled):
                known, host = True, ruled
            if alone and not known and prompt_of(text):  # `cn-31` above `$ nvidia-smi`
                known, (number, host) = True, alone
            if text.strip():
                alone = (number, name) if (name := host_alone(text)) else None
            before = before[1], text
            if known and (not hosts or hosts[-1] != host):
                starts.append(number)
                hosts.append(host)
        return starts, hosts


def _ends(heading: re.Match[str]) -> bool:
    """A host with nothing around it, or only a note, is no heading."""
    return bool(heading["end"]) or (heading[0].strip() != heading["host"] and not heading["note"])


def _stated(text: str) -> tuple[bool, str | None]:
    """Whether a line begins a part of the text, and the host of that part."""
    if len(text) > 300 or not text.strip():
        return False, None
    if prompt := prompt_of(text):
        return prompt.states_host, prompt.host
    if (found := _HEADING.fullmatch(text)) and _ends(found):
        name = found["host"]
        if is_host_name(name) or (found["place"] and is_lettered(name)):
            return True, name
    if len(text) <= 160 and (found := _KERNEL_OF.fullmatch(text)) and _is_host(name := found[1] or found["behind"]):
        return True, name
    if (
        len(text) <= 200
        and (found := _SENTENCE_END.search(text))
        and _CUE.search(text)
        and _is_host(name := found[1] or found[2])
    ):
        return True, name.rstrip(".")
    return False, None


def _is_host(name: str) -> bool:
    """True for a host where a kernel log is announced: there, `trn-b` is one, too."""
    return is_host_name(name) or is_lettered(name)


def host_in_front(raw: str, message: int) -> str | None:
    """The host that a label names in front of the message that begins at offset `message` of a raw line."""
    front = raw[max(0, message - 300) : message]
    if inline := _INLINE.search(front):
        return inline[1] if is_host_name(inline[1]) else None
    rest = front.lstrip(" \t>|")
    for _ in range(4):
        if time := _TIME.match(rest):
            rest = rest[time.end() :]
        elif label := _LABEL.match(rest):
            name = next(group for group in label.groups() if group)
            return name if is_host_name(name) and as_rank(name) is None else None
        else:
            break
    last = _LAST_LABEL.search(front)
    return last[1] if last and is_host_name(last[1]) else None
