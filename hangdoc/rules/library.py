"""The library of playbooks: what each one is once compiled, and which explain which. Light to import."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hangdoc.formatting import suggestion

if TYPE_CHECKING:
    from hangdoc.rules.conditions import Condition
    from hangdoc.rules.parser import Selections
    from hangdoc.rules.schema import Envelope, Location
    from hangdoc.rules.templates import Text
    from hangdoc.rules.terms import Listing

MAX_SENTENCE = 300  # characters of a problem, which may quote the playbook


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a playbook: location, sentence, remedy."""

    file: Path
    line: int  # from 1; 0: no particular line
    sentence: str
    remedy: str

    def __str__(self) -> str:
        sentence, remedy = _shortened(self.sentence), _shortened(self.remedy)
        return f"{self.file}{f':{self.line}' if self.line else ''}: {sentence}; {remedy}"


@dataclass(frozen=True, slots=True)
class Playbook:
    """A compiled playbook; conditions, lists and templates by their location in the file."""

    file: Path
    envelope: Envelope
    selections: Selections
    conditions: Mapping[Location, Condition]
    listings: Mapping[Location, Listing]
    templates: Mapping[Location, Text]
    lines: Mapping[Location, int]

    @property
    def id(self) -> str:
        return self.envelope.id


@dataclass(frozen=True)
class Library:
    """The playbooks in order of id, and the problems of those that were skipped."""

    playbooks: tuple[Playbook, ...]
    problems: tuple[Problem, ...] = ()

    def explains(self, id: str, other: str) -> bool:
        """True if the finding of one playbook explains that of another."""
        return other in self._explained.get(id, ())

    @cached_property
    def _explained(self) -> Mapping[str, frozenset[str]]:
        """The playbooks that each one explains: those of the layers after its own, and those that it names.

        One that names a playbook of an earlier layer is not explained by it.
        """
        named = {p.id: frozenset(p.envelope.explains) for p in self.playbooks}
        layer = {p.id: p.envelope.layer_number for p in self.playbooks}
        return {
            id: named[id] | {other for other in layer if layer[id] < layer[other] and id not in named[other]}
            for id in layer
        }


def refused_relations(kept: dict[str, Playbook], known: Collection[str]) -> Iterator[Problem]:
    """Takes out, and names, playbooks that name an unknown one, and the one that closes each circle of explanations.

    That is one of the last directory, so that users' own playbooks take no built-in one out; of those, one whose
    `explains` leads back to its own layer or an earlier one.
    """
    for playbook in list(kept.values()):
        explained = enumerate(playbook.envelope.explains)
        named: list[tuple[Location, str]] = [(("explains", i), name) for i, name in explained]
        named += [(("look_alikes", name), name) for name in playbook.envelope.look_alikes]
        for at, name in named:
            if name not in known:
                kept.pop(playbook.id, None)
                sentence = f"`{at[0]}`: there is no playbook {name!r}"
                yield Problem(playbook.file, line(playbook.lines, at), sentence, suggestion(name, known))
    order = list(kept)  # those of earlier directories first
    directories = list(dict.fromkeys(playbook.file.parent.parent for playbook in kept.values()))
    directory = {id: directories.index(playbook.file.parent.parent) for id, playbook in kept.items()}
    while circle := _circle(Library(tuple(kept.values()))):
        layers = [kept[id].envelope.layer_number for id in circle]
        back = {id for id, own, other in zip(circle, layers, (*layers[1:], layers[0]), strict=True) if own >= other}
        last = kept.pop(max((directory[id], id in back, order.index(id), id) for id in circle)[-1])
        begin = circle.index(last.id)
        path = " -> ".join((*circle[begin:], *circle[:begin], last.id))
        key, remedy = ("explains", "take one out of `explains`") if last.id in back else ("layer", "change its `layer`")
        yield Problem(last.file, line(last.lines, (key,)), f"playbooks explain each other: {path}", remedy)


def _circle(library: Library) -> list[str]:
    """A shortest circle of playbooks that explain each other; empty if there is none."""
    ids = [playbook.id for playbook in library.playbooks]
    edges = {id: [other for other in ids if library.explains(id, other)] for id in ids}
    paths, reached = deque([id] for id in ids), set[tuple[str, str]]()
    while paths:
        path = paths.popleft()
        if path[0] in edges[path[-1]]:
            return path
        for other in edges[path[-1]]:
            if (path[0], other) not in reached:
                reached.add((path[0], other))
                paths.append([*path, other])
    return []


def line(lines: Mapping[Location, int], at: Location) -> int:
    """Line of the location, or of the nearest enclosing one."""
    return next((lines[at[:n]] for n in range(len(at), -1, -1) if at[:n] in lines), 1)


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_SENTENCE else f"{text[:MAX_SENTENCE]} ..."
