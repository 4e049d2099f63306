"""Hooks of `mkdocs build`: the site also holds the pages that live elsewhere in the repository.

Runbooks, SECURITY.md and CONTRIBUTING.md stay where a reader of the repository expects them. Here they become pages of
the site, and links to them are rewritten. The build fails if a page would load anything from another server.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"(?<=\]\()(?P<path>[^)#:\s]+)(?=[)#])")
_LOADS = re.compile(r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")


def _elsewhere() -> dict[str, str]:
    """Page of the site by its path in the repository, for each file outside docs/."""
    runbooks = sorted(ROOT.glob("playbooks/*/runbook.md"))
    found = {file.relative_to(ROOT).as_posix(): f"runbooks/{file.parent.name}.md" for file in runbooks}
    return found | {"SECURITY.md": "security.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that live outside docs/."""
    for path, page in _elsewhere().items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links at the site's pages instead of the repository's files."""
    elsewhere = _elsewhere()
    here = page.file.src_uri
    in_repository = {site: path for path, site in elsewhere.items()}.get(here, f"docs/{here}")

    def rewritten(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(in_repository), link["path"]))
        site = elsewhere.get(target, target.removeprefix("docs/") if target.startswith("docs/") else None)
        return posixpath.relpath(site, posixpath.dirname(here) or ".") if site else link["path"]

    return _LINK.sub(rewritten, markdown)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Refuse a page that would load a font, a script or an image from another server."""
    found = _LOADS.search(output)
    if found:
        raise PluginError(f"{page.file.src_uri} loads something from outside: {found[0]}")
    return output
