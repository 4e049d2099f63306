"""A number that decides stands in `hangdoc/analysis/thresholds.py`, with its unit and source, and nowhere else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hangdoc.analysis import thresholds
from hangdoc.analysis.thresholds import Threshold
from tests.support.paths import PLAYBOOKS, ROOT

ANALYSIS = ROOT / "hangdoc/analysis"
MODULES = sorted(set(ANALYSIS.rglob("*.py")) - {Path(str(thresholds.__file__))})
PLAIN = {0, 1, 2}  # an index, a pair, a half
# Constants of protocols and formats. The bounds on the size of what is read or shown begin with MAX_.
FACTS_OF_THE_WORLD = {
    "BYTES_PER_MBIT",
    "FLUSHED",
    "LINEAR",
    "PARTS",
    "SEGMENT_BYTES",
    "SERVICES",
    "UNKNOWN",
}


def is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def bare_numbers(tree: ast.AST) -> Iterator[str]:
    """Comparisons with a number in them; the bounds of a slice (`text[:6]`) are sizes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            slices = {id(part) for one in ast.walk(node) if isinstance(one, ast.Slice) for part in ast.walk(one)}
            numbers = {ast.literal_eval(part) for part in ast.walk(node) if is_number(part) and id(part) not in slices}
            if numbers - PLAIN:
                yield ast.unparse(node)


def named_numbers(tree: ast.Module) -> Iterator[str]:
    """Constants of a module that are a number, like 3, -1 or 2**20."""
    for node in (one for one in tree.body if isinstance(one, ast.Assign)):
        plain = isinstance(node.value, (ast.Constant, ast.UnaryOp, ast.BinOp))
        if plain and any(map(is_number, ast.walk(node.value))):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


@pytest.mark.parametrize("module", MODULES, ids=lambda file: str(file.relative_to(ANALYSIS)))
def test_no_analysis_compares_with_a_bare_number(module: Path) -> None:
    assert not list(bare_numbers(ast.parse(module.read_text())))


def test_a_bare_number_in_a_comparison_is_found() -> None:
    found = list(bare_numbers(ast.parse("a > 1.5\nb >= 2 * c\nd < e * 0.8\nint(f[:6]) in G\nh == -1\n3 <= i")))
    assert found == ["a > 1.5", "d < e * 0.8", "3 <= i"]


@pytest.mark.parametrize("module", MODULES, ids=lambda file: str(file.relative_to(ANALYSIS)))
def test_the_constants_of_an_analysis_are_no_thresholds(module: Path) -> None:
    named = {name for name in named_numbers(ast.parse(module.read_text())) if not name.startswith("MAX_")}
    assert not named - FACTS_OF_THE_WORLD


def test_a_constant_with_a_number_is_found() -> None:
    assert [*named_numbers(ast.parse('A = 3\nB = -1\nC = 1e6 / 8\nD = 2**20\nE = "x"\nF = (1, 2)'))] == [*"ABCD"]


def test_every_threshold_is_used() -> None:
    texts = [file.read_text() for file in (*MODULES, *PLAYBOOKS.glob("*/playbook.yaml"))]
    words = {word for text in texts for word in re.findall(r"\b[A-Z]\w+", text)}
    assert not set(thresholds.names()) - words


def test_rules_read_plain_numbers() -> None:
    assert type(thresholds.value("MOSTLY")) is float
    assert thresholds.is_name("MOSTLY")
    assert not thresholds.is_name("names")


def test_a_threshold_is_a_number_with_a_unit_and_a_source() -> None:
    threshold = Threshold(0.25, "share of the time", "chosen: because")
    assert threshold == 0.25
    assert (threshold.unit, threshold.source) == ("share of the time", "chosen: because")
    assert all(one.unit and one.source for one in thresholds.THRESHOLDS.values())
