"""Runbooks: the folders, titles and prose of the playbooks. Light to import: no rule is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hangdoc.errors import HangdocError, UsageError
from hangdoc.rules.files import FILE, MAX_BYTES, MAX_PLAYBOOKS, find_files, read_file


@dataclass(frozen=True, slots=True)
class Entry:
    """One playbook in the list of runbooks."""

    id: str
    cls: str
    title: str
    folder: Path


def folders(extra: Sequence[Path] = ()) -> dict[str, Path]:
    """Folder of every playbook by id; built-in ones take precedence."""
    import playbooks

    found: dict[str, Path] = {}
    for root in (*map(Path, playbooks.__path__), *extra):
        for file in find_files(root)[:MAX_PLAYBOOKS]:
            found.setdefault(file.parent.name, file.parent)
    return found


def entries(extra: Sequence[Path] = ()) -> list[Entry]:
    """Every playbook in order of id; a broken one has only its id."""
    return [_entry(id, folder) for id, folder in sorted(folders(extra).items())]


def text(id: str, extra: Sequence[Path] = ()) -> str:
    """The runbook of a playbook as Markdown; raises UsageError for an unknown id, HangdocError if unreadable."""
    folder = require(id, extra)
    file = folder / "runbook.md"
    try:
        return read_file(file, MAX_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return f"# {_entry(id, folder).title}\n\nThis playbook has no runbook ({file}).\n"
    except OSError as error:
        raise HangdocError(f"{file}: {error.strerror or error}") from error


def require(id: str, extra: Sequence[Path] = ()) -> Path:
    """Folder of a playbook; raises UsageError with similar ids."""
    known = folders(extra)
    if id in known:
        return known[id]
    from difflib import get_close_matches

    near = get_close_matches(id, known, n=3, cutoff=0.5) or [one for one in sorted(known) if id and id in one]
    hint = f"did you mean {' or '.join(near)}?" if near else "`hangdoc runbook` lists them"
    raise UsageError(f"no playbook {id!r}: {hint}")


def _entry(id: str, folder: Path) -> Entry:
    import yaml

    values: dict[str, str] = {}
    with suppress(OSError, ValueError, yaml.YAMLError):
        values = _values(read_file(folder / FILE, MAX_BYTES))
    return Entry(id, values.get("class", ""), values.get("title", "(cannot be read)"), folder)


def _values(text: bytes) -> dict[str, str]:
    """The scalar values at the top level of a YAML file, from its events: no object is built."""
    import yaml
    from yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, ScalarEvent

    depth, key, found = 0, None, {}
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth == 1 and isinstance(event, ScalarEvent):
            if key is not None:
                found[key] = event.value
            key = event.value if key is None else None
        elif depth == 1 and isinstance(event, (CollectionEndEvent, AliasEvent)):
            key = None
    return found
