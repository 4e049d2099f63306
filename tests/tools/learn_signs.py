"""Learns the weights of the signs by which a text points at a rank, or judges them on authors not learned from.

`make terms` prints the judgement: the groups of authors are parted into folds, and the weights that judge a fold are
learned from the others. `make terms LEARN=1` writes hangdoc/analysis/logs/rank_sign_weights.tsv, learned from all.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest.mock import patch

import torch

from hangdoc.analysis.logs import rank_signs
from hangdoc.postmortem.report import MAX_PASTED
from tests.support.pasted import CLASSES, GROUPS, NEGATIVES, Fragment, fragments
from tests.tools import learn_terms

LEAST_RANKS, LEAST_GROUPS = 6, 3  # with fewer, a sign is the author's
PENALTY = 2e-4  # of the square of each weight
STEPS = 80  # of L-BFGS
ROUNDED = 2  # decimals

Weights = Mapping[str, float]


@dataclass(frozen=True)
class Text:
    """A fragment by its ranks and their signs."""

    group: str
    cls: str
    culprits: frozenset[int]
    ranks: Mapping[int, frozenset[str]]
    shares: Mapping[str, float]  # of the classes, by words, learned from other authors

    @property
    def wanted(self) -> frozenset[int]:
        """The culprits, if their signs can tell; empty: nobody."""
        return self.culprits if self.culprits <= self.ranks.keys() else frozenset()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--learn", action="store_true", help=f"write {rank_signs.WEIGHTS.name}, learned from all groups"
    )
    if parser.parse_args().learn:
        write(learned(texts()), rank_signs.WEIGHTS)
        return 0
    judged = list(held_out())
    print(f"{len(judged)} fragments of {len(GROUPS)} groups, in {learn_terms.FOLDS} folds of whole groups\n")
    print("| class | fragments | one culprit | pointed at | of them right |\n|---|---:|---:|---:|---:|")
    for cls in (*CLASSES, *NEGATIVES):
        print(_row(cls, [one for one in judged if one[0].cls == cls]))
    print(_row("all", judged))
    return 0


@cache
def texts() -> Sequence[Text]:
    """Every fragment, with shares of the classes by weights that were learned from the groups of other folds."""
    found = fragments()
    words = [learn_terms.text(one) for one in found]
    shares = {id(one): judged.shares for one, judged in learn_terms.held_out(words)}
    return [_text(one, dict(shares[id(of)])) for one, of in zip(found, words, strict=True)]


def _text(one: Fragment, shares: Mapping[str, float]) -> Text:
    signs = rank_signs.signs_of_ranks(one.text[:MAX_PASTED])
    culprits = frozenset() if one.negative else one.culprits
    return Text(one.group, one.cls, culprits, {rank: frozenset(found) for rank, found in signs.items()}, shares)


def held_out() -> Iterator[tuple[Text, rank_signs.RankSignsJob]]:
    """Each text, and the rank that the weights point at that were learned from the groups of other folds."""
    for fold in range(learn_terms.FOLDS):
        groups = set(GROUPS[fold :: learn_terms.FOLDS])
        weights = learned([one for one in texts() if one.group not in groups])
        for one in texts():
            if one.group in groups:
                yield one, rank_signs.pointed_at(one.ranks, one.shares, weights)


@contextmanager
def weights_without(groups: Collection[str]) -> Iterator[None]:
    """Texts are judged by weights that were learned without these groups."""
    weights = learned([one for one in texts() if one.group not in groups])
    with patch.object(rank_signs, "sign_weights", lambda: weights):
        yield


def learned(known: Sequence[Text]) -> Weights:
    """Sign -> weight, by conditional logistic regression: the ranks of a text, and nobody, share a probability of 1."""
    torch.set_num_threads(1)
    telling = _telling(known)
    rows: list[Weights] = []  # of each rank, and of nobody
    of_text: list[int] = []
    wanted: list[float] = []  # probability
    for at, one in enumerate(text for text in known if text.ranks):
        rows += [rank_signs.weighed(signs, one.shares, telling) for signs in one.ranks.values()]
        rows.append(rank_signs.signs_of_nobody(len(one.ranks), one.shares))
        wanted += [(rank in one.wanted) / (len(one.wanted) or 1) for rank in one.ranks]
        wanted.append(0.0 if one.wanted else 1.0)
        of_text += [at] * (len(one.ranks) + 1)
    count = Counter(sign for row in rows for sign in row)
    index = {sign: at for at, sign in enumerate(sorted(sign for sign in count if count[sign] >= LEAST_RANKS))}
    cells = [(at, index[sign], value) for at, row in enumerate(rows) for sign, value in row.items() if sign in index]
    places, values = torch.tensor([cell[:2] for cell in cells]).T, torch.tensor([cell[2] for cell in cells])
    size = len(rows), len(index)
    found = torch.sparse_coo_tensor(places, values, size, check_invariants=True).coalesce()
    owner, target = torch.tensor(of_text), torch.tensor(wanted)
    weights = torch.zeros(len(index), 1, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=STEPS)
    count_texts = of_text[-1] + 1

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        scores = torch.sparse.mm(found, weights).squeeze(1)
        most = torch.full((count_texts,), -torch.inf).scatter_reduce(0, owner, scores.detach(), "amax")
        whole = torch.zeros(count_texts).scatter_add(0, owner, (scores - most[owner]).exp())
        likelihood = ((scores - most[owner] - whole[owner].log()) * target).sum() / count_texts
        value: torch.Tensor = PENALTY * weights.square().sum() - likelihood
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return {sign: round(weights[at].item(), ROUNDED) for sign, at in index.items()}


def _telling(known: Sequence[Text]) -> set[str]:
    """The signs that ranks of several authors have."""
    count: Counter[str] = Counter()
    groups: defaultdict[str, set[str]] = defaultdict(set)
    for one in known:
        for signs in one.ranks.values():
            count.update(signs)
            for sign in signs:
                groups[sign].add(one.group)
    return {sign for sign in count if count[sign] >= LEAST_RANKS and len(groups[sign]) >= LEAST_GROUPS}


def write(weights: Weights, path: Path) -> None:
    head = "# Weights of the signs by which a text points at a rank. Made by `make terms LEARN=1`, not by hand.\n"
    path.write_text(head + "".join(f"{sign}\t{weight:g}\n" for sign, weight in weights.items() if weight))


def _row(name: str, judged: Sequence[tuple[Text, rank_signs.RankSignsJob]]) -> str:
    pointed = [(one, {suspect.rank for suspect in found.suspects}) for one, found in judged if found.suspects]
    right = sum(one.culprits == ranks for one, ranks in pointed)
    single = sum(len(one.culprits) == 1 for one, _ in judged)
    share = f"{right / len(pointed):.2f}" if pointed else "-"
    return f"| {name} | {len(judged)} | {single} | {len(pointed)} | {share} |"


if __name__ == "__main__":
    sys.exit(main())
