"""Which owner of figures stands apart from its peers: slower work, waits for batches, values of replicas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count

import pytest

from hangdoc.analysis.facts import Facts, derive, schema
from hangdoc.analysis.logs.figures import FiguresFacts, FiguresJob
from hangdoc.evidence import End
from hangdoc.evidence.figures import Figure, Figures
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.assemble import snapshots

TYPES = schema()
Values = Mapping[str, Sequence[float | str]]  # kind, and kind of owner unless it is the rank -> value of each owner

# Values, and the ranks or hosts that are slow; firmly or not.
SLOW: dict[str, tuple[Values, list[int | str], bool]] = {
    "twice the work": ({"work": [0.9, 0.9, 1.9, 0.91]}, [2], True),
    "a host": ({"step host": [1.2, 1.2, 3.1]}, ["host2"], True),
    "a low rate": ({"rate": [1900, 1890, 600, 1910]}, [2], True),
    "its own work rather than its step": ({"step": [2.0, 2.0, 2.0, 2.0], "work": [0.5, 0.5, 1.6, 0.5]}, [2], True),
    "a little more, where the others agree": ({"work": [1.0, 1.0, 1.3, 1.0]}, [2], False),
    "one of two": ({"work": [1.0, 2.6]}, [1], False),
    "the one that waits for nobody": ({"wait": [0.4, 0.41, 0.02, 0.4]}, [2], False),
    "equal work": ({"work": [1.0, 1.02, 1.05, 1.01]}, [], False),
    "stages that differ gradually": ({"work": [1.0, 1.2, 1.4, 1.7]}, [], False),
    "half of the ranks": ({"work": [1.0, 1.0, 2.0, 2.0]}, [], False),
    "waits of microseconds": ({"wait": [4e-4, 4e-4, 2e-5, 4e-4]}, [], False),
    "one of two, by little": ({"work": [1.0, 1.4]}, [], False),
    "a GPU of no known rank": ({"work gpu": [0.9, 0.9, 1.9, 0.91]}, [], True),
}
LOADING: dict[str, tuple[Values, list[int | str], bool]] = {
    "seconds of a batch": ({"input": [0.003, 0.004, 1.1, 0.003], "work": [0.1, 0.1, 0.1, 0.1]}, [2], True),
    "zeros on the others": ({"input": [0, 0, 1.1, 0]}, [2], True),
    "one of two": ({"input": [0.003, 1.1]}, [1], False),
    "twice as long": ({"input": [0.5, 0.5, 1.1, 0.5], "step": [1.3, 1.3, 1.3, 1.3]}, [2], False),
    "milliseconds": ({"input": [0.002, 0.001, 0.009, 0.002]}, [], False),
    "a small part of the step": ({"input": [0.02, 0.02, 0.4, 0.02], "step": [9, 9, 9, 9]}, [], False),
    "one of two, by little": ({"input": [0.5, 1.1]}, [], False),
    "all": ({"input": [1.1, 1.0, 1.2, 1.1]}, [], False),
}
APART: dict[str, tuple[Values, str | None, list[int]]] = {
    "a checksum": ({"state": ["7be0", "7be0", "c314", "7be0"]}, "state", [2]),
    "two checksums": ({"state": ["7be0", "c314"]}, "state", []),
    "norms": ({"state": ["12.5001", "12.5001", "12.9"]}, "state", [2]),
    "rounding": ({"state": ["12.500001", "12.500002", "12.500001"]}, None, []),
    "gradients": ({"grad": ["1.25", "1.25", "3.75"]}, "grad", []),
    "gradients that are rounded": ({"grad": ["1.2501", "1.2502", "1.2501"]}, None, []),
    "batch sizes": ({"batch": ["32", "32", "16"]}, "batch", [2]),
    "equal checksums": ({"state": ["7be0", "7be0", "7be0"]}, None, []),
}
# Step and wait for data of each printed line -> the share of the wait, and the lines.
SHARES = {
    "most of each step": ([(2.0, 1.8)] * 4, 0.9, 3),
    "half": ([(0.9, 0.5)] * 3, 0.56, 2),
    "what is left of the step": ([(0.4, 1.6)] * 3, 0.8, 2),
    "little": ([(2.0, 0.2)] * 4, None, 0),
    "less than a tenth of a second": ([(0.09, 0.07)] * 4, None, 0),
    "the first batch alone": ([(14.0, 13.9), (0.3, 0.001), (0.3, 0.001)], None, 0),
    "one line": ([(2.0, 1.8)], None, 0),
}


def figures(values: Values) -> list[Figure]:
    found = []
    for name, line in zip(values, count(1)):
        kind, _, of = name.partition(" ")
        for owner, value in enumerate(values[name]):
            exact = isinstance(value, str) and "." not in value and kind == "state"
            called = f"host{owner}" if of == "host" else str(owner)
            timed = kind in ("work", "step", "input", "wait", "backward")
            found.append(Figure(kind, kind, of or "rank", called, str(value), exact, timed, None, line))
    return found


def facts(values: Iterable[Figure], index_is_rank: bool = False) -> Facts:
    pieces = [Piece(ProcessRef(rank), "end", End(code=0)) for rank in range(4)]
    pieces.append(Piece(ProcessRef(), "figures", Figures(tuple(values), "job.log", index_is_rank)))
    return derive(list(snapshots(pieces)), TYPES)


@pytest.mark.parametrize("name", SLOW)
def test_slow(name: str) -> None:
    values, slow, firm = SLOW[name]
    found = facts(figures(values))
    job = found.job.figures
    assert [one.host or one.rank for one in job.slow] == slow
    assert job.slow_firm == firm
    assert (job.slow_why is not None) == bool(slow or firm)
    assert [rank.rank for rank in found.ranks if rank.figures.slow] == [one for one in slow if isinstance(one, int)]


@pytest.mark.parametrize("name", LOADING)
def test_waits_for_batches(name: str) -> None:
    values, loading, firm = LOADING[name]
    found = facts(figures(values))
    job = found.job.figures
    assert ([one.rank for one in job.loading], job.loading_firm) == (loading, firm)
    assert (job.loading_why is not None) == bool(loading)
    assert [rank.rank for rank in found.ranks if rank.figures.loading] == loading


def test_a_rank_that_waits_for_batches_is_not_slow_as_well() -> None:
    job = facts(figures({"input": [0.003, 0.004, 1.1, 0.003], "step": [0.2, 0.2, 1.3, 0.2]})).job.figures
    assert ([one.rank for one in job.loading], job.slow) == ([2], ())


@pytest.mark.parametrize("name", APART)
def test_values_of_replicas(name: str) -> None:
    values, kind, odd = APART[name]
    job = facts(figures(values)).job.figures
    assert (job.apart_kind, [one.rank for one in job.odd]) == (kind, odd)
    assert job.apart_exact == (kind == "state" and "." not in str(values["state"][0]))


@pytest.mark.parametrize("name", SHARES)
def test_share_of_the_step(name: str) -> None:
    printed, share, lines = SHARES[name]
    values = [
        Figure(kind, kind, "", "", str(value), False, True, None, line)
        for line, pair in enumerate(printed, 1)
        for kind, value in zip(("step", "input"), pair, strict=True)
    ]
    job = facts(values).job.figures
    assert (round(job.loading_share, 2) if job.loading_share else None, job.loading_steps) == (share, lines)
    assert (job.loading_s is None) == (share is None)


def test_a_list_of_sums_does_not_say_over_how_many_steps() -> None:
    values = [
        Figure(kind, kind, "", "", value, False, True, None, 1, count=0)
        for kind, value in (("input", "540"), ("step", "60"))
    ]
    job = facts(values).job.figures
    assert (job.loading_share, job.loading_s, job.loading_steps) == (0.9, 540.0, 0)


def test_the_first_step_shows_nothing() -> None:
    values = [
        Figure("step", "step", "rank", str(at), value, False, True, step)
        for step in (0, 1)
        for at, value in enumerate(("2.0", "2.1", "9.9"))
    ]
    assert facts(values).job.figures.slow == ()


def test_the_parts_of_a_step_are_its_length() -> None:
    values = [
        Figure(kind, kind, "", "", str(value), False, True, None, line)
        for line in range(1, 4)
        for kind, value in (("input", 2.5), ("work", 0.1), ("backward", 0.2), ("wait", 0.2))
    ]
    job = facts(values).job.figures
    assert job.loading_share == pytest.approx(2.5 / 3)
    assert job.loading_s == pytest.approx(2.5)


def test_stages_and_parts_prove_little() -> None:
    values = figures({"work": [0.9, 0.9, 1.9, 0.91], "state": ["7be0", "7be0", "c314", "7be0"]})
    pieces = [Piece(ProcessRef(), "figures", Figures(tuple(values), "job.log", staged=True, sharded=True))]
    job = derive(list(snapshots(pieces)), TYPES).job.figures
    assert (len(job.slow), job.slow_firm, len(job.odd), job.apart_exact) == (1, False, 1, False)


def test_extremes_of_a_report() -> None:
    values = [
        Figure("input", "data", "extreme", owner, value, False, True)
        for owner, value in (("12", "4.8"), ("fastest", "0.01"), ("usual", "0.16"))
    ]
    job = facts(values).job.figures
    assert ([one.rank for one in job.loading], job.loading_firm) == ([12], True)
    assert job.loading_why == "data: 4.8 s on rank 12; 0.16 s as a mean or median"


def test_shares_of_a_step() -> None:
    values = [
        Figure("input", "data%", "rank", str(at), value) for at, value in enumerate(("1.1", "60.4", "1.0", "1.2"))
    ]
    job = facts(values).job.figures
    assert ([one.rank for one in job.loading], job.loading_why) == (
        [1],
        "data%: 60.4 % on rank 1; 1.1 % on the other 3",
    )


def test_a_gpu_is_a_rank_if_the_text_states_it() -> None:
    values = figures({"work gpu": [0.9, 0.9, 1.9, 0.91]})
    assert [one.rank for one in facts(values, index_is_rank=True).job.figures.slow] == [2]


def test_nothing_is_derived_without_figures() -> None:
    found = derive(list(snapshots([Piece(ProcessRef(0), "end", End(code=0))])), TYPES)
    assert found.job.figures == FiguresJob()
    assert [rank.figures for rank in found.ranks] == [FiguresFacts()]
