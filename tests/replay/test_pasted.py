"""What people paste: every fragment is judged as its label says, and no cause is wrong above low confidence."""

from __future__ import annotations

import zlib
from collections import defaultdict

import pytest

from tests.support.pasted import (
    LOSING,
    MUTATIONS,
    RIGHT,
    Fragment,
    fragments,
    mutation_scores,
    not_yet_right,
    score,
    verdicts,
)

OWN = fragments("own")
BLIND = fragments("blind")
KEPT = 0.9  # share of the right ones that are right after a mutation
SUBSET = 8  # one fragment in so many is mutated here; `make pasted MUTATIONS=1` mutates all


@pytest.mark.parametrize("fragment", OWN, ids=lambda one: one.name)
def test_own_fragment(fragment: Fragment) -> None:
    result = score(fragment, verdicts(fragment.text))
    reason = not_yet_right().get(fragment.name)
    if reason is None:
        assert result.outcome == RIGHT, result.said
    else:
        assert result.outcome != RIGHT, f"{fragment.name} is right now: remove it from open.yaml"


def test_open_fragments_exist_and_have_a_reason() -> None:
    listed = not_yet_right()
    assert set(listed) <= {one.name for one in OWN}
    assert all(isinstance(reason, str) and reason for reason in listed.values())


@pytest.mark.parametrize("fragment", BLIND, ids=lambda one: one.name)
def test_blind_fragment_is_not_wrong(fragment: Fragment) -> None:
    result = score(fragment, verdicts(fragment.text))
    assert not result.wrong, result.said


def test_mutations_turn_nothing_wrong_and_keep_recall() -> None:
    kept: dict[str, list[bool]] = defaultdict(list)
    for one in OWN:
        if zlib.crc32(one.name.encode()) % SUBSET or one.name in not_yet_right():
            continue
        for kind, after in mutation_scores(one):
            assert not after.wrong, (one.name, kind, after.said)
            kept[kind].append(after.outcome == RIGHT)
    outcomes = [right for kind, all in kept.items() if kind not in LOSING for right in all]
    assert sum(outcomes) >= KEPT * len(outcomes), {kind: (sum(all), len(all)) for kind, all in kept.items()}
    assert set(kept) <= set(MUTATIONS)
