"""Places of ranks in the words of a person."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangdoc.postmortem.readers import ReadContext
from hangdoc.postmortem.readers._input_file import Source
from hangdoc.postmortem.readers.told_places import READER


def places(text: str, folder: Path, dumped: frozenset[int] = frozenset()) -> dict[int | None, list[str]]:
    """Rank (None: unnamed) -> its frames, innermost first."""
    path = folder / "stdin"
    path.write_text(text)
    source = Source(path, "stdin", path.stat().st_size)
    context = ReadContext(print, shared={"ranks with stacks": set(dumped)})
    if not READER.recognises(source):
        return {}
    return {
        piece.process.rank: [
            f"{frame.function}:{frame.short.rsplit('/', 1)[-1]}:{frame.line}"
            for frame in piece.record.threads[0].frames
        ]
        for piece in READER.read(source, context)
    }


@pytest.mark.parametrize(
    ("text", "ranks", "odd"),
    [
        (
            "Rank 6 is stuck in loader.py:88 -> queue.get, the rest (0-5 and 7) are in all_reduce (s.py:41).",
            range(8),
            6,
        ),
        ("rank 2 waits in barrier (io.py:9) while ranks 0, 1 and 3 are in all_reduce (step.py:41)", range(4), 2),
        ("4 gpus. rank 1 sits in torch.save (ckpt.py:7), everybody else is in barrier", range(4), 1),
        ("  r0-r2   fsdp/runtime.py:310 _unshard -> all_gather\n  r3      cb.py:55 sync -> broadcast", range(4), 3),
        ("rank 3 is in eval already, the other three are still in allreduce", range(4), 3),
    ],
)
def test_clauses(text: str, ranks: range, odd: int, tmp_path: Path) -> None:
    found = places(text, tmp_path)
    assert sorted(rank for rank in found if rank is not None) == list(ranks)
    assert {rank for rank in ranks if found[rank] != found[(odd + 1) % len(ranks)]} == {odd}


def test_the_function_beside_a_line_is_that_of_the_line(tmp_path: Path) -> None:
    found = places("rank 0 is in barrier (io.py:9), rank 1 in all_reduce at step.py:41 in sync_loss", tmp_path)
    assert found[1] == ["all_reduce:distributed_c10d.py:None", "sync_loss:step.py:41"]


def test_a_dump_is_better_than_words(tmp_path: Path) -> None:
    found = places("rank 1 is in barrier, the other ranks (0, 2) are in all_reduce", tmp_path, frozenset({1}))
    assert set(found) == {0, 2}


@pytest.mark.parametrize(
    "text",
    [
        "rank 0 should be in all_gather and the others in barrier",
        "If rank 3 is in broadcast and the rest in all_reduce something is wrong",
        "rank 0: preprocess -> save -> barrier\nranks 1-3: barrier -> load",
        "ranks 0-3 are in all_reduce",
        "rank 0 never reaches all_reduce, rank 1 reached barrier",
        "RuntimeError: Rank 1 is running OpType=BROADCAST, but Rank 0 is running barrier",
        "[rank2]: rank 2 in barrier, rank 3 in all_reduce",
    ],
)
def test_no_statement(text: str, tmp_path: Path) -> None:
    assert not places(text, tmp_path)
