"""The on-call runbook: the prose of every playbook, for a person at 3 a.m."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hangdoc.errors import UsageError


@dataclass(frozen=True, slots=True)
class Entry:
    """One playbook as the list of runbooks shows it."""

    id: str
    cls: str
    title: str
    folder: Path


def folders(extra: Sequence[Path] = ()) -> dict[str, Path]:
    """Folder of every playbook by id, the built-in ones first."""
    import playbooks

    found: dict[str, Path] = {}
    for root in (*map(Path, playbooks.__path__), *extra):
        for file in sorted(root.glob("*/playbook.yaml")):
            found.setdefault(file.parent.name, file.parent)
    return found


def entries(extra: Sequence[Path] = ()) -> list[Entry]:
    """Every playbook, by id; one whose file is broken is listed by its id alone."""
    return [_entry(id, folder) for id, folder in sorted(folders(extra).items())]


def text(id: str, extra: Sequence[Path] = ()) -> str:
    """The runbook of a playbook as Markdown; an unknown id is a UsageError that suggests others."""
    folder = require(id, extra)
    try:
        return (folder / "runbook.md").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return f"# {_entry(id, folder).title}\n\nThis playbook has no runbook ({folder / 'runbook.md'}).\n"


def require(id: str, extra: Sequence[Path] = ()) -> Path:
    """Folder of a playbook, or a UsageError with the ids that are meant, perhaps."""
    known = folders(extra)
    if id in known:
        return known[id]
    from difflib import get_close_matches

    near = get_close_matches(id, known, n=3, cutoff=0.5) or [one for one in sorted(known) if id and id in one]
    hint = f"did you mean {' or '.join(near)}?" if near else "`hangdoc runbook` lists them"
    raise UsageError(f"no playbook {id!r}: {hint}")


def _entry(id: str, folder: Path) -> Entry:
    import yaml

    try:
        told = yaml.safe_load((folder / "playbook.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        told = None
    told = told if isinstance(told, dict) else {}
    return Entry(id, str(told.get("class", "")), str(told.get("title", "(cannot be read)")), folder)
