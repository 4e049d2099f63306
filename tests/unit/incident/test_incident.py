from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

from hangdoc.incident.incident import FEW_LINKS, MAX_LINKS, File, build_incident, fingerprint, incidents
from hangdoc.postmortem.readers import Source
from tests.support.incidents import LEAKS, captured, judged
from tests.support.judge import reported
from tests.support.paths import ROOT


def test_who_is_blamed() -> None:
    made = captured("uneven-batches")
    assert [made.verdict.job.ranks[i].rank for i in made.blamed] == [2]
    assert [(one.blamed, one.op, len(one.members)) for one in made.rank_rows] == [
        (True, "barrier", 1),
        (False, "all_reduce", 2),
    ]
    assert made.rank_rows[1].wait_share == 1.0


def test_the_worst_links_come_first() -> None:
    links = captured("dead-link").links
    assert links[0].dead
    assert links[0].interface_up is False
    quiet = captured("uneven-batches", 64, 40, 2)
    assert len(quiet.links) == FEW_LINKS < MAX_LINKS
    assert quiet.more_links == 128 - FEW_LINKS


def test_secrets_are_masked_and_counted() -> None:
    verdict, facts = judged(ROOT / "playbooks" / "uneven-batches" / "capture.jsonl.zst")
    made = build_incident(
        replace(verdict, note=LEAKS), facts, [File("hf_abcdefghijklmnop.log", "training log")], [LEAKS]
    )
    assert made.hidden == 3
    assert "hunter2" not in repr(made)
    assert captured("uneven-batches").hidden == 0


def test_of_a_report(tmp_path: Path) -> None:
    capture = ROOT / "playbooks" / "uneven-batches" / "capture.jsonl.zst"
    (tmp_path / "nothing.bin").write_bytes(bytes(range(256)))
    told = reported(capture, tmp_path)
    (made,) = incidents(told)
    assert [file.name.rsplit("/", 1)[-1] for file in made.files] == ["capture.jsonl.zst"]
    assert made.files[0].sha256 == hashlib.sha256(capture.read_bytes()).hexdigest()[:16]
    assert made.files[0].size == capture.stat().st_size
    assert any("nothing.bin" in problem for problem in made.problems)
    assert [file.sha256 for file in incidents(told, hashed=False)[0].files] == [""]


def test_fingerprints_of_what_changed_since(tmp_path: Path) -> None:
    path = tmp_path / "rank0.log"
    path.write_bytes(b"abc")
    source = Source(path, "rank0.log", 3)
    path.write_bytes(b"abcdef")  # it grows: what was read is what counts
    assert fingerprint(source, "log") == File("rank0.log", "log", 3, hashlib.sha256(b"abc").hexdigest()[:16])
    path.unlink()
    assert fingerprint(source, "log") == File("rank0.log", "log", 3)
    os.mkfifo(path)
    assert fingerprint(source, "log") == File("rank0.log", "log", 3)
