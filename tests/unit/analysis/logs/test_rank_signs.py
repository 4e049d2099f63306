"""The rank that a text points at: its signs, what they weigh, and that odd texts cost little."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest

from hangdoc.analysis.logs import rank_signs, terms
from hangdoc.analysis.logs.rank_signs import pointed_at, signs_of_ranks
from hangdoc.evidence.logs import RankSigns, Terms

STEPS = """\
[rank0] step 40 loss 2.31 took 0.81s
[rank1] step 40 loss 2.31 took 0.80s
[rank2] step 40 loss 2.31 took 2.95s
[rank3] step 40 loss 2.31 took 0.82s
"""
ALONE = """\
r0: batch 7 done
r1: batch 7 done
r2: saving optimizer state
r3: batch 7 done
"""


def test_a_figure_beyond_those_of_all_other_ranks() -> None:
    signs = signs_of_ranks(STEPS)
    assert {"higher", "higher: took"} <= signs[2]
    assert not any(sign.startswith(("higher", "lower")) for rank in (0, 1, 3) for sign in signs[rank])


def test_words_of_one_rank_and_a_line_that_it_lacks() -> None:
    signs = signs_of_ranks(ALONE)
    assert {"another last line", "alone: saving", "after: saving", "lacks a word of all others"} <= signs[2]
    assert "lacks: batch" in signs[2]
    assert not any("another last line" in signs[rank] for rank in (0, 1, 3))


@pytest.mark.parametrize(
    ("text", "absent", "sign"),
    [
        ("rank 1: timeout\nrank 2: timeout\nrank 3: timeout\n", {0}, "absent rank zero"),
        ("world_size=5\nrank 0: timeout\nrank 1: timeout\nrank 2: timeout\n", {3, 4}, "of a stated size"),
        ("rank 0 and rank 40 of a long list\n", set(), ""),
        ("rank 3 only\n", set(), ""),
    ],
)
def test_a_rank_that_is_missing_among_those_mentioned(text: str, absent: set[int], sign: str) -> None:
    found = {rank: signs for rank, signs in signs_of_ranks(text).items() if "absent" in signs}
    assert set(found) == absent
    assert all(sign in signs for signs in found.values())


def test_a_number_counts_as_a_rank_only_where_no_rank_is_named() -> None:
    assert set(signs_of_ranks("worker 0 is late\nworker 1 waits\n")) == {0, 1}
    assert set(signs_of_ranks("rank 1 is late\nworker 4 of its loader waits\n")) == {1}
    assert signs_of_ranks("nothing of the kind, 4.5 it/s at rank 1.5\n") == {}


def test_lines_below_a_heading_are_about_its_rank() -> None:
    signs = signs_of_ranks("rank 0:\n  in all_reduce\n\nrank 1:\n  in save_pretrained\n\n  elsewhere\n")
    assert "alone: save_pretrained" in signs[1]
    assert not any("elsewhere" in sign for sign in signs[1])


def test_the_ranks_compete_with_each_other_and_with_nobody() -> None:
    weights = {"higher": 4.0, "nobody": 0.0}
    ranks: Mapping[int, tuple[str, ...]] = {0: (), 1: (), 2: ("higher",)}
    found = pointed_at(ranks, {}, weights)
    assert [one.rank for one in found.suspects] == [2]
    assert found.says == "the highest figure"
    assert not found.unmentioned
    assert pointed_at({**ranks, 4: ("absent",)}, {}, weights | {"absent": 9.0}).unmentioned
    assert pointed_at(ranks, {}, weights | {"nobody": 6.0}).suspects == ()
    assert pointed_at({**ranks, 3: ("higher",)}, {}, weights).suspects == ()
    assert pointed_at({}, {}, weights).suspects == ()


def test_a_sign_may_count_in_one_class_of_causes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {"higher in slow_compute": 5.0, "nobody": 0.0}
    ranks: Mapping[int, tuple[str, ...]] = {0: (), 1: ("higher",)}
    assert pointed_at(ranks, {"slow_compute": 0.9}, weights).suspects
    assert not pointed_at(ranks, {"startup": 0.9}, weights).suspects


def test_signs_are_said_in_words() -> None:
    weights = {"alone: saving": 3.0, "another last line": 2.0, "before: only": 1.0, "rank zero": -1.0}
    found = pointed_at({0: tuple(weights), 1: ()}, {}, weights)
    assert found.says == "`saving` in its lines alone, another last line, `only` in front of it"


def test_only_signs_with_weights_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_signs, "sign_weights", lambda: {"higher": 4.0, "nobody": 0.0})
    known = rank_signs.known_signs(STEPS)
    assert known == (RankSigns(0, ()), RankSigns(1, ()), RankSigns(2, ("higher",)), RankSigns(3, ()))
    monkeypatch.setattr(terms, "known_terms", lambda text: ())
    assert [one.rank for one in rank_signs.judge(Terms((), known)).suspects] == [2]


@pytest.mark.parametrize(
    "text",
    ["rank 1 " * 9_000, "rank 999999\n" * 5_000, "#1" * 30_000, "1e999 rank 1\n1e-999 rank 2\ninf rank 3\n" * 1_000],
)
def test_odd_texts_cost_little(text: str) -> None:
    began = time.process_time()
    rank_signs.known_signs(text[: 64 * 2**10])
    assert time.process_time() - began < 2.0


def test_the_weights_that_ship_can_be_read() -> None:
    weights = rank_signs.sign_weights()
    assert {rank_signs.NOBODY, rank_signs.ABSENT} <= weights.keys()
    assert all(abs(weight) < 20 for weight in weights.values())
