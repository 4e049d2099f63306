from __future__ import annotations

import pytest

from hangdoc.postmortem.readers._placement.numbering import RankNumbering


def numbering(*texts: str) -> tuple[bool, bool]:
    found = RankNumbering()
    for text in texts:
        found.feed(text)
    return found.gpu_is_rank, found.ordinal_is_rank


@pytest.mark.parametrize(
    "text",
    [
        "8 ranks, rank i sits on GPU i (no remapping)",
        "one rank per device in order",
        "GPU index = rank here",
        "rank N is pinned to cuda:N",
        "global rank equals GPU id",
        "ranks follow the GPU order",
        "one process per GPU, ranks in order",
        "GPU n runs rank n",
        "single node, local rank = GPU index",
        "rank i on GPU i. why so slow?",
        "| rank / cuda device | data | forward |",
    ],
)
def test_a_text_numbers_gpus_as_ranks(text: str) -> None:
    assert numbering(text) == (True, False)


@pytest.mark.parametrize("text", ["RANK = pod ordinal", "rank is the pod ordinal", "pod number equals rank"])
def test_a_text_numbers_pods_as_ranks(text: str) -> None:
    assert numbering(text) == (False, True)


def test_an_index_may_be_that_of_either() -> None:
    assert numbering("one rank each (index = rank)") == (True, True)


@pytest.mark.parametrize(
    "text",
    [
        "rank 3 on GPU 3 reports an error",
        "rank i is not on GPU i",
        "rank 0 is the GPU 3",
        "rank != gpu index",
        "local rank = GPU index",
        "assuming rank i is on GPU i",
        "rank i on GPU i, except on the last host",
        "is rank i on GPU i?",
    ],
)
def test_a_single_rank_or_a_denial_numbers_nothing(text: str) -> None:
    assert numbering(text) == (False, False)


def test_of_several_hosts_the_numbers_are_local() -> None:
    assert numbering("rank i on GPU i", "it runs on 2 nodes") == (False, False)
