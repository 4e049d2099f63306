"""Settings that differ between ranks: only significant ones, and only if the ranks diverge along them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from hangdoc.analysis import Case
from hangdoc.analysis.facts import Facts
from hangdoc.analysis.startup.config_skew import ANALYSIS, SettingsJob, options
from hangdoc.evidence import Process, Variable
from hangdoc.evidence.software import Versions
from tests.support.synthetic_evidence import At, Stage, in_c10d

SCRIPT = """\
def train(args):
    for number in range(1, 100):
        work()
        if number % args.accum == 0:
            dist.all_reduce(x)
    dist.barrier()
"""
REDUCES, BARRIER = [("train", 5)], [("train", 6)]


def process(command: str) -> Process:
    return Process(1, 1, 0, "S", tuple(command.split()), None, None, 10.0, 1.0, 1, ())


def rank(calls: Sequence[tuple[str, int]], command: str = "python t.py", **more: object) -> At:
    records: Mapping[str, object] = {
        "cpu": process(command),
        **({"versions": more.pop("versions")} if "versions" in more else {}),
    }
    op = "barrier" if calls == BARRIER else "all_reduce"
    return in_c10d(op, *calls, records=records, **more)


def judged(folder: Path, *ranks: At) -> Facts:
    return Stage(SCRIPT, folder).facts(ranks)


def odd(facts: Facts) -> list[int]:
    return [one.rank for one in facts.ranks if one.settings.outlier]


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ("--accum {}", "--accum = 2 on ranks 0,2, 3 on rank 1"),
        ("--accum={}", "--accum = 2 on ranks 0,2, 3 on rank 1"),
        ("--trainer.max_steps {}", "--trainer.max_steps = 2 on ranks 0,2, 3 on rank 1"),
        ("--lr 1 --local-rank {}", None),
        ("--log-dir {}", None),
        ("--num-workers {}", None),
        ("--colour {}", None),  # nothing says that it matters
    ],
)
def test_options(option: str, line: str | None, tmp_path: Path) -> None:
    command = "python -u t.py " + option
    ranks = [rank(BARRIER if n == 1 else REDUCES, command.format(3 if n == 1 else 2)) for n in range(3)]
    found = judged(tmp_path, *ranks)
    assert found.job.settings.lines == ((line,) if line else ())
    assert found.job.settings.options == (line is not None)
    assert odd(found) == ([1] if line else [])


def test_an_option_counts_only_if_the_ranks_diverge_along_it(tmp_path: Path) -> None:
    told = [2, 3, 2]
    together = judged(tmp_path, *(rank(REDUCES, f"python t.py --accum {n}") for n in told))
    assert together.job.settings.lines == ()
    across = judged(
        tmp_path, *(rank(BARRIER if i == 2 else REDUCES, f"python t.py --accum {n}") for i, n in enumerate(told))
    )
    assert across.job.settings.lines == ()


def test_a_value_that_differs_on_every_rank_is_by_design(tmp_path: Path) -> None:
    found = judged(tmp_path, *(rank(BARRIER if n == 1 else REDUCES, f"python t.py --layers {n}") for n in range(3)))
    assert found.job.settings.lines == ()


def test_variables(tmp_path: Path) -> None:
    own = {"RANK": "x", "OMP_NUM_THREADS": "3", "GLOO_SOCKET_IFNAME": "eth1"}
    told = {"ACCELERATE_MIXED_PRECISION": "bf16"}
    found = judged(tmp_path, rank(REDUCES), rank(REDUCES), rank(BARRIER, environ={**own, **told}))
    assert found.job.settings.lines == ("ACCELERATE_MIXED_PRECISION = not set on ranks 0-1, bf16 on rank 2",)
    assert odd(found) == [2]


def test_versions(tmp_path: Path) -> None:
    old, new = Versions("2.12.0", "2.26.2", "3.11"), Versions("2.13.0", "2.26.2", "3.11")
    found = judged(tmp_path, rank(REDUCES, versions=new), rank(REDUCES, versions=new), rank(REDUCES, versions=old))
    assert found.job.settings == SettingsJob(
        ("version of torch = 2.13.0 on ranks 0-1, 2.12.0 on rank 2",), versions=True
    )
    assert [one.settings.parted for one in found.ranks] == [False] * 3
    unknown = judged(tmp_path, rank(REDUCES, versions=new), rank(REDUCES), rank(REDUCES, versions=old))
    assert unknown.job.settings.lines == ()


def test_sizes(tmp_path: Path) -> None:
    case = judged(tmp_path, rank(REDUCES), rank(REDUCES), rank(REDUCES)).case
    for key, one in list(case.ranks.items()):
        told = replace(one.target, world_size=4 if one.target.rank == 2 else 3)
        case.ranks[key] = replace(one, target=told)  # type: ignore[index]
    facts, job = ANALYSIS.derive(case)
    assert job == SettingsJob(("world size = 3 on ranks 0-1, 4 on rank 2",), sizes=True)
    assert [one.outlier for one in facts.values()] == [False, False, True]


def test_one_rank_and_no_rank(tmp_path: Path) -> None:
    assert judged(tmp_path, rank(REDUCES, "python t.py --accum 2")).job.settings == SettingsJob()
    assert ANALYSIS.derive(Case([], {})) == ({}, SettingsJob())


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (
            "python -u t.py --a 1 --b=2 -c 3 --flag --last",
            {"a": "1", "b": "2", "c": "3", "flag": "given", "last": "given"},
        ),
        ("python -m pkg.train --a -1", {"a": "-1"}),
        ("python t.py pos --a 1 --a 2", {"a": "1 2"}),
        ("./train --a 1", {}),
        ("", {}),
    ],
)
def test_command_lines(command: str, told: dict[str, str]) -> None:
    assert options(command.split()) == told


@pytest.mark.parametrize(("size", "outliers"), [(4.0, [1]), (3.0, []), (-1.0, []), (1e18, [])])
def test_the_world_size_that_a_rank_passes_to_init_process_group(
    size: float, outliers: list[int], tmp_path: Path
) -> None:
    """A script may take it from elsewhere than the launcher; an impossible one is ignored."""
    given = {"init_process_group": [Variable("world_size", "", number=size, kind="int")]}
    joining = in_c10d("init_process_group", *REDUCES, variables=given)
    found = judged(tmp_path, rank(REDUCES), joining, rank(REDUCES))
    assert odd(found) == outliers
    assert found.job.settings.sizes is bool(outliers)


@pytest.mark.parametrize(
    ("ends", "outliers"), [(("a", "b", "a"), [1]), (("a", "a", "a"), []), (("a", "b", "c"), []), (("a", None, "a"), [])]
)
def test_where_ranks_meet(ends: Sequence[str | None], outliers: list[int], tmp_path: Path) -> None:
    """A file whose path each rank makes from its own settings; the longest paths are compared by their ends."""
    url = f"file:///{'shared/' * 12}"
    joining = [
        in_c10d(
            "init_process_group",
            *REDUCES,
            variables={
                "init_process_group": [
                    Variable("init_method", f'"{url}{end}"' if end else "None", kind="str" if end else "none")
                ]
            },
        )
        for end in ends
    ]
    found = judged(tmp_path, *joining)
    assert odd(found) == outliers
    assert found.job.settings.meetings is bool(outliers)


@pytest.mark.parametrize(
    ("name", "values", "size", "outliers"),
    [
        ("run_name", ("9ac1", "9ac1", "77be"), 3, [2]),
        ("run_name", ("9ac1", "9ac1", "9ac1"), 3, []),
        ("run_name", ("9ac1", "77be", "e0d4"), 3, []),  # of each rank its own
        ("run_name", ("exp-0", "exp-0", "exp-1"), 3, []),  # a number of a host, or a time
        ("run_name", ("9ac1", "9ac1", "77be"), 4, []),  # a rank is missing, for which the others wait
        ("role", ("master", "worker", "worker"), 3, []),
    ],
)
def test_the_name_under_which_ranks_meet(
    name: str, values: Sequence[str], size: int, outliers: list[int], tmp_path: Path
) -> None:
    joining = [
        in_c10d(
            "init_process_group",
            *REDUCES,
            variables={
                "init_process_group": [Variable("world_size", "", number=size, kind="int")],
                "train": [Variable(name, f'"{value}"', kind="str")],
            },
        )
        for value in values
    ]
    found = judged(tmp_path, *joining)
    assert odd(found) == outliers
    assert found.job.settings.run_names is bool(outliers)
