"""Puts the host in front of each line of its output, where a tool ran a command on many hosts and names them above it.

Ansible prints `n3 | CHANGED | rc=0 >>` above the output of a host (ansible: plugins/callback/minimal.py), parallel-ssh
`[1] 10:00:02 [SUCCESS] n3` (pssh: psshlib/task.py), `clush -b` and `dshbak -c` a set of hosts between two rulers. A
loop of the shell prints what its `echo` says; without one, the lines are those of its hosts in order, if each host has
printed one, or lines of the same forms. With `n3 | ` in front, every reader knows whose line it is. Longer outputs, and
those that name ranks, are left as they are: their readers know the headings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hangdoc.postmortem.readers._cleaning import TextLine
from hangdoc.postmortem.readers._host_names import NAME, hosts_in_set, is_host_name, prompt_of
from hangdoc.postmortem.readers._shell_loops import ShellLoop, shell_loop

MAX_LINE = 400  # characters
MAX_SECTION = 8  # lines below one heading: a value or a few, and no report
MAX_EACH = 6  # lines that each host of a loop prints
MAX_HOSTS = 64  # of one heading, or of a loop
MAX_ADDED = 2_000  # lines of a text that several hosts have in common
LEAST_HOSTS = 2

_ANSIBLE = re.compile(
    rf"\s{{0,4}}({NAME}) \| (?:CHANGED|SUCCESS|FAILED!?|UNREACHABLE!?)(?: \| rc=-?\d{{1,3}})? (?:>>|\(stdout\))\s*"
)
_PSSH = re.compile(
    rf"\s{{0,4}}\[\d{{1,5}}\] \d\d:\d\d:\d\d \[(?:SUCCESS|FAILURE)\] (?:[\w.-]{{1,32}}@)?({NAME})(?: .{{0,80}})?"
)
_OF_RANK = re.compile(r"(?<![A-Za-z])RANK[ =:]|(?<![A-Za-z])rank[ _=:]{0,2}\d|\[rank")
_RULER = re.compile(r"-{4,}\s*")
_SET = re.compile(r"([A-Za-z][\w.,\[\]-]{0,300}?)(?: \(\d{1,5}\))?\s*")
_LABELS = re.compile(r"\b(?:pdsh|clush|dsh|pssh|parallel-ssh)\b .{0,400}[^:]\s*")  # commands whose output has labels
_LABEL = re.compile(rf"({NAME}): ")
_LABELLED = re.compile(r"\s{0,40}([A-Za-z][\w .()/-]{0,40}?) ?[:=]")
_ANNOUNCES = re.compile(r"\b(?:echo|printf|hostname)\b")  # who printed what follows
_ELSEWHERE = re.compile(r"\b(?:ssh|rsh|kubectl|oc|docker|podman|srun|hostname|salt)\b")


@dataclass(frozen=True, slots=True)
class _Section:
    """The lines `start` to `end` (exclusive) of these hosts, and whether the first one has the name in front."""

    hosts: tuple[str, ...]
    start: int
    end: int
    named: bool = False


def with_hosts(lines: Sequence[TextLine]) -> list[TextLine]:
    """The lines, with `n3 | ` in front of those that a tool printed for the host n3."""
    sections = list(_sections(lines))
    if len({host for section in sections for host in section.hosts}) < LEAST_HOSTS:
        return list(lines)
    found: list[TextLine] = []
    at = added = 0
    for section in sections:
        found += lines[at : section.start]
        own = [line for line in lines[section.start : section.end] if line.text.strip()]
        added += len(own) * (len(section.hosts) - 1)
        if len(own) > MAX_SECTION or any(_OF_RANK.search(line.text) for line in own) or added > MAX_ADDED:
            found += lines[section.start : section.end]
        else:
            found += [_of_host(host, line, section.named) for host in section.hosts for line in own]
        at = section.end
    return [*found, *lines[at:]]


def _of_host(host: str, line: TextLine, named: bool) -> TextLine:
    text = line.text.strip()
    if named and text.startswith(host):
        text = text[len(host) :].lstrip(" \t:|,=>-")
    return replace(line, text=f"{host} | {text}") if text else line


def _sections(lines: Sequence[TextLine]) -> Iterator[_Section]:
    looped: frozenset[str] | None = frozenset()  # None: labels in front are hosts
    at = 0
    while at < len(lines):
        text = lines[at].text
        if len(text) > MAX_LINE and " in " not in text:
            at += 1
            continue
        if loop := shell_loop(text[: 4 * MAX_LINE]):
            looped = _names(loop)
            at += 1
            yield from _as_many_lines_each(lines, at, loop, looped)
            continue
        if (prompt := prompt_of(text)) and _LABELS.search(prompt.command):
            looped, at = None, at + 1
            continue
        hosts, start, named = _heading(lines, at, looped)
        if not hosts:
            looped = frozenset() if prompt else looped
            at += 1
            continue
        end = _end(lines, max(start, at + 1), looped)
        if end > start:
            yield _Section(hosts, start, end, named)
        at = max(end, at + 1)


def _as_many_lines_each(
    lines: Sequence[TextLine], start: int, loop: ShellLoop, looped: frozenset[str]
) -> Iterator[_Section]:
    """The output of a loop over hosts, if each has printed the same lines but for their values, and nothing else names
    the hosts."""
    hosts = [word for word in loop.words[:MAX_HOSTS] if word in looped]
    if len(hosts) != len(loop.words) or len(set(hosts)) != len(hosts) or _ANNOUNCES.search(loop.body):
        return
    while start < len(lines) and not lines[start].text.strip():
        start += 1
    end = start
    while end < len(lines) and end <= start + len(hosts) * MAX_EACH and lines[end].text.strip():
        if prompt_of(lines[end].text) or _in_front(lines[end].text, looped):
            break
        end += 1
    each, rest = divmod(end - start, len(hosts))
    if rest or not 1 <= each <= MAX_EACH:
        return
    if each > 1:  # lines of several forms in a fixed order
        labels = [_label(line.text) for line in lines[start:end]]
        if None in labels or labels != labels[:each] * len(hosts) or len(set(labels[:each])) < each:
            return
    for at, host in enumerate(hosts):
        yield _Section((host,), start + at * each, start + (at + 1) * each)


def _label(text: str) -> str | None:
    """What a line says in front of its value: `Physical state`."""
    found = _LABELLED.match(text)
    return found[1] if found else None


def _heading(lines: Sequence[TextLine], at: int, looped: frozenset[str] | None) -> tuple[tuple[str, ...], int, bool]:
    """The hosts that a line names, where their output begins, and whether it begins behind the name."""
    text = lines[at].text
    if one := _ANSIBLE.fullmatch(text) or _PSSH.fullmatch(text):
        return (one[1],), at + 1, False
    if _RULER.fullmatch(text) and at + 2 < len(lines) and _RULER.fullmatch(lines[at + 2].text):
        named = _SET.fullmatch(lines[at + 1].text)
        return (hosts_in_set(named[1], MAX_HOSTS) if named else ()), at + 3, False
    if host := _in_front(text, looped):
        alone = text.strip().strip(":=-# ") == host
        return (host,), at + alone, not alone
    return (), at, False


def _in_front(text: str, looped: frozenset[str] | None) -> str | None:
    """The host with which a line begins: one of a loop, or a label."""
    if looped is None:
        label = _LABEL.match(text.strip())
        return label[1] if label and is_host_name(label[1]) else None
    first = re.split(r"[\s:|,=>]", text.strip().lstrip("=-# "), maxsplit=1)[0]
    return first if first in looped else None


def _end(lines: Sequence[TextLine], start: int, looped: frozenset[str] | None) -> int:
    """The end of the output that begins on a line: the next heading, prompt or blank line."""
    for at in range(start, min(len(lines), start + MAX_SECTION + 1)):
        text = lines[at].text
        if not text.strip() or prompt_of(text) or _heading(lines, at, looped)[0]:
            return at
    return min(len(lines), start + MAX_SECTION + 1)


def _names(loop: ShellLoop) -> frozenset[str]:
    """The hosts over which a loop runs a command: its words, with what its commands put around them."""
    if not _ELSEWHERE.search(loop.body):
        return frozenset()
    variable = re.compile(rf"([A-Za-z][\w.-]{{0,60}})?\$(?:\{{{loop.variable}\}}|{loop.variable}\b)([\w-]{{0,60}})")
    around = {(found[1] or "", found[2]) for found in variable.finditer(loop.body)}
    names = {f"{before}{word}{behind}" for before, behind in sorted(around)[:8] for word in loop.words[:MAX_HOSTS]}
    return frozenset(name for name in names if re.fullmatch(NAME, name) and re.search("[A-Za-z]", name))
