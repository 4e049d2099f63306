"""Log folders of several torchruns, each with local ranks from 0."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from hangdoc.evidence.pieces import ProcessRef
from hangdoc.postmortem.readers._input_file import find_sources
from hangdoc.postmortem.readers._torchrun import assign_nodes, process_of
from tests.support.judge import reported

RAISED = """\
Traceback (most recent call last):
  File "/job/train.py", line 20, in <module>
    data = load(path)
  File "/job/train.py", line 9, in load
    return open(path).read()
FileNotFoundError: [Errno 2] No such file or directory: '/data/shard-3.txt'
"""
WAITED = """\
Traceback (most recent call last):
  File "/job/train.py", line 22, in <module>
    dist.barrier()
  File "/opt/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 5356, in barrier
    work.wait()
RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 12000ms for recv operation to complete
"""


def written(folder: Path, texts: Mapping[str, str]) -> Path:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def named(rank: int, text: str) -> str:
    """As torch's own hook writes it, once the process group is there."""
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


def whose(folder: Path) -> list[ProcessRef | None]:
    return [process_of(source) for source in assign_nodes(find_sources([folder], print))]


@pytest.mark.parametrize(
    ("texts", "ranks"),
    [
        ({"a/attempt_0/0/stderr.log": "x", "a/attempt_0/1/stderr.log": "x"}, [ProcessRef(0), ProcessRef(1)]),
        (
            {"a/attempt_0/0/stderr.log": "x", "a/attempt_0/1/stderr.log": named(9, WAITED)},
            [ProcessRef(8), ProcessRef(9)],
        ),
        ({"a/attempt_0/0/stderr.log": "x", "a/attempt_1/0/stderr.log": "x"}, [ProcessRef(0), ProcessRef(0, run=1)]),
        ({"a/attempt_0/0/stderr.log": "x", "b/attempt_0/1/stderr.log": "x"}, [ProcessRef(0), ProcessRef(1)]),
        (
            {"h0/r/attempt_0/0/stderr.log": "x", "h1/r/attempt_0/0/error.json": "{}"},
            [ProcessRef(None, "h0", -1), ProcessRef(None, "h1", -1)],
        ),
        (
            {f"{node}/r/attempt_0/{local}/stderr.log": "x" for node in ("h0", "h1") for local in (0, 1)},
            [ProcessRef(None, node, pid) for node in ("h0", "h1") for pid in (-1, -2)],
        ),
        (
            {
                "logs/h0/attempt_0/0/stderr.log": named(0, WAITED),
                "logs/h0/attempt_0/1/stderr.log": "x",
                "logs/h1/attempt_0/0/stderr.log": "x",
                "logs/h1/attempt_0/1/stderr.log": named(3, WAITED),
            },
            [ProcessRef(0, "h0"), ProcessRef(1, "h0"), ProcessRef(2, "h1"), ProcessRef(3, "h1")],
        ),
    ],
    ids=[
        "one node",
        "one of two nodes",
        "restarted",
        "no two of a number",
        "other files",
        "nobody tells",
        "one rank tells",
    ],
)
def test_process_of_a_file(tmp_path: Path, texts: Mapping[str, str], ranks: list[ProcessRef | None]) -> None:
    assert whose(written(tmp_path, texts)) == ranks


@pytest.mark.parametrize(("told", "apart_s"), [(True, 0.0), (False, 3600.0)])
def test_files_of_an_earlier_run_are_a_job_of_their_own(tmp_path: Path, told: bool, apart_s: float) -> None:
    texts = {}
    for run in range(2):
        for local in range(2):
            text = RAISED if (run, local) == (1, 1) else WAITED
            texts[f"none_{run}/attempt_0/{local}/stderr.log"] = named(local, text) if told else text
    folder = written(tmp_path, texts)
    for name in texts:
        at = 1e9 + apart_s * name.startswith("none_1")
        os.utime(folder / name, (at, at))
    assert whose(folder) == [ProcessRef(0), ProcessRef(1), ProcessRef(0, run=1), ProcessRef(1, run=1)]
    before, last = reported(folder).verdicts
    assert [len(verdict.job.ranks) for verdict in (before, last)] == [2, 2]
    assert not any(found.playbook == "rank-raised" for found in before.findings)
    assert [(found.playbook, found.culprits[0].rank) for found in last.findings] == [("rank-raised", 1)]


@pytest.mark.parametrize(("told", "rank"), [(True, 3), (False, None)])
def test_local_ranks_of_two_nodes_are_distinct_ranks(tmp_path: Path, told: bool, rank: int | None) -> None:
    texts = {}
    for number in range(4):
        text = RAISED if number == 3 else WAITED
        name = f"node{number // 2}/none_x/attempt_0/{number % 2}/stderr.log"
        texts[name] = named(number, text) if told else text
    (verdict,) = reported(written(tmp_path, texts)).verdicts
    (found,) = verdict.findings
    (culprit,) = found.culprits
    assert (found.playbook, culprit.rank, culprit.host) == ("rank-raised", rank, "node1")
    assert len(verdict.job.ranks) == 4
