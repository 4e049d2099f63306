from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from hangdoc import formatting


@pytest.mark.parametrize(
    ("ranks", "folded", "named"),
    [
        ([], "", "no rank"),
        ([2], "2", "rank 2"),
        ([0, 1, 2, 5], "0-2,5", "ranks 0-2,5"),
        ([7, 0, 1, 7], "0-1,7", "ranks 0-1,7"),
        ([3, 1], "1,3", "ranks 1,3"),
        (range(4096), "0-4095", "ranks 0-4095"),
    ],
)
def test_ranks(ranks: list[int], folded: str, named: str) -> None:
    assert formatting.fold_ranks(ranks) == folded
    assert formatting.name_ranks(ranks) == named


@dataclass(frozen=True)
class Process:
    rank: int | None
    pid: int | None
    host: str | None = "n1"


@pytest.mark.parametrize(
    ("processes", "named"),
    [
        ([], "no rank"),
        ([(1, 101), (0, 100)], "ranks 0-1"),
        ([(-1, 101), (-1, 100)], "pids 101, 100"),
        ([(2, 102), (-1, 101)], "rank 2 and pid 101"),
        ([(2, 102), (-1, -1)], "rank 2 and an unnamed process"),
        ([(-1, -1), (-1, -1)], "2 unnamed processes"),
        ([(None, None), (None, None)], "host n1"),
        ([(3, None), (None, 101), (None, None)], "rank 3 and pid 101 and host n1"),
    ],
)
def test_processes(processes: list[tuple[int | None, int | None]], named: str) -> None:
    assert formatting.name_processes(Process(*one) for one in processes) == named


@pytest.mark.parametrize(
    ("name", "known", "more", "text"),
    [
        ("stack", ["cpu", "stacks"], [], "did you mean `stacks`?"),
        ("MOSTLI", ["cpu"], ["MOSTLY"], "did you mean `MOSTLY`?"),
        ("zzz", ["stacks", "cpu"], ["MOSTLY"], "known are cpu, stacks"),
        ("zzz", [], [], "known are none"),
    ],
)
def test_suggestions(name: str, known: list[str], more: list[str], text: str) -> None:
    assert formatting.suggestion(name, known, more) == text


def test_folded_ranks_unfold_to_themselves() -> None:
    source = random.Random(7)
    for _ in range(100):
        ranks = {source.randrange(60) for _ in range(source.randrange(40))}
        unfolded: set[int] = set()
        for part in filter(None, formatting.fold_ranks(ranks).split(",")):
            first, _, last = part.partition("-")
            unfolded |= set(range(int(first), int(last or first) + 1))
        assert unfolded == ranks


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        (["node-a"], "node-a"),
        ([f"node{i:02}" for i in range(1, 17)], "node[01-16]"),
        (["b", "a", "b"], "a,b"),
        (["train-worker-0", "train-worker-1"], "train-worker-[0-1]"),
        (["@group", "node[1-9999999]"], "@group,node[1-9999999]"),  # names from outside are never expanded
        ([], ""),
    ],
)
def test_hosts(hosts: list[str], text: str) -> None:
    assert formatting.fold_hosts(hosts) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "an unknown time"),
        (float("nan"), "an unknown time"),
        (float("inf"), "forever"),
        (0, "0 s"),
        (0.0012, "1.2 ms"),
        (0.25, "250 ms"),
        (1, "1 s"),
        (4.26, "4.3 s"),
        (9.97, "10 s"),
        (41.2, "41 s"),
        (59.7, "1 min"),
        (200, "3 min 20 s"),
        (7200, "2 h"),
        (7505, "2 h 5 min"),
        (3 * 86400 + 4 * 3600, "3 d 4 h"),
        (-5, "-5 s"),
    ],
)
def test_seconds(value: float | None, text: str) -> None:
    assert formatting.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "an unknown size"),
        (0, "0 B"),
        (512, "512 B"),
        (1024, "1 KiB"),
        (1_258_291, "1.2 MiB"),
        (300 * 2**20, "300 MiB"),
        (1023.9 * 2**30, "1 TiB"),
        (5000 * 2**40, "5000 TiB"),
    ],
)
def test_size(value: float | None, text: str) -> None:
    assert formatting.size(value) == text


@pytest.mark.parametrize(("value", "text"), [(None, "an unknown share"), (0, "0 %"), (0.005, "0.5 %"), (0.374, "37 %")])
def test_percent(value: float | None, text: str) -> None:
    assert formatting.percent(value) == text
