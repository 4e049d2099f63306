from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from hangdoc.evidence import Environ, RankEvidence, Snapshot, Target, Unseen
from hangdoc.recording import recorder as recording
from hangdoc.recording.codec import BadRecord, Registry
from hangdoc.recording.recorder import LEADS, Header, NotARecording, Recorder, Recording, header
from hangdoc.recording.recorder import read as read_any
from hangdoc.recording.verdict_json import from_json, to_json
from hangdoc.verdict import Considered, Culprit, Finding, Job, Link, Proof, RankLine, Verdict
from tests.support.paths import ROOT
from tests.support.verdicts import nameless

KNOWN = Registry({"environ": Environ}, {})
NOISE = random.Random(1)

VERDICT = Verdict(
    "stalled",
    41.24,
    Job("none", 3, "torchrun", ("node-a",), (RankLine(0, 4276, "node-a", "collective", "all_reduce", "f (a.py:24)"),)),
    (
        Finding(
            "uneven-batches",
            "collective_wait",
            "high",
            "Title",
            "Summary",
            (Culprit(2, 4278, "node-a", "g (a.py:31)"),),
            (Link(0, 1, "10.0.0.1:4210", "10.0.0.2:5512", "eth0"),),
            (Proof("stacks", (2,), "text"),),
            ("do",),
        ),
    ),
    (Unseen("stacks", "refused", 3),),
    "note",
    (Considered("other", "no", "its condition does not hold"),),
)


def shot(number: int, noise: int = 0) -> Snapshot:
    variables = {"RANK": "0", "NOISE": NOISE.randbytes(noise).hex()}
    rank = RankEvidence(Target(10, 1, "node-a", 0), True, {"environ": Environ(variables)})
    return Snapshot("node-a", float(number), "2025-11-21T01:22:33Z", (rank,))


def read(path: Path) -> Recording:
    (found,) = read_any(path, KNOWN)
    return found


def write(directory: Path, count: int, noise: int = 0) -> Path:
    with Recorder(directory, "node-a") as recorder:
        for number in range(count):
            recorder.snapshot(shot(number, noise))
        recorder.verdict(VERDICT)
    assert recorder.path is not None
    return recorder.path


def test_round_trip(tmp_path: Path) -> None:
    path = write(tmp_path / "new", 3)
    found = read(path)
    assert [s.at_s for s in found.snapshots] == [0, 1, 2]
    assert found.snapshots[1] == structs.replace(shot(1), ranks=found.snapshots[1].ranks)
    assert found.verdicts == (replace(VERDICT, stalled_for_s=41.2),)
    assert not found.truncated
    assert found.problems == ()
    assert path.name.startswith("incident-2")
    assert path.name.endswith("-node-a.jsonl.zst")
    assert path.stat().st_mode & 0o777 == 0o600


def test_nothing_written_makes_no_file(tmp_path: Path) -> None:
    Recorder(tmp_path / "none", "node-a").close()
    assert not (tmp_path / "none").exists()


def test_a_host_name_is_never_a_path(tmp_path: Path) -> None:
    with Recorder(tmp_path, "../../etc/x\n") as recorder:
        recorder.snapshot(shot(0))
    assert [p.parent for p in tmp_path.rglob("*.zst")] == [tmp_path]


def test_a_directory_yields_all_its_recordings(tmp_path: Path) -> None:
    write(tmp_path, 2)
    write(tmp_path, 1)  # in the same second
    (tmp_path / "notes.txt").write_text("no recording")
    (tmp_path / "other.jsonl").write_text("{}\n")
    found = read_any(tmp_path, KNOWN)
    assert [len(one.snapshots) for one in found] == [2, 1, 0]
    assert [len(one.verdicts) for one in found] == [1, 1, 0]
    assert not any(one.truncated for one in found)
    assert [len(one.problems) for one in found] == [0, 0, 1]
    assert "other.jsonl" in found[2].problems[0]


def test_a_cut_file_is_read_up_to_the_cut(tmp_path: Path) -> None:
    path = write(tmp_path, 20, noise=200)
    whole = path.read_bytes()
    seen = set()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        try:
            found = read(path)
        except NotARecording:
            assert length < 300  # not even the header
            continue
        assert found.truncated or len(found.verdicts) == 1  # only the end of the zstd frame is missing
        assert [s.at_s for s in found.snapshots] == list(range(len(found.snapshots)))
        seen.add(len(found.snapshots))
    assert seen >= set(range(1, 20))


def test_damage_in_the_middle_is_reported_and_harmless(tmp_path: Path) -> None:
    path = write(tmp_path, 20, noise=200)
    whole = bytearray(path.read_bytes())
    for position in range(400, len(whole), 151):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0xFF]) + whole[position + 1 :])
        found = read(path)
        assert found.truncated or found.problems
        assert len(found.snapshots) >= (position - 128) * 20 // len(whole) - 2


def test_a_killed_writer_loses_nothing_it_had_written(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.unit.recording.test_recorder import shot; "
        "from hangdoc.recording.recorder import Recorder\n"
        "r = Recorder(Path(sys.argv[1]), 'node-a')\n"
        "for i in range(5): r.snapshot(shot(i))\n"
        "print('written', flush=True); sys.stdin.read()"
    )
    root = ROOT
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    found = read(tmp_path)
    assert len(found.snapshots) == 5
    assert found.truncated


def files(directory: Path) -> list[Path]:
    return sorted(directory.iterdir(), key=lambda path: path.stat().st_mtime_ns)


def headers(directory: Path) -> list[Header]:
    found = (header(path) for path in directory.iterdir())
    return sorted((one for one in found if one is not None), key=lambda one: one.segment)


def test_a_full_ring_keeps_the_newest(tmp_path: Path) -> None:
    with Recorder(tmp_path, "node-a", max_bytes=40_000) as recorder:
        for number in range(200):
            recorder.snapshot(shot(number, noise=1000))
    kept = [read(path) for path in files(tmp_path)]
    assert sum(path.stat().st_size for path in files(tmp_path)) < 40_000
    seen = sorted(s.at_s for one in kept for s in one.snapshots)
    assert seen == list(range(200 - len(seen), 200))
    assert len(seen) > 20
    assert not any(one.truncated for one in kept)
    assert [one.looks for one in headers(tmp_path)] == sorted(min(s.at_s for s in one.snapshots) for one in kept)


def test_a_verdict_and_the_samples_before_it_outlive_healthy_samples(tmp_path: Path) -> None:
    with Recorder(tmp_path, "node-a", max_bytes=160_000) as recorder:
        for number in range(500):
            recorder.snapshot(shot(number, noise=1000))
            if number == 100:
                recorder.verdict(VERDICT)
    kept = [read(path) for path in files(tmp_path)]
    seen = {s.at_s for one in kept for s in one.snapshots}
    assert sum(len(one.verdicts) for one in kept) == 1
    assert seen >= set(range(100 - LEADS, 101))
    assert 150 not in seen
    assert 499 in seen


def test_if_every_segment_has_a_verdict_the_newest_are_kept(tmp_path: Path) -> None:
    with Recorder(tmp_path, "node-a", max_bytes=40_000) as recorder:
        for number in range(200):
            recorder.snapshot(shot(number, noise=1000))
            recorder.verdict(VERDICT)
    assert sum(path.stat().st_size for path in files(tmp_path)) < 40_000
    seen = {s.at_s for path in files(tmp_path) for s in read(path).snapshots}
    assert 199 in seen
    assert 0 not in seen


def test_no_file_of_others_is_removed(tmp_path: Path) -> None:
    write(tmp_path, 30, noise=1000)  # of another recorder
    with Recorder(tmp_path, "node-a", max_bytes=20_000) as recorder:
        recorder.snapshot(shot(0, noise=1000))
        assert recorder.path is not None
        first = recorder.path
        first.unlink()
        first.write_text("somebody's own, of the same name")
        before = set(tmp_path.iterdir())
        for number in range(100):
            recorder.snapshot(shot(number, noise=1000))
    assert before <= set(tmp_path.iterdir())
    assert first.read_text() == "somebody's own, of the same name"


def test_a_new_segment_starts_after_the_duration_limit(tmp_path: Path) -> None:
    with Recorder(tmp_path, "node-a", segment_s=0.0) as recorder:
        for number in range(12):
            recorder.snapshot(shot(number))
        recorder.verdict(VERDICT)
    assert [one.segment for one in headers(tmp_path)] == list(range(1, 14))
    assert len({one.run for one in headers(tmp_path)}) == 1
    assert [len(read(path).snapshots) for path in files(tmp_path)] == [1] * 12 + [0]
    names = sorted(path.name for path in tmp_path.iterdir())
    assert [read(tmp_path / name).snapshots[0].at_s for name in names[:12]] == list(range(12))


class Disk:
    """A disk that is full: it takes some bytes of each write and refuses the rest, until there is room again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
        self.full = full
        self._write = os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, descriptor: int, data: bytes) -> int:
        if not self.full:
            return self._write(descriptor, data)
        if len(data) < 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._write(descriptor, data[:-5])


def test_a_full_disk_stops_only_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    disk = Disk(monkeypatch, full=False)
    with Recorder(tmp_path, "node-a", say=said.append) as recorder:
        recorder.snapshot(shot(0))
        disk.full = True
        for number in range(1, 5):
            recorder.snapshot(shot(number))
        recorder.verdict(VERDICT)
        recorder.verdict(VERDICT)
        assert said == [
            f"the recording in {tmp_path} has stopped: No space left on device; the watch goes on without it"
        ]
        assert len(files(tmp_path)) == 1  # no empty file for each try
        disk.full = False
        recorder.verdict(VERDICT)  # which is always tried
        recorder.snapshot(shot(5))
    assert said[1:] == [f"recording again, to {recorder.path}"]
    first, second = (read(path) for path in files(tmp_path))
    assert [s.at_s for s in first.snapshots] == [0]
    assert first.truncated
    assert [s.at_s for s in second.snapshots] == [5]
    assert len(second.verdicts) == 1
    assert not second.truncated


def test_a_failing_close_raises_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    disk = Disk(monkeypatch, full=False)
    with Recorder(tmp_path, "node-a", say=said.append) as recorder:
        recorder.snapshot(shot(0))
        disk.full = True
    assert len(said) == 1


def test_a_path_that_is_not_a_folder_stops_only_the_recording(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "file").write_text("")
    with Recorder(tmp_path / "file" / "folder", "node-a", say=said.append) as recorder:
        recorder.snapshot(shot(0))
        recorder.verdict(VERDICT)
    assert len(said) == 1
    assert "Not a directory" in said[0]


def test_a_removed_folder_is_created_again(tmp_path: Path) -> None:
    with Recorder(tmp_path / "new", "node-a") as recorder:
        recorder.snapshot(shot(0))
        shutil.rmtree(tmp_path / "new")
        recorder.snapshot(shot(1))
    assert [s.at_s for s in read(tmp_path / "new").snapshots] == [1]
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_unchanged_data_costs_little(tmp_path: Path) -> None:
    big = shot(0, noise=50_000)
    with Recorder(tmp_path, "node-a") as recorder:
        for number in range(50):
            recorder.snapshot(structs.replace(big, at_s=float(number)))
    assert recorder.path is not None
    assert recorder.path.stat().st_size < 2 * 60_000


@pytest.mark.parametrize(
    "content", [b"", b"hello\n", b"{}\n", b"[" * 100_000, b"\x28\xb5\x2f\xfdnot zstd", b'{"schema": 1}\n']
)
def test_other_files_are_refused_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.jsonl.zst"
    path.write_bytes(content)
    with pytest.raises(NotARecording, match="is not a hangdoc recording"):
        read(path)


def test_a_directory_without_a_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotARecording, match="contains no recording"):
        read(tmp_path)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "missing")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="not a regular file"):
        read(tmp_path / "fifo")


def test_lines_of_newer_versions_and_bad_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "plain.jsonl"
    header = '{"schema": "hangdoc.recording/2", "new": 1}\n'
    good = '{"snapshot": {"host": "h", "at_s": 1, "time": "t", "ranks": [], "new": 2}}\n'
    path.write_text(header + '{"later": 1}\n' + '{"snapshot": 3}\n' + good + "}{\n" + '{"end": 5}\n')
    found = read(path)
    assert len(found.snapshots) == 1
    assert not found.truncated
    assert [p.split(": ")[0].rsplit(":")[-1] for p in found.problems] == ["3", "5"]


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import zstandard

    path = tmp_path / "bomb.jsonl.zst"
    text = b'{"schema": "hangdoc.recording/1"}\n' + b"0" * 50_000_000
    path.write_bytes(zstandard.compress(text))
    monkeypatch.setattr(recording, "MAX_LINE", 1_000_000)
    found = read(path)
    assert found.truncated
    assert "longer than" in found.problems[0]


def test_the_verdict_contract() -> None:
    told = to_json(VERDICT)
    assert list(told) == [
        *("schema", "hangdoc", "status", "stalled_for_s", "job", "findings", "unseen", "note", "considered"),
        "differences",
    ]
    assert told["stalled_for_s"] == 41.2
    assert list(told["job"]) == ["id", "world_size", "launcher", "hosts", "ranks"]
    assert list(told["job"]["ranks"][0]) == ["rank", "pid", "host", "phase", "op", "site"]
    finding = told["findings"][0]
    assert list(finding) == [
        *("playbook", "class", "confidence", "title", "summary", "culprits", "links", "evidence", "actions")
    ]
    assert finding["culprits"] == [{"rank": 2, "pid": 4278, "host": "node-a", "site": "g (a.py:31)"}]
    assert list(finding["links"][0]) == ["from_rank", "to_rank", "from", "to", "interface"]
    assert finding["evidence"] == [{"probe": "stacks", "ranks": [2], "text": "text"}]
    assert told["unseen"] == [{"rank": 3, "probe": "stacks", "why": "refused"}]
    assert from_json(told) == replace(VERDICT, stalled_for_s=41.2)


def test_families_survive_the_contract() -> None:
    verdict = nameless()
    told = to_json(verdict)
    assert told["families"][0] == {
        "class": "collective_wait",
        "title": "a rank is missing from the collective",
        "for": ["peers waited until a timeout"],
        "against": [],
        "decides": "`grep -hE 'Watchdog caught' LOGS`",
    }
    assert from_json(told) == verdict


@pytest.mark.parametrize("wrong", [None, [], {}, {"schema": "hangdoc.verdict/1"}])
def test_other_values_are_bad_records(wrong: object) -> None:
    with pytest.raises(BadRecord):
        from_json(wrong)


@pytest.mark.parametrize(
    "field", ["status", "job", "findings", "unseen", "considered", "note", "differences", "families", "understood"]
)
def test_a_damaged_verdict_is_a_bad_record(field: str) -> None:
    for wrong in (3, [3], {"a": 3}):
        with pytest.raises(BadRecord):
            from_json({**to_json(VERDICT), field: wrong})
