"""Figures in a text: owners, values, units, tables, and what their names mean."""

from __future__ import annotations

import pytest

from hangdoc.evidence.figures import Figures
from hangdoc.postmortem.readers._logs.figures import (
    MAX_BYTES,
    MAX_FIGURES,
    MAX_LINE,
    FigureKind,
    _kind,
    figure_kinds,
    read_figures,
)
from hangdoc.postmortem.readers._logs.prefixes import PrefixStyle

# Text -> figures as `kind of owner=value`, in their order.
TEXTS = {
    "prefixes": (
        "[rank0]: step 12 fwd 0.84s allreduce 40 ms\n[rank1]: step 12 fwd 14.1s allreduce 31 ms",
        ["work rank 0=0.84", "wait rank 0=0.04", "work rank 1=14.1", "wait rank 1=0.031"],
    ),
    "owners in one line": (
        "forward: rank 0 0.088s, rank 1 0.271s",
        ["work rank 0=0.088", "work rank 1=0.271"],
    ),
    "owners under a heading": (
        "forward-compute (ms):\n  rank 0: 88.5\n  rank 1: 271.0",
        ["work rank 0=0.0885", "work rank 1=0.271"],
    ),
    "several owners of a value": (
        "param checksum: ranks 0-1 7be01c, rank 2 c314aa",
        ["state rank 0=7be01c", "state rank 1=7be01c", "state rank 2=c314aa"],
    ),
    "table of ranks": (
        "| rank | fwd ms | tokens/s |\n|---|---|---|\n| 0 | 88 | 1,900 |\n| 1 | 90 | 600 |",
        ["work rank 0=0.088", "rate rank 0=1900", "work rank 1=0.09", "rate rank 1=600"],
    ),
    "table of hosts": (
        "host,step_time\ngpu07,1.25\ngpu08,4.5",
        ["step host gpu07=1.25", "step host gpu08=4.5"],
    ),
    "table with a column for each rank": (
        "            rank 0   rank 1\nbackward    0.5      1.5",
        ["backward rank 0=0.5", "backward rank 1=1.5"],
    ),
    "meters of a step": (
        "Epoch: [3][ 20/900]  Time  2.112 ( 2.204)  Data  1.921 ( 2.011)  Loss 4.12",
        ["step  =2.112", "input  =1.921"],
    ),
    "parts of a step": (
        "step 20 | data 2.50s | fwd 0.10s | bwd 0.20s | loss 2.1",
        ["input  =2.5", "work  =0.1", "backward  =0.2"],
    ),
    "times of OpenMMLab": (
        "lr: 1.978e-03, eta: 1 day, 2:03:04, time: 2.9, data_time: 2.5, memory: 3781, loss: 1.2",
        ["step  =2.9", "input  =2.5"],
    ),
    "whole numbers of data are counts": ("rank 0 data 512 batches\nrank 1 data 2048 batches", []),
    "local ranks are none of the job": ("local_rank 0 fwd 0.84s\nlocal_rank 1 fwd 0.9s", []),
    "percentiles number no ranks": ("step time p50 0.31s p99 0.48s", []),
    "a figure of one rank": ("[rank0]: fwd 0.84s", []),
    "times of nobody": ("step 12 took 0.84s", []),
    "memory and losses": ("rank 0 loss 2.1 mem 71 GiB\nrank 1 loss 2.2 mem 70 GiB", []),
    "prose": ("We run 64 GPUs, and rank 3 is slow since version 2.4.", []),
}


def read(text: str, lines: int | None = None) -> Figures | None:
    return read_figures(text.encode(), text.count("\n") if lines is None else lines, PrefixStyle(), "job.log")


@pytest.mark.parametrize("name", TEXTS)
def test_figures_of_a_text(name: str) -> None:
    text, expected = TEXTS[name]
    found = read(text + "\n")
    shown = [f"{one.kind} {one.of} {one.owner}={one.value}" for one in found.values] if found else []
    assert shown == expected


@pytest.mark.parametrize(
    ("entry", "example"),
    [(entry, example) for entry in figure_kinds() for example in entry.examples],
    ids=lambda one: one if isinstance(one, str) else one.kind,
)
def test_example_of_a_kind(entry: FigureKind, example: str) -> None:
    """The first entry that matches it is its own."""
    text = example.lower().replace("_", " ")
    assert next(one for one in figure_kinds() if one.expression.search(text)) is entry
    found = _kind(example, "s" if entry.time == "unit" else None)
    assert (found[0] if found else "none") == entry.kind


def test_numbers_of_gpus_that_are_ranks() -> None:
    table = "GPU  step ms\n0  300\n1  900\n"
    assert [found.index_is_rank for text in (table, f"GPU index = rank here\n{table}") if (found := read(text))] == [
        False,
        True,
    ]


def test_line_numbers_count_from_the_begin_of_the_file() -> None:
    found = read("[rank0]: fwd 0.8s\n[rank1]: fwd 0.9s\n", lines=1002)
    assert found
    assert [one.line for one in found.values] == [1001, 1002]


def test_bounds() -> None:
    lines = [f"[rank{at}]: fwd 0.{at}s bwd 0.{at}s wait 0.{at}s opt 0.{at}s step time 0.{at}s" for at in range(2000)]
    found = read("\n".join(lines))
    assert found
    assert len(found.values) <= MAX_FIGURES
    early = "[rank0]: fwd 0.8s\n" + "x" * MAX_BYTES + "\n[rank1]: fwd 0.9s\n"
    assert read(early) is None, "only the end of a file is searched"
    assert read(f"[rank0]: fwd 0.8s\n[rank1]: fwd 0.9s{' ' * MAX_LINE}\n") is None
