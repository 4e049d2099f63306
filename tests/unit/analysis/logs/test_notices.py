"""Messages that name a cause by themselves: of which rank or host, and whether they belong to what ended it."""

from __future__ import annotations

import pytest

from hangdoc.analysis.logs.notices import KINDS, NoticesJob
from hangdoc.evidence.logs import LogEvent
from hangdoc.postmortem.readers import lock_listing
from hangdoc.postmortem.readers._logs.catalogue import catalogue
from tests.unit.analysis.logs.test_logs import error, facts, line, timeout

MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB."


def test_every_fact_is_a_kind_of_the_catalogue() -> None:
    assert {pattern.kind for pattern in catalogue()} | {lock_listing.KIND} >= KINDS
    of_kinds = {f"{kind}{end}" for kind in KINDS for end in ("", "_at")}
    assert set(NoticesJob.__dataclass_fields__) - of_kinds == {
        "gc_paused_alone",
        "lost_for_memory",
        "throttled_ranks",
        "worker_killed",
    }
    assert of_kinds <= set(NoticesJob.__dataclass_fields__)


def test_kinds_for_these_facts_name_a_playbook() -> None:
    assert not [pattern for pattern in catalogue() if pattern.kind in KINDS and not pattern.playbooks]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_message_of_a_rank(kind: str) -> None:
    found = facts((0, []), (1, [line(kind, text="what it prints")]))
    assert [getattr(rank.notices, kind) for rank in found.ranks] == [None, "what it prints"]
    assert getattr(found.job.notices, kind) is None


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_message_of_a_host_and_of_nobody(kind: str) -> None:
    of_host = facts((0, []), ("node7", [line(kind, text="what it prints")])).job.notices
    assert getattr(of_host, kind) == "what it prints"
    assert [one.host for one in getattr(of_host, f"{kind}_at")] == ["node7"]
    of_nobody = facts((None, [line(kind, text="what it prints")])).job.notices
    assert getattr(of_nobody, kind) == "what it prints"
    assert getattr(of_nobody, f"{kind}_at") == ()


def test_the_rank_that_a_message_names_is_at_fault_and_not_the_one_that_prints_it() -> None:
    message = line("duplicate_gpu", rank=1, rank_b=5, text="Duplicate GPU")
    found = facts((0, [message]), (1, []))
    assert [rank.notices.duplicate_gpu for rank in found.ranks] == [None, "Duplicate GPU"]
    assert [one.rank for one in found.job.notices.duplicate_gpu_at] == [5]


def test_the_host_that_a_message_names_is_at_fault() -> None:
    found = facts((None, [line("node_failed", host="node11", text="Node failure on node11")]))
    assert [one.host for one in found.job.notices.node_failed_at] == ["node11"]


@pytest.mark.parametrize(
    ("events", "counts"),
    [
        ([line("gpu_out_of_memory", 9, text=MEMORY), error(MEMORY, 2)], True),  # the last line of the traceback
        ([line("gpu_out_of_memory", 9, text=MEMORY), error("ValueError: bad batch", 4000)], False),
        ([line("gpu_out_of_memory", 9, text=MEMORY), error("RuntimeError: worker failed", 30)], True),
        ([line("gpu_out_of_memory", 9, text=MEMORY), timeout(7, number=400)], False),  # the rank trained on
        ([timeout(7, number=2), line("gpu_out_of_memory", 9, text=MEMORY)], True),
        ([line("gpu_out_of_memory", 9, text=MEMORY), line("progress", 12)], False),
        ([line("gpu_out_of_memory", 9, text=MEMORY, source="a"), error(MEMORY, 2, source="b")], True),
        ([line("gpu_out_of_memory", 9, text=MEMORY, source="a"), error("ValueError: bad", 2, source="b")], False),
    ],
)
def test_a_message_counts_if_it_belongs_to_what_ended_the_rank(events: list[LogEvent], counts: bool) -> None:
    found = facts((0, events), (1, []))
    assert bool(found.ranks[0].notices.gpu_out_of_memory) == counts


@pytest.mark.parametrize(("killed", "lost", "known"), [(1, 1, True), (2, 2, True), (1, 2, False), (2, 1, False)])
def test_who_was_killed_for_lack_of_memory_is_who_was_lost(killed: int, lost: int, known: bool) -> None:
    monitor = (None, [line("host_out_of_memory", host="10.0.0.7", count=killed, text="killed due to memory pressure")])
    ranks = [(rank, [line("process_lost", text="The actor died")]) for rank in range(lost)]
    assert facts(monitor, *ranks, (7, [])).job.notices.lost_for_memory is known


def test_storage_that_came_back_is_not_lost() -> None:
    lost, back = line("storage_lost", 3, text="not responding"), line("storage_back", 8, text="OK")
    assert facts(("node7", [lost])).job.notices.storage_lost
    assert not facts(("node7", [lost, back])).job.notices.storage_lost
    assert facts(("node7", [back, line("storage_lost", 9, text="not responding")])).job.notices.storage_lost
