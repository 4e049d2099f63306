"""Whom the bad links of a job have in common."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

Node = TypeVar("Node")


def blamed(bad: Collection[tuple[Node, Node]], good: Collection[tuple[Node, Node]]) -> frozenset[Node]:
    """The hosts to blame for the `bad` links (from, to), where `good` links are seen to be better.

    The one that all bad links have in common; else those at their ends that do no better with others in the same
    direction. Two hosts alone cannot be told apart: both are named.
    """
    if not bad:
        return frozenset()
    common = frozenset.intersection(*(frozenset(pair) for pair in bad))
    if len(common) == 1:
        return common
    suspects = {node for pair in bad for node in pair}
    senders, receivers = {sender for sender, _ in good}, {receiver for _, receiver in good}
    cleared = {
        node
        for node in suspects
        if all(node in (senders if node == sender else receivers) for sender, to in bad if node in (sender, to))
    }
    return frozenset(suspects - cleared or suspects)
