from __future__ import annotations

import pytest

from hangdoc.postmortem.readers.process_counts import Counts


def counts(text: str) -> dict[str, int]:
    found = Counts()
    for number, line in enumerate(text.split("\n"), 1):
        found.feed(line, number)
    found.end()
    return {host: count.count for host, count in found.by_host.items()}


LOOP = "$ for h in n1 n2 n3; do echo $h $(ssh $h pgrep -fc train.py); done"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{LOOP}\nn1 4\nn2 4\nn3 0", {"n1": 4, "n2": 4, "n3": 0}),
        ("$ pdsh -w n[1-2] 'ps aux | grep [t]rain | wc -l'\nn1: 4\nn2: 3", {"n1": 4, "n2": 3}),
        ("$ clush -b pgrep -c python\n----\nn[1-2] (2)\n----\n4\n----\nn3\n----\n0", {"n1": 4, "n2": 4, "n3": 0}),
        ("k1$ pgrep -fc t.py\n4\nk2$ pgrep -fc t.py\n0", {"k1": 4, "k2": 0}),
        ("a@k1:~$ pgrep -f t.py\n811\n812\na@k2:~$ pgrep -f t.py\na@k3:~$ date", {"k1": 2, "k2": 0}),
        ("4 python processes each on a01, a02 and a03, no process on a04", {"a01": 4, "a02": 4, "a03": 4, "a04": 0}),
        ("HOST   PROCS\na01  8\na02  5", {"a01": 8, "a02": 5}),
        ("a01 has 8 ranks, a02 has no python", {"a01": 8, "a02": 0}),
    ],
)
def test_counts_of_hosts(text: str, expected: dict[str, int]) -> None:
    assert counts(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "errors per port\na01 8\na02 0",
        "$ pdsh 'ls /ckpt | wc -l'\na01: 8\na02: 7",
        "there should be 4 processes on a01 and 4 processes on a02",
        "rank 1 = pid 812 on a01, rank 3 = pid 641 on a02",
        "ranks 0-3 on a01, rank 4 on a02",
        "4 processes on a01 before the restart, none on a02 yesterday",
    ],
)
def test_other_numbers_are_no_counts_of_processes(text: str) -> None:
    assert len(counts(text)) < 2


def test_the_last_count_of_a_host_holds() -> None:
    assert counts(f"{LOOP}\nn1 4\nn2 0\n{LOOP}\nn1 4\nn2 4") == {"n1": 4, "n2": 4}
