"""Chains of calls: the frames of each rank, and texts that hold none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.samples import stacks, text

# Text -> the functions of each rank, innermost first.
CHAINS = {
    "outermost first": (
        "rank 0: <module> -> main -> step -> all_reduce\nrank 1: <module> -> main -> save",
        {0: "all_reduce step main <module>", 1: "save main <module>"},
    ),
    "innermost first": (
        "rank 0: barrier (distributed_c10d.py:12) <- evaluate (loop.py:4)\nrank 1: step (loop.py:9) <- main (x.py:4)",
        {0: "barrier evaluate", 1: "step main"},
    ),
    "innermost first, by the outermost": ("rank 0: all_reduce() -> step() -> main()\nrank 1: save() -> main()", {
        0: "all_reduce step main", 1: "save main",
    }),
    "a handle": ("rank 0: torch.main -> all_reduce -> wait\nrank 1: main() > barrier > wait", {
        0: "all_reduce main", 1: "barrier main",
    }),
    "ranks of a stack": (
        "ranks 0-2,4: all_reduce (x.py:12)\nranks [3, 5]  step (x.py:9)",
        dict.fromkeys((0, 1, 2, 4), "all_reduce") | dict.fromkeys((3, 5), "step"),
    ),
    "a roll call": (
        "ranks [0, 1]  stopped at  x.py:12 in all_reduce\n    via  x.py:4 in main\nrank [2] stopped at x.py:9 in step",
        {0: "all_reduce main", 1: "all_reduce main", 2: "step"},
    ),
    "rows below a host": (
        "rank and its place\ngx1 (0-1): both all_reduce (x.py:12)\ngx2:\n 2 get (q.py:3) <- load (x.py:9)\n"
        " 3 get (q.py:3) <- load (x.py:9)\n 4 get (q.py:3) <- load (x.py:9)",
        dict.fromkeys((0, 1), "all_reduce") | dict.fromkeys((2, 3, 4), "get load"),
    ),
    "a wide gap": (
        "rank 0: load (x.py:9)      <- main (x.py:1)\nrank 1: step (x.py:4)",
        {0: "load main", 1: "step"},
    ),
    "a list beside a dump": (
        "rank 0: step (x.py:4)\nrank 1: step (x.py:4)\nrank 2: see below\nrank 3: step (x.py:4)\n"
        'Process 411: python t.py --local_rank=2\nThread 411 (idle): "MainThread"\n    get (queue.py:171)\n',
        dict.fromkeys((0, 1, 3), "step"),
    ),
    "merged stacks": (
        "main@t.py@0-2|;step@t.py@0/2|1 1\nmain@t.py@0-2|;save@t.py@1|0/2 1",
        {0: "step main", 1: "save main", 2: "step main"},
    ),
}  # fmt: skip
NONE = {
    "one rank": "rank 0: main (x.py:1) -> all_reduce (x.py:2)",
    "what ranks do in turn": "rank 0: preprocess -> barrier\nrank 1: barrier -> load",
    "prose": "rank 0: 2 nodes -> 4 nodes\nrank 1: fp16 -> bf16",
    "the frames of a dump": "[rank0]: all_reduce (x.py:2)\n[rank0]: main (x.py:1)\n[rank1]: all_reduce (x.py:2)",
    "numbered frames of one rank": "rank 0:\n 0 all_reduce (x.py:2)\n 1 step (x.py:9)\n 2 main (x.py:1)",
    "unknown functions": "rank 0: main() -> step()\nrank 1: main() -> save()",
}


@pytest.mark.parametrize("name", CHAINS)
def test_frames(name: str, tmp_path: Path) -> None:
    content, expected = CHAINS[name]
    found = {
        piece.process.rank: " ".join(frame.function for frame in stacks(piece).threads[0].frames)
        for piece in text("call_chains", tmp_path, content)
    }
    assert found == expected


@pytest.mark.parametrize("name", NONE)
def test_no_chains(name: str, tmp_path: Path) -> None:
    assert text("call_chains", tmp_path, NONE[name]) == []


def test_functions_of_torch_have_their_files(tmp_path: Path) -> None:
    first, second = text(
        "call_chains", tmp_path, "rank 0: main() -> dist.all_reduce\nrank 1: main() -> DataLoader.__next__"
    )
    files = [stacks(piece).threads[0].frames[0].file for piece in (first, second)]
    assert [file.rpartition("site-packages/")[2] for file in files] == [
        "torch/distributed/distributed_c10d.py",
        "torch/utils/data/dataloader.py",
    ]
