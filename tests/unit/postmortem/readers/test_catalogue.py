"""The catalogue of messages: each entry finds its own examples, and no other entry takes them for something else."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from typing import Any

import pytest
import yaml

import playbooks
from hangdoc.postmortem.readers._logs.catalogue import (
    FILE,
    HARMLESS,
    NOTICE,
    LinePattern,
    anchors,
    catalogue,
    line_patterns,
    patterns_by_anchor,
)
from hangdoc.postmortem.readers._logs.prefixes import PrefixStyle, parse
from tests.support.pace import within

ENTRIES: list[dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
FIELDS = {"kind", "anchor", "match", "since", "proves", "not", "playbook", "source", "checked", "also", "example"}
STYLE = PrefixStyle(year=2026, month=12)
# What the logs of healthy jobs consist of: no anchor may occur in them.
ORDINARY = """
{'loss': 0.4312, 'grad_norm': 1.02, 'learning_rate': 2e-05, 'epoch': 0.31}
Epoch 3:  41%|████      | 410/1000 [02:13<03:12,  3.07it/s, v_num=0, train_loss=0.21]
[2026-11-25 08:00:01,220] [INFO] [logging.py:107:log_dist] [Rank 0] step=400, skipped=0, lr=[0.0001], mom=[(0.9, 0.95)]
 iteration 400/ 5000 | consumed samples: 102400 | elapsed time per iteration (ms): 812.3 | lm loss: 2.31E+00 |
node1:880:1290 [0] NCCL INFO Channel 03/0 : 1[1] -> 0[0] via P2P/CUMEM/read
node1:880:1290 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.7.0.4<0>
node1:880:1290 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
node1:880:1290 [0] NCCL INFO Using non-device net plugin version 0
INFO:root:Saved checkpoint to /scratch/ckpt/step_400 in 12.4 s
GPU memory: 71.3 GiB allocated, 78.0 GiB reserved, 2.1 GiB free on device cuda:3
2026-11-25 08:00:01 | INFO | trainer | rank 3 of 8 | tokens/s 41231 | timeout=600 | workers=8 | peak memory 60.1 GiB
val_error=0.031 top1=0.91 retry=0 failed_samples=0 killed=0
"""


@cache
def found_by(line: str) -> frozenset[str]:
    """The kinds that the reader finds in a line."""
    text = parse(line, STYLE).text
    patterns = (pattern for anchor in anchors().within(line) for pattern in patterns_by_anchor()[anchor])
    return frozenset(pattern.kind for pattern in patterns if pattern.match.search(text))


def name(pattern: LinePattern) -> str:
    return f"{pattern.kind}: {pattern.anchor[:40]}"


every_entry = pytest.mark.parametrize("pattern", catalogue(), ids=name)


def test_there_are_enough() -> None:
    assert len(catalogue()) >= 330
    assert sum(pattern.checked is not None for pattern in catalogue()) >= 150


def test_fields_are_known_and_complete() -> None:
    for entry in ENTRIES:
        assert set(entry) <= FIELDS, entry["anchor"]
        for field in ("kind", "anchor", "since", "proves", "not", "source", "example"):
            assert entry[field], (entry["anchor"], field)


def test_no_entry_comes_twice() -> None:
    assert not [one for one, n in Counter((entry["kind"], entry["anchor"]) for entry in ENTRIES).items() if n > 1]


@every_entry
def test_it_finds_its_examples(pattern: LinePattern) -> None:
    filled: set[str] = set()
    for example in pattern.examples:
        assert pattern.anchor in example
        match = pattern.match.search(parse(example, STYLE).text)
        assert match is not None
        filled |= {name for name, value in match.groupdict().items() if value}
    assert filled == set(pattern.match.groupindex)


@every_entry
def test_nobody_takes_its_examples_for_something_else(pattern: LinePattern) -> None:
    own = {pattern.kind, *pattern.also} - {HARMLESS}
    for example in pattern.examples:
        assert found_by(example) - {NOTICE} <= own
        assert pattern.kind != HARMLESS or not found_by(example)


@every_entry
def test_its_playbooks_exist(pattern: LinePattern) -> None:
    assert set(pattern.playbooks) <= {folder.name for folder in playbooks.folders()}
    assert bool(pattern.playbooks) <= (pattern.kind not in (NOTICE, HARMLESS))


@pytest.mark.parametrize("pattern", line_patterns(), ids=name)
def test_its_anchor_is_long_and_rare(pattern: LinePattern) -> None:
    assert len(pattern.anchor) >= 6
    assert pattern.anchor.isascii()
    assert not any(pattern.anchor in line for line in ORDINARY.splitlines())


@every_entry
def test_its_expression_is_bounded(pattern: LinePattern) -> None:
    """No repetition of a group that itself repeats, unless it begins with a separator; little time on hostile text."""
    assert not re.search(r"\((?!\?:,? )[^()]*[+*][^()]*\)[+*]", pattern.expression)
    with within(1.0):
        for text in ("a" * 16_000, "0" * 16_000, ", 1" * 5_000, "[" * 16_000, pattern.anchor * 200):
            pattern.match.search(text)


def test_ordinary_lines_cost_nothing() -> None:
    assert not [line for line in ORDINARY.splitlines() if anchors().occur(line)]
