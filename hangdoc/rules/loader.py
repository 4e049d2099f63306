"""Playbooks: found, read, checked, compiled. A broken playbook is reported with file and line, and skipped.

Imported only when playbooks are loaded: rule-engine, pydantic and jinja2 take 0.4 s.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError
from yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent

from hangdoc.analysis.facts import Schema
from hangdoc.formatting import suggestion
from hangdoc.rules import parser, schema, templates
from hangdoc.rules.conditions import OBSERVED, UNOBSERVED, Kind, RuleError
from hangdoc.rules.files import FILE, MAX_BYTES, MAX_PLAYBOOKS, UnreadableFile, find_files, read_file
from hangdoc.rules.library import Library, Playbook, Problem, line, refused_relations
from hangdoc.rules.schema import Envelope, Location
from hangdoc.rules.terms import Compiler

T = TypeVar("T")

MAX_DEPTH = 20  # levels of a file
NESTED = "is nested too deeply", "see the built-in playbooks"
MAX_VALUE = 4_000  # characters of a key or a value in the file
MAX_PROBLEMS = 20  # reported per playbook


def load(
    directories: Iterable[Path],
    types: Schema,
    probes: Collection[str] | None = None,
    checked: Collection[Path] = (),
) -> Library:
    """The playbooks in `directories` (`ID/playbook.yaml`), compiled against the types of the facts.

    Of two with the same id the first wins. `probes`: names allowed in `needs`; None: all probes. `checked`: directories
    whose templates and needs a test has checked, as the templates take a third of the time, and the probes 4 MiB.
    """
    compiler = Compiler(types)
    directories = tuple(directories)
    if probes is None:
        probes = () if all(directory in checked for directory in directories) else _probe_names()
    ids: set[str] = set()  # of playbooks with problems as well
    kept: dict[str, Playbook] = {}
    problems: list[Problem] = []
    for directory in directories:
        files, wrong = _files(directory)
        problems.extend(wrong)
        ids.update(file.parent.name for file in files)
        for file in files:
            playbook, found = read(file, compiler, probes, directory in checked)
            problems.extend(found)
            if playbook is None:
                continue
            first = kept.setdefault(playbook.id, playbook)
            if first is not playbook:
                place = f"{first.file}:{first.lines[('id',)]}"
                duplicate = f"the id {playbook.id!r} is already used by {place}, which takes precedence"
                problems.append(Problem(file, playbook.lines[("id",)], duplicate, "rename one of the two"))
    problems.extend(refused_relations(kept, ids))
    return Library(tuple(kept[id] for id in sorted(kept)), tuple(problems))


def _files(directory: Path) -> tuple[list[Path], list[Problem]]:
    """The playbook files of a directory, and the problems of the directory."""
    try:
        files = find_files(directory)
    except OSError as error:
        return [], [Problem(directory, 0, f"cannot be read ({error.strerror or error})", "give another directory")]
    if not files:
        return [], [Problem(directory, 0, f"contains no playbook (ID/{FILE})", "give another directory")]
    if len(files) > MAX_PLAYBOOKS:
        sentence = f"contains {len(files)} playbooks: those after {files[MAX_PLAYBOOKS - 1].parent.name} are skipped"
        return files[:MAX_PLAYBOOKS], [
            Problem(directory, 0, sentence, f"keep at most {MAX_PLAYBOOKS} in one directory")
        ]
    return files, []


def read(
    file: Path, compiler: Compiler, probes: Collection[str], checked: bool = False
) -> tuple[Playbook | None, tuple[Problem, ...]]:
    """One playbook, or None and its problems; `checked`: its templates and needs have none."""
    reader = _Reader(file, compiler, probes, checked)
    playbook = reader.read()
    problems = reader.problems
    if len(problems) > MAX_PROBLEMS:
        problems = [*problems[:MAX_PROBLEMS], Problem(file, 0, "has more problems", "fix these first")]
    return (None if problems else playbook), tuple(problems)


def _probe_names() -> frozenset[str]:
    import probes

    left_by_an_ended_job = {"logs", "aftermath"}  # records of no probe
    return frozenset(probe.name for probe in probes.load()) | left_by_an_ended_job


class _Reader:
    """Reads one file and collects its `problems`."""

    def __init__(self, file: Path, compiler: Compiler, probes: Collection[str], checked: bool) -> None:
        self.file, self.compiler, self.probes, self.checked = file, compiler, probes, checked
        self.lines: dict[Location, int] = {}
        self.problems: list[Problem] = []

    def read(self) -> Playbook | None:
        data = self._yaml()
        envelope = None if self.problems else self._envelope(data)
        if envelope is None:
            return None
        self._check(envelope)
        selections = self._selections(envelope)
        return Playbook(
            self.file,
            envelope,
            selections,
            self._each(envelope.conditions(), partial(parser.condition, self.compiler, selections)),
            self._each(envelope.lists(), partial(self.compiler.listing, selections.ranks, selections.links)),
            self._templates(envelope),
            self.lines,
        )

    def _say(self, at: Location, sentence: str, remedy: str) -> None:
        self.problems.append(Problem(self.file, line(self.lines, at), sentence, remedy))

    def _yaml(self) -> Any:
        # The safe loader, in C if available; the node tree provides line numbers.
        Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            text = read_file(self.file, MAX_BYTES)
            self._events(yaml.parse(text, Loader=Loader))
            if self.problems:
                return None
            loader = Loader(text)
            node = loader.get_single_node()
            if node is None:
                return self._say((), "is empty", "see the built-in playbooks")
            self._note_lines(node, ())
            return None if self.problems else loader.construct_document(node)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            self.lines[()] = mark.line + 1 if mark else 1
            problem = error.problem or error.context or ""
            if "nesting depth" in problem:  # of libyaml itself, since PyYAML 6.0.4
                self._say((), *NESTED)
            else:
                self._say((), f"is not YAML: {problem}", "quote texts that contain `{`, `:` or `#`")
        except UnreadableFile as error:
            self._say((), str(error), "a playbook is a file of a few kilobytes")
        except OSError as error:
            self._say((), f"cannot be read: {error.strerror or error}", "fix the file or its permissions")
        except Exception as error:  # any error of the library: `!!timestamp x` raises AttributeError
            self._say((), f"cannot be read: {' '.join(str(error).split())}", "fix the file")

    def _events(self, events: Iterable[yaml.Event]) -> None:
        """Refuse aliases (billion laughs), nesting that would overflow the C loader's stack, and overlong values."""
        depth = 0
        for event in events:
            depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
            self.lines[()] = event.start_mark.line + 1 if event.start_mark else 1
            if isinstance(event, AliasEvent):
                return self._say((), "uses a YAML alias", "write the value out: a playbook has no anchors")
            if depth > MAX_DEPTH:
                return self._say((), *NESTED)
            if len(getattr(event, "value", "")) > MAX_VALUE:
                return self._say((), f"contains a value of more than {MAX_VALUE} characters", "shorten it")
        self.lines.clear()

    def _note_lines(self, node: yaml.Node, at: Location) -> None:
        self.lines.setdefault(at, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                inner = (*at, str(key.value))
                twice = inner in self.lines
                self.lines[inner] = key.start_mark.line + 1
                if twice and len(self.problems) <= MAX_PROBLEMS:
                    self._say(inner, f"{_where(inner)} is a duplicate key", "remove one of the two")
                self._note_lines(value, inner)
        elif isinstance(node, yaml.SequenceNode):
            for i, value in enumerate(node.value):
                self._note_lines(value, (*at, i))

    def _envelope(self, data: Any) -> Envelope | None:
        try:
            return Envelope.model_validate(data)
        except ValidationError as error:
            for wrong in error.errors(include_url=False, include_input=False)[: MAX_PROBLEMS + 1]:
                at = tuple(part for part in wrong["loc"] if part != "[key]")
                self._say(at, *_explained(at, wrong["type"], wrong["msg"]))
            return None

    def _check(self, envelope: Envelope) -> None:
        folder = self.file.resolve().parent.name
        if envelope.id != folder:
            self._say(
                ("id",), f"the id {envelope.id!r} differs from the folder name {folder!r}", "rename one of the two"
            )
        for i, need in enumerate(() if self.checked else envelope.needs):
            for probe in need.split("|"):
                if probe not in self.probes:
                    self._say(("needs", i), f"needs an unknown probe {probe!r}", suggestion(probe, self.probes))
        for at, kind, _ in _selections(envelope):
            name = str(at[1])
            if name in parser.reserved(self.compiler, kind) or (kind == "links" and name in envelope.select):
                self._say(at, f"the selection `{name}` has a reserved or duplicate name", "rename it")
        for at, name, of_links in envelope.names():
            known = envelope.links if of_links else {*envelope.select, OBSERVED, UNOBSERVED}
            if name not in known:
                kind = "links" if of_links else "ranks"
                self._say(at, f"{_where(at)}: there is no selection of {kind} named `{name}`", suggestion(name, known))

    def _selections(self, envelope: Envelope) -> parser.Selections:
        found = parser.Selections(declared={str(name): kind for (_, name), kind, _ in _selections(envelope)})
        for at, kind, text in _selections(envelope):
            self._each([(at, text)], partial(parser.add_selection, self.compiler, found, str(at[1]), kind))
        return found

    def _each(self, written: Iterable[tuple[Location, str]], compile: Callable[[str], T]) -> dict[Location, T]:
        """What was written at each location, compiled; problems are noted."""
        found: dict[Location, T] = {}
        for at, text in written:
            try:
                found[at] = compile(text)
            except RuleError as error:
                self._say(at, f"{_where(at)}: {error.sentence}", error.remedy)
        return found

    def _templates(self, envelope: Envelope) -> dict[Location, templates.Text]:
        if self.checked:
            return {at: templates.Text(text) for at, text in envelope.templates()}
        names = self.compiler.hints(envelope.select, envelope.links)
        found = {}
        for at, text in envelope.templates():
            each = at[0] == "evidence" and envelope.evidence[int(at[1])].each is not None
            for sentence in templates.check(text, {**names, "item": None} if each else names):
                self._say(at, f"{_where(at)}: {sentence.partition('; ')[0]}", sentence.partition("; ")[2] or "fix it")
            if each and not templates.reads(text, "item"):
                sentence = f"{_where(at[:2])}: `each` needs a `text` that shows `item`"
                self._say(at[:2], sentence, "see the built-in playbooks")
            found[at] = templates.Text(text)
        return found


def _selections(envelope: Envelope) -> Iterator[tuple[Location, Kind, str]]:
    """The selections in order: location, kind, expression."""
    yield from ((("select", name), "ranks", text) for name, text in envelope.select.items())
    yield from ((("links", name), "links", text) for name, text in envelope.links.items())


def _where(at: Location) -> str:
    return f"`{'.'.join(map(str, at))}`" if at else "the file"


def _explained(at: Location, kind: str, message: str) -> tuple[str, str]:
    """A pydantic error as sentence and remedy."""
    if kind == "extra_forbidden":
        return f"unknown field {_where(at)}", suggestion(str(at[-1]), _fields(at))
    if kind == "missing":
        return f"{_where(at)} is missing", "add it: see the built-in playbooks"
    sentence, _, remedy = message.removeprefix("Value error, ").partition(", known are ")
    return f"{_where(at)}: {sentence}", f"known are {remedy}" if remedy else "see the built-in playbooks"


def _fields(at: Location) -> Iterator[str]:
    """Field names that are valid at this location."""
    models: dict[str | int, Any] = {
        "confidence": schema.Confidence,
        "raise": schema.Step,
        "lower": schema.Step,
        "evidence": schema.Line,
        "actions": schema.Action,
        "reproducer": schema.Reproducer,
        "expect": schema.Expect,
    }
    parents = [models[part] for part in at[:-1] if part in models] or [schema.Envelope]
    for name, field in parents[-1].model_fields.items():
        yield field.alias or name
