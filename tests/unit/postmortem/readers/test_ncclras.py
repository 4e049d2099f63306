"""`ncclras` reports; samples follow src/ras/client_support.cc of NCCL 2.28."""

from __future__ import annotations

from pathlib import Path

from hangdoc.evidence import FlightRecorder
from hangdoc.evidence.logs import Logs
from hangdoc.evidence.pieces import Piece
from hangdoc.postmortem.readers.ncclras import Ras
from tests.support.samples import SAMPLES, pieces, text

FOLDER = SAMPLES / "ncclras"
OLD = """Job summary
===========

Communicators... (0.00s)
=============

    0         1         4         8        32        32   RUNNING  MISMATCH

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  26 ranks have launched up to operation 6650
  2 ranks have not launched any operations
  Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210
  Rank 2 -- GPU 2 (NVML 3) managed by process 483074 on node 172.16.64.210
  Rank 9 has launched up to operation 6649 -- [process information not found]
"""


def said(found: list[Piece]) -> list[tuple[str, dict[str, str]]]:
    return [
        (one.kind, dict(one.fields)) for piece in found if isinstance(piece.record, Logs) for one in piece.record.said
    ]


def test_rank_behind_the_majority() -> None:
    found = pieces("ncclras", FOLDER / "behind.txt")
    (ras,) = [piece.record for piece in found if isinstance(piece.record, Ras)]
    (communicator,) = ras.communicators
    assert (ras.world_size, communicator.hash, communicator.most) == (8, "78db921d1c117b4a", {"AllReduce": 64})
    (rank,) = communicator.ranks
    assert (rank.rank, rank.host, rank.pid, rank.launched) == (7, "node1", 1650386, {"AllReduce": 60})
    ((kind, fields),) = said(found)
    assert kind == "behind_at_a_look", "one query proves no hang: the ranks are asked one after another"
    assert (fields["ranks"], fields["completed"]) == ("7", "60")


def test_equal_counts_in_two_queries_are_lagging() -> None:
    found = pieces("ncclras", FOLDER / "twice.json")
    ((kind, fields),) = said(found)
    assert (kind, fields["ranks"], fields["completed"], fields["sequence"], fields["op"]) == (
        "lagging",
        "1",
        "100",
        "101",
        "AllReduce",
    )
    recorded = [piece for piece in found if isinstance(piece.record, FlightRecorder)]
    processes = [(piece.process.rank, piece.process.pid) for piece in recorded[:4]]
    assert processes == [(0, 6000), (1, 6001), (2, 6002), (3, 6003)]
    assert [next(iter(piece.record.enqueued.values())) for piece in recorded[:4]] == [101, 100, 101, 101]
    assert {piece.world_size for piece in recorded} == {4}


def test_counts_that_grow_are_not_lagging(tmp_path: Path) -> None:
    content = (FOLDER / "twice.json").read_text()
    half = content.index("}\n{") + 2
    moved = content[:half].replace("100", "90").replace("101", "95") + content[half:]
    assert [kind for kind, _ in said(text("ncclras", tmp_path, moved, "x.json"))] == ["behind_at_a_look"]


def test_dead_and_missing_ranks() -> None:
    found = said(pieces("ncclras", FOLDER / "dead.txt"))
    assert [kind for kind, _ in found] == ["ras_dead", "ras_missing"]
    assert found[0][1] == {"host": "172.16.64.213", "pid": "3487984"}
    assert (found[1][1]["rank"], found[1][1]["pid"]) == ("5", "3487984")


def test_other_versions(tmp_path: Path) -> None:
    """2.24 does not name the operation, and ranks may have launched none."""
    found = text("ncclras", tmp_path, OLD)
    (ras,) = [piece.record for piece in found if isinstance(piece.record, Ras)]
    assert [(r.rank, r.pid, r.launched) for r in ras.communicators[0].ranks] == [
        (0, 483072, {"collective": 0}),
        (2, 483074, {"collective": 0}),
        (9, None, {"collective": 6649}),
    ]
