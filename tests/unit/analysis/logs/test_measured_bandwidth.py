"""Bandwidth tests: which host is slower than its peers, and what is not compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangdoc.analysis.facts import derive, schema
from hangdoc.analysis.logs.measured_bandwidth import BandwidthJob
from hangdoc.postmortem.assemble import snapshots
from tests.support.samples import text

TYPES = schema()


def pairs(*rows: str) -> str:
    return "all_reduce_perf, busbw in GB/s\n" + "\n".join(rows) + "\n"


def table(host: str, *rates: float, redop: str = "sum") -> str:
    """A table of nccl-tests, from 1 GiB on."""
    rows = "".join(
        f"{2**30 << at:12d} {2**28 << at:12d} float {redop} -1 {(2**30 << at) / rate / 1e3:.1f} {rate} {rate} 0\n"
        for at, rate in enumerate(rates)
    )
    return f"#  Rank  0 Group  0 Pid  11 on  {host} device  0 [0000:17:00] NVIDIA H100\n{rows}# Avg bus bandwidth : 9\n"


# Text, and the hosts that are slow, between hosts, of two runs.
SLOW = {
    "a host in two slow pairs": (pairs("gx1,gx2 90", "gx1,gx3 181", "gx2,gx4 91", "gx3,gx4 180"), ["gx2"], True, False),
    "other separators": (
        pairs("gx1 <-> gx2: 90 GB/s", "gx1 <-> gx3: 181 GB/s", "| gx2 | gx4 | 91 |", "gx3-gx4 180"),
        ["gx2"], True, False,
    ),
    "a pair of hosts that were in no other": (pairs("gx1,gx2 90", "gx3,gx4 181", "gx5,gx6 180"), [], True, False),
    "a path between hosts that are fast elsewhere": (
        pairs("gx1,gx2 90", "gx1,gx3 181", "gx2,gx4 182", "gx3,gx4 180"), [], True, False,
    ),
    "inside a host": (table("gx1", 470) + table("gx2", 92) + table("gx3", 468), ["gx2"], False, False),
    "the second of two": (table("gx1", 470) + table("gx2", 92), ["gx2"], False, True),
    "a list of hosts": (pairs("gx1 470", "gx2 92", "gx3 468"), ["gx2"], False, False),
    "a matrix": (
        pairs(
            "     gx1 gx2 gx3 gx4",
            "gx1  -   61  180 181", "gx2  60  -   62  61", "gx3  181 61  -   182", "gx4 180 60 181 -",
        ),
        ["gx2"], True, False,
    ),
}  # fmt: skip
EQUAL = {
    "one of two, by little": table("gx1", 470) + table("gx2", 330),
    "other operations": table("gx1", 470) + table("gx2", 190, redop="none"),
    "more hosts": table("gx1", 470) + table("gx1", 190).replace("# Avg", table("gx2", 190).split("\n")[0] + "\n# Avg"),
    "rates that differ gradually": pairs("gx1,gx2 100", "gx1,gx3 130", "gx2,gx3 170", "gx1,gx4 220"),
    "half of the hosts": pairs("gx1 470", "gx2 92", "gx3 468", "gx4 93"),
    "disks": "fio read bandwidth GB/s\ngx1 6.4\ngx2 1.1\ngx3 6.3\n",
    "latencies": "latency (us) with busbw tests\ngx1,gx2 90\ngx1,gx3 19\ngx2,gx3 91\n",
    "a number that the end of the text cuts": pairs("gx1,gx2 181", "gx1,gx3 182", "gx2,gx3 18").rstrip("\n"),
    "numbers without a unit": "gx1,gx2 90\ngx1,gx3 181\ngx2,gx3 91\n",
}


def facts(folder: Path, content: str) -> BandwidthJob:
    return derive(list(snapshots(text("bandwidth_tests", folder, content))), TYPES).job.bandwidth


@pytest.mark.parametrize("name", SLOW)
def test_slow(name: str, tmp_path: Path) -> None:
    content, hosts, between, of_two = SLOW[name]
    found = facts(tmp_path, content)
    assert found.slow_text
    assert ([one.host for one in found.slow], found.between, found.of_two) == (hosts, between, of_two)


@pytest.mark.parametrize("name", EQUAL)
def test_not_compared(name: str, tmp_path: Path) -> None:
    found = facts(tmp_path, EQUAL[name])
    assert (found.slow, found.slow_text) == ((), None)


def test_large_messages_that_are_slower(tmp_path: Path) -> None:
    drop = facts(tmp_path, table("gx1", 170, 180, 20, 18)).drop_text
    assert drop == "180 GB/s with messages of 2147483648 bytes, 18 GB/s with 8589934592 bytes"
    assert facts(tmp_path, table("gx1", 10, 170, 180, 120)).drop_text is None


def test_wrong_values(tmp_path: Path) -> None:
    right = table("gx1", 170, 180)
    wrong = right.replace(" 180 180 0", " 180 180 12")
    assert facts(tmp_path, right).wrong == 0
    found = facts(tmp_path, wrong)
    assert (found.wrong, [one.host for one in found.wrong_at]) == (12, ["gx1"])
    assert facts(tmp_path, "# Out of bounds values : 3 FAILED\n").wrong == 3
    several = wrong.replace("\n", "\n#  Rank  1 Group  0 Pid  12 on  gx2 device  0 [0000:17:00] NVIDIA H100\n", 1)
    assert facts(tmp_path, several).wrong_at == ()
