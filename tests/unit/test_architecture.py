"""The rooms of the code: what imports what, as docs/architecture.md lists it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PACKAGES = ("hangdoc", "probes", "playbooks")
LOOSE_FILES = 6  # at the top of hangdoc/
FACTS = "hangdoc.analysis.facts"  # a room of its own: it imports every folder of analysis, and they import analysis


def module(file: Path) -> str:
    """Dotted name of a source file."""
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def room(name: str) -> str:
    """The room of a module: `watch` for hangdoc.watch.live, `analysis/job` for hangdoc.analysis.job.stall."""
    package, *parts = name.split(".")
    if package != "hangdoc" or not parts:
        return package
    folder = (ROOT / "hangdoc" / "/".join(parts[:2])).is_dir() and parts[0] == "analysis"
    return "/".join(parts[:2] if folder or name == FACTS else parts[:1])


@cache
def modules() -> Mapping[str, Path]:
    files = [file for package in ("hangdoc", "probes") for file in (ROOT / package).rglob("*.py")]
    return {module(file): file for file in [*files, *(ROOT / "playbooks").glob("*.py")]}


def imports(name: str) -> Iterator[str]:
    """The modules of ours that a module imports, also inside functions and for type checkers only."""
    for node in ast.walk(ast.parse(modules()[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found = [full if full in modules() else str(node.module) for full in names]
        else:
            continue
        yield from (one for one in found if one.partition(".")[0] in PACKAGES and one != "hangdoc")


@cache
def arrows() -> Mapping[str, frozenset[str]]:
    """What each room imports."""
    found: dict[str, set[str]] = {}
    for name in modules():
        found.setdefault(room(name), set()).update({room(one) for one in imports(name)} - {room(name)})
    return {name: frozenset(imported) for name, imported in found.items() if imported}


def listed() -> Mapping[str, frozenset[str]]:
    """The arrows of docs/architecture.md."""
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```arrows\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    lines = [line.split(" -> ") for block in blocks for line in block.splitlines()]
    assert len({left for left, _ in lines}) == len(lines), "a room is listed twice"
    return {left: frozenset(right.split(", ")) for left, right in lines}


def rooms_only(found: Mapping[str, frozenset[str]]) -> dict[str, set[str]]:
    """The arrows between top-level rooms: analysis/job counts as analysis."""
    merged: dict[str, set[str]] = {}
    for left, right in found.items():
        merged.setdefault(left.partition("/")[0], set()).update(one.partition("/")[0] for one in right)
    return {left: right - {left} for left, right in merged.items() if right - {left}}


def test_the_documentation_lists_the_imports() -> None:
    assert {left: sorted(right) for left, right in listed().items()} == {
        left: sorted(right) for left, right in arrows().items()
    }


@pytest.mark.parametrize("inside", [False, True], ids=["between rooms", "between folders of analysis"])
def test_no_circle(inside: bool) -> None:
    left = {name: set(right) for name, right in arrows().items()} if inside else rooms_only(arrows())
    while left:
        free = [name for name, right in left.items() if not right & set(left)]
        assert free, f"a circle among {sorted(left)}"
        for name in free:
            del left[name]


def test_an_analysis_calls_no_probe_and_a_reader_no_analysis() -> None:
    found = rooms_only(arrows())
    assert found["analysis"].isdisjoint({"probes", "system", "introspect", "watch", "postmortem"})
    readers = {one for name in modules() if ".readers" in name for one in imports(name)}
    assert not [one for one in readers if one.startswith("hangdoc.analysis")]


def test_few_files_lie_at_the_top() -> None:
    assert len(list((ROOT / "hangdoc").glob("*.py"))) <= LOOSE_FILES


@pytest.mark.parametrize("name", sorted({name for name, file in modules().items() if file.name == "__init__.py"}))
def test_a_room_says_what_lives_there(name: str) -> None:
    assert ast.get_docstring(ast.parse(modules()[name].read_text(encoding="utf-8")))
