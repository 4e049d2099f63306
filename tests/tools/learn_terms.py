"""Learns the weights of words from the pasted fragments, or judges them on authors they were not learned from.

`make terms` prints the judgement: the groups of authors are parted into folds, and the weights that judge a fold are
learned from the others. `make terms LEARN=1` writes hangdoc/analysis/logs/term_weights.tsv, learned from all groups.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import torch

from hangdoc.analysis.logs import terms
from tests.support.pasted import CLASSES, GROUPS, Fragment, fragments

ALL = (*CLASSES, terms.NO_TROUBLE)
WORDS = 2000  # those that tell the classes apart best
LEAST_TEXTS, LEAST_GROUPS = 5, 3  # in fewer, a word is the author's
MOST_TEXTS = 0.4  # of all; in more, a word is anybody's: `and`, `rank`
PENALTY = 5e-5  # of the square of each weight
STEPS = 100  # of L-BFGS
FOLDS = 6
ROUNDED = 2  # decimals

Weights = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Text:
    """A fragment by its words."""

    group: str
    cls: str
    words: frozenset[str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--learn", action="store_true", help=f"write {terms.WEIGHTS.name}, learned from all groups")
    texts = [text(one) for one in fragments()]
    if parser.parse_args().learn:
        write(learned(texts), terms.WEIGHTS)
        return 0
    judged = list(held_out(texts))
    print(f"{len(judged)} fragments of {len(GROUPS)} groups, in {FOLDS} folds of whole groups\n")
    print("| class | fragments | first | among two | likely | of them right |")
    print("|---|---:|---:|---:|---:|---:|")
    for cls in ALL:
        print(_row(cls, [(one, found) for one, found in judged if one.cls == cls]))
    print(_row("all with a cause", [(one, found) for one, found in judged if one.cls != terms.NO_TROUBLE]))
    return 0


def text(one: Fragment) -> Text:
    return Text(one.group, terms.NO_TROUBLE if one.negative else one.cls, terms.terms_of(one.text))


def held_out(texts: Sequence[Text]) -> Iterator[tuple[Text, terms.TermsJob]]:
    """Each text, and what the weights say of it that were learned from the groups of other folds."""
    for fold in range(FOLDS):
        groups = set(GROUPS[fold::FOLDS])
        with weights_without(groups, texts):
            for one in texts:
                if one.group in groups:
                    yield one, terms.judge(one.words)


@contextmanager
def weights_without(groups: Collection[str], texts: Sequence[Text]) -> Iterator[None]:
    """Texts are judged by weights that were learned without these groups."""
    weights = learned([one for one in texts if one.group not in groups])
    with patch.object(terms, "term_weights", lambda: weights):
        yield


def learned(texts: Sequence[Text]) -> Weights:
    """Word -> class -> weight, by logistic regression over the words of each text, scaled to unit length."""
    torch.set_num_threads(1)
    words = _telling(texts)
    index = {word: at for at, word in enumerate(words)}
    found = torch.zeros(len(texts), len(words))
    for row, one in zip(found, texts, strict=True):
        at = [index[word] for word in one.words if word in index]
        row[at] = len(at) ** -0.5 if at else 0.0
    wanted = torch.tensor([ALL.index(one.cls) for one in texts])
    weights = torch.zeros(len(words), len(ALL), requires_grad=True)
    bias = torch.zeros(len(ALL), requires_grad=True)
    optimizer = torch.optim.LBFGS([weights, bias], max_iter=STEPS)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(found @ weights + bias, wanted) + PENALTY * weights.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    rows = {terms.BIAS: bias, **dict(zip(words, weights, strict=True))}
    return {
        word: dict(zip(ALL, (round(one, ROUNDED) for one in row.tolist()), strict=True)) for word, row in rows.items()
    }


def _telling(texts: Sequence[Text]) -> list[str]:
    """The words whose share of one class differs most from its share of all texts (chi-squared)."""
    groups: dict[str, set[str]] = defaultdict(set)
    count: Counter[str] = Counter()
    of_class: Counter[tuple[str, str]] = Counter()
    size = Counter(one.cls for one in texts)
    for one in texts:
        count.update(one.words)
        of_class.update((word, one.cls) for word in one.words)
        for word in one.words:
            groups[word].add(one.group)
    most = MOST_TEXTS * len(texts)
    common = [word for word in count if LEAST_TEXTS <= count[word] <= most and len(groups[word]) >= LEAST_GROUPS]

    def differs(word: str) -> float:
        expected = {cls: count[word] * size[cls] / len(texts) for cls in ALL}
        return max((of_class[word, cls] - expected[cls]) ** 2 / (expected[cls] + 1) for cls in ALL)

    return sorted(sorted(common, key=lambda word: (-differs(word), word))[:WORDS])


def write(weights: Weights, path: Path) -> None:
    lines = [
        "# Weights of words, by class of causes. Made by `make terms LEARN=1`, not by hand.",
        "\t".join(("word", *ALL)),
        *("\t".join((word, *(f"{row[cls]:g}" for cls in ALL))) for word, row in weights.items()),
    ]
    path.write_text("\n".join(lines) + "\n")


def _row(name: str, judged: Sequence[tuple[Text, terms.TermsJob]]) -> str:
    def share(holds: Callable[[Text, terms.TermsJob], bool], of: Sequence[tuple[Text, terms.TermsJob]]) -> str:
        return f"{sum(holds(*one) for one in of) / len(of):.2f}" if of else "-"

    likely = [(one, found) for one, found in judged if found.likely]
    columns = (
        share(lambda one, found: one.cls in _ranked(found)[:1], judged),
        share(lambda one, found: one.cls in _ranked(found)[:2], judged),
        share(lambda one, found: found.likely is not None, judged),
        share(lambda one, found: found.likely == one.cls, likely),
    )
    return f"| {name} | {len(judged)} | {' | '.join(columns)} |"


def _ranked(found: terms.TermsJob) -> list[str]:
    return [cls for cls, _ in found.shares]


if __name__ == "__main__":
    sys.exit(main())
