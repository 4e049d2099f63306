"""Ranks that read different data, and the variable that made them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from hangdoc.evidence import Folder, Io, Variable
from tests.support.synthetic_evidence import At, Stage, in_c10d, number

SCRIPT = """\
def train(root):
    for number, file in enumerate(sorted(listdir(root))):
        dist.all_reduce(load(file))
    dist.barrier()
"""
SMALL, LARGE, ALIKE = ("/data/sample", 4), ("/data/full", 201), ("/data/part-b", 5)
TINY, LARGE_TOO = ("/data/empty", 1), ("/data/full-b", 190)
STEP, END, READ = 3, 4, 2


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(SCRIPT, tmp_path_factory.mktemp("stage"))


def at(line: int, folder: tuple[str, int], environ: Mapping[str, str] | None = None) -> At:
    path, entries = folder
    variables = {"train": [Variable("root", f'"{path}"', kind="str"), number("number", 3)]}
    more = {"records": {"io": Io(folders=(Folder(path, entries),))}, "environ": environ or {}, "variables": variables}
    if line == READ:
        return At((("train", line),), **more)  # type: ignore[arg-type]
    return in_c10d("all_reduce" if line == STEP else "barrier", ("train", line), **more)


@pytest.mark.parametrize(
    ("ranks", "odd"),
    [
        ([at(STEP, LARGE), at(STEP, LARGE), at(END, SMALL)], [2]),
        ([at(STEP, SMALL), at(STEP, SMALL), at(READ, LARGE)], [2]),
        ([at(STEP, SMALL), at(READ, LARGE)], [1]),  # the rank that its peer waits for
        ([at(READ, LARGE), at(STEP, SMALL)], [0]),
        ([at(END, SMALL), at(STEP, LARGE)], [0]),  # both wait: the rank with less data
        ([at(STEP, SMALL), at(END, ALIKE)], []),  # one shard each
        ([at(STEP, LARGE), at(END, LARGE)], []),
        ([at(STEP, LARGE), at(STEP, LARGE), at(END, SMALL), at(READ, TINY)], [2, 3]),  # three folders
        ([at(STEP, LARGE), at(STEP, LARGE_TOO), at(STEP, LARGE), at(END, SMALL)], [3]),  # shards of one size, but one
        ([at(STEP, SMALL), at(STEP, ALIKE), at(READ, LARGE)], []),  # each rank has a folder of its own
    ],
)
def test_outliers(stage: Stage, ranks: Sequence[At], odd: Sequence[int]) -> None:
    facts = stage.facts(ranks)
    assert [rank.rank for rank in facts.ranks if rank.data_paths.outlier] == odd
    assert all(rank.data_paths.parted for rank in facts.ranks) is bool(odd)


@pytest.mark.parametrize(
    ("here", "there", "variable"),
    [
        ({}, {"CORPUS": "/data/full"}, ("CORPUS", None, "/data/full")),
        ({"CORPUS": "/data/sample"}, {"CORPUS": "/data/full"}, ("CORPUS", "/data/sample", "/data/full")),
        ({"DATA_ROOT": "/data"}, {"DATA_ROOT": "/data"}, (None, None, None)),
        ({"RANK": "1"}, {"RANK": "0"}, (None, None, None)),
    ],
)
def test_environment_variable_that_differs(
    stage: Stage, here: Mapping[str, str], there: Mapping[str, str], variable: tuple[str | None, ...]
) -> None:
    skew = stage.facts([at(STEP, LARGE, there), at(STEP, LARGE, there), at(END, SMALL, here)]).ranks[2].data_paths
    assert (skew.variable, skew.value, skew.value_others) == variable
    assert (skew.folder, skew.entries) == SMALL
    assert skew.name == "root in train (job.py)"
