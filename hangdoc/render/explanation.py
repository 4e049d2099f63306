"""The explanation of a playbook on a terminal: a tree of its conditions, each with outcome and values."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text
from rich.tree import Tree

from hangdoc.render.sanitize import clean
from hangdoc.rules.explanation import Explanation, Node

STYLES = {"yes": "bold green", "no": "red", "unknown": "yellow"}


def tree(explanation: Explanation) -> Tree:
    """The tree; its root is the outcome of the playbook."""
    root = Tree(_line(explanation.playbook, explanation.outcome, clean(explanation.because)))
    for node in explanation.tree:
        _add(root, node)
    return root


def _add(parent: Tree, node: Node) -> None:
    found = parent.add(_line(clean(node.condition), node.outcome, "; ".join(map(clean, _of_whom(node)))))
    for shown in node.values:
        found.add(Text(clean(shown), "dim"))
    for part in node.parts:
        _add(found, part)


def _line(text: str, outcome: str | None, more: str) -> Text:
    line = Text(text)
    if outcome:
        line.append(f"  {outcome}", STYLES[outcome])
    if more:
        line.append(f"  {more}", "cyan")
    return line


def _of_whom(node: Node) -> Iterator[str]:
    if node.outcome is None and node.certain:
        yield node.certain
    if node.unknown:
        yield f"unknown: {node.unknown}"
