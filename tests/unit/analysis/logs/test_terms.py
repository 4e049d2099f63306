"""What the words of a text tell of its cause: only words with weights count, few of them decide nothing."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hangdoc.analysis.logs import terms
from hangdoc.analysis.thresholds import LEAST_TERMS, LIKELY

CLASSES = ("network", "startup", terms.NO_TROUBLE)
LINKS = [f"link{chr(97 + at) * 3}" for at in range(20)]  # words that only texts about a network have
CALM = [f"calm{chr(97 + at) * 3}" for at in range(20)]  # words that only healthy jobs have


@pytest.fixture(autouse=True)
def weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def row(*values: float) -> Mapping[str, float]:
        return dict(zip(CLASSES, values, strict=True))

    table = {
        terms.BIAS: row(0, 0, 0),
        **{word: row(2, 0, 0) for word in LINKS},
        **{word: row(0, 0, 2) for word in CALM},
    }
    monkeypatch.setattr(terms, "term_weights", lambda: table)


def test_enough_words_of_a_class_make_it_likely() -> None:
    found = terms.judge([*LINKS[: int(LEAST_TERMS)], "unheard", "of"])
    assert found.likely == "network"
    assert found.share is not None
    assert found.share > LIKELY
    assert found.words is not None
    assert found.words.split(", ") == [f"`{word}`" for word in LINKS[:5]]
    assert found.shares[0][0] == "network"
    assert sum(share for _, share in found.shares) == pytest.approx(1)


def test_words_of_both_classes_leave_it_open() -> None:
    found = terms.judge([*LINKS[:9], *CALM[:9]])
    assert found.likely is None
    assert found.shares


def test_few_words_rank_the_classes_but_make_none_likely() -> None:
    found = terms.judge(LINKS[: int(LEAST_TERMS) - 1])
    assert found.likely is None
    assert found.words is None
    assert found.shares[0][0] == "network"


@pytest.mark.parametrize("words", [(), ("unheard", "of")])
def test_without_words_that_count_nothing_is_said(words: tuple[str, ...]) -> None:
    assert terms.judge(words) == terms.TermsJob()


def test_a_text_without_trouble_is_no_class_of_causes() -> None:
    found = terms.judge(CALM)
    assert found.likely is None
    assert found.says_most == ()


def test_words_are_lower_case_and_the_parts_of_names() -> None:
    found = terms.terms_of("DataLoader num_workers=4 at 10.0.0.3, s3://b/x_of_y it")
    assert found == {"dataloader", "num_workers", "num", "workers", "x_of_y"}
    assert terms.known_terms("LINKAAA link_bbb password") == ("linkaaa",)


def test_the_weights_that_ship_name_every_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    from hangdoc.verdict import CLASSES as KNOWN

    weights = terms.term_weights()
    assert set(weights[terms.BIAS]) == {*KNOWN, terms.NO_TROUBLE}
    assert all(set(row) == set(weights[terms.BIAS]) for row in weights.values())
    assert terms.judge(()) == terms.TermsJob()
