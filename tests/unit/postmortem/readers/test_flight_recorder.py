"""Flight Recorder dumps: as torch writes them, damaged and hostile."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hangdoc.evidence import FlightRecorder, ProcessGroups, Stacks
from hangdoc.evidence.pieces import Piece
from hangdoc.postmortem.readers import ReadContext
from hangdoc.postmortem.readers._fr_trace import SharedParts, flight_recorder
from hangdoc.postmortem.readers._fr_worker import MAX_ENTRIES, Digest
from hangdoc.postmortem.readers._input_file import find_sources
from hangdoc.postmortem.readers.flight_recorder import READER, _read_carefully
from tests.support.flight_recorder_traces import C10D, call, trace, write

EVERYBODY = {"0": range(4)}
STEPS = [call("all_reduce", 24), call("broadcast", 26, [[5]])] * 3


def read(folder: Path, problems: list[str] | None = None, context: ReadContext | None = None) -> list[Piece]:
    context = context or ReadContext((problems if problems is not None else []).append)
    pieces: list[Piece] = []
    for source in find_sources([folder], lambda text: None):
        if READER.recognises(source):
            pieces += [piece for piece in READER.read(source, context) if isinstance(piece, Piece)]
    return pieces


def records(pieces: list[Piece]) -> dict[int | None, FlightRecorder]:
    """The records, by rank, without the time of the file."""
    return {p.process.rank: replace(p.record, written=None) for p in pieces if p.probe == "recorder"}


def test_records_of_a_dump(tmp_path: Path) -> None:
    hung = [*STEPS, call("all_reduce", 24, [[2, 3]], "1", done=False)]
    write(tmp_path, {2: trace(hung, {**EVERYBODY, "1": [2, 3]})})
    recorder, groups, stacks = read(tmp_path)
    assert [piece.probe for piece in (recorder, groups, stacks)] == ["recorder", "groups", "stacks"]
    assert recorder.process.rank == 2
    assert recorder.world_size == 4
    assert recorder.at == pytest.approx(1795271955.9, abs=0.1)
    record: FlightRecorder = recorder.record
    assert (record.version, record.library, record.final, record.missed) == ("2.10", "2.27.5", True, 0)
    assert (record.enqueued, record.completed) == ({"0": 6, "1": 1}, {"0": 6, "1": 0})
    last = record.entries[-1]
    assert (last.group, last.sequence, last.op, last.sizes, last.dtypes) == (
        "1",
        1,
        "all_reduce",
        "[[2, 3]]",
        ("Float",),
    )
    assert (last.retired, last.state, last.timeout_s, last.p2p) == (False, "started", 600.0, False)
    assert [frame.function for frame in last.frames] == ["all_reduce", "train", "main"]
    assert isinstance(groups.record, ProcessGroups)
    assert [(group.name, group.ranks) for group in groups.record.groups] == [("0", (0, 1, 2, 3)), ("1", (2, 3))]
    assert isinstance(stacks.record, Stacks)
    (thread,) = stacks.record.threads
    assert thread.name == "MainThread"
    assert [(f.function, f.line) for f in thread.frames] == [("all_reduce", 3245), ("train", 24), ("main", 900)]
    argument = {variable.name: variable for variable in thread.frames[0].variables or ()}
    assert argument["group"].address == groups.record.groups[1].address


def test_json_and_pickle_give_the_same_record(tmp_path: Path) -> None:
    one = trace(STEPS, EVERYBODY)
    write(tmp_path / "pickle", {0: one})
    write(tmp_path / "json", {0: one}, "nccl_trace_rank_{}.json")
    assert records(read(tmp_path / "pickle")) == records(read(tmp_path / "json"))


def test_compressed_dump(tmp_path: Path) -> None:
    (tmp_path / "comm_lib_trace_rank_3.gz").write_bytes(gzip.compress(pickle.dumps(trace(STEPS), protocol=2)))
    assert list(records(read(tmp_path))) == [3]


@pytest.mark.parametrize(
    ("name", "rank", "host"),
    [
        ("comm_lib_trace_rank_12", 12, None),
        ("nccl_trace_rank_0", 0, None),
        ("host-a_rank3", 3, "host-a"),
        ("nccl_trace_node07.example.org_rank_5.pickle", 5, "node07.example.org"),
        ("trace_9", 9, None),
        ("rank_4/dump.bin", 4, None),
    ],
)
def test_rank_and_host_from_the_file_name(tmp_path: Path, name: str, rank: int, host: str | None) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(pickle.dumps(trace(STEPS), protocol=2))
    (piece, *_) = read(tmp_path)
    assert (piece.process.rank, piece.process.host) == (rank, host)


def test_rank_from_a_receive_without_a_rank_in_the_name(tmp_path: Path) -> None:
    (tmp_path / "dump").write_bytes(pickle.dumps(trace([call("recv 1<-0", 3, group="1")], {"1": [5, 7]}), protocol=2))
    (tmp_path / "other").write_bytes(pickle.dumps(trace(STEPS), protocol=2))
    problems: list[str] = []
    assert list(records(read(tmp_path, problems))) == [7]
    assert any("no rank in its name or content" in problem for problem in problems)


@pytest.mark.parametrize("version", ["2.0", "2.3", "2.7", "2.9", "2.10", "2.31"])
def test_versions(tmp_path: Path, version: str) -> None:
    """Before 2.1 there was one number for all operations, before 2.4 no sizes, and so on."""
    old = trace(STEPS, EVERYBODY, version)
    for entry in old["entries"] if version == "2.0" else ():
        entry["seq_id"] = entry.pop("collective_seq_id")
        for name in ("p2p_seq_id", "is_p2p", "op_id", "timeout_ms", "input_dtypes", "output_dtypes", "frames"):
            del entry[name]
    if version == "2.31":
        old["something_new"] = {"deep": [1]}
        for entry in old["entries"]:
            entry["new"] = [[{}]]
    problems: list[str] = []
    record = records(read(write(tmp_path, {0: old}), problems))[0]
    assert problems == []
    assert [entry.sequence for entry in record.entries] == [1, 2, 3, 4, 5, 6]
    assert record.entries[1].op == "broadcast"


def test_gloo_dump(tmp_path: Path) -> None:
    calls = [{**one, "state": "scheduled", "profiling_name": "gloo:all_reduce"} for one in STEPS]
    calls.append({**calls[0], "retired": False})
    one = trace(calls) | {"pg_config": {"": {"name": "", "desc": "", "ranks": "[0, 1, 2]"}}, "comm_lib_version": ""}
    pieces = read(write(tmp_path, {0: one}, "comm_lib_trace_rank_{}"))
    assert [piece.probe for piece in pieces] == ["recorder", "stacks"]
    record = records(pieces)[0]
    assert [entry.retired for entry in record.entries] == [True] * 6 + [False]
    assert record.labels == {"0": "default_pg"}


def test_parts_of_a_coalesced_call_retire_with_it(tmp_path: Path) -> None:
    parts = [call("send 0->1", 5, done=False), call("recv 0<-1", 6, done=False), call("coalesced", 7, [])]
    one = trace([{**part, "is_p2p": True} for part in parts])
    for entry in one["entries"]:
        entry["p2p_seq_id"] = 1
    record = records(read(write(tmp_path, {0: one})))[0]
    assert [entry.retired for entry in record.entries] == [True, True, True]
    assert [(entry.op, entry.sender, entry.receiver) for entry in record.entries[:2]] == [
        ("send", 0, 1),
        ("recv", 1, 0),
    ]


def test_pending_call_without_frames_still_has_a_stack(tmp_path: Path) -> None:
    hung = trace([call("_all_gather_base", None, done=False)], EVERYBODY)
    stacks = read(write(tmp_path, {0: hung}))[-1].record
    (frame,) = stacks.threads[0].frames
    assert (frame.function, frame.line) == ("all_gather_base", None)


# --- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("form", ["pickle", "json"])
def test_complete_entries_of_a_truncated_dump_are_kept(tmp_path: Path, share: float, form: str) -> None:
    whole = trace(STEPS * 20, EVERYBODY)
    data = pickle.dumps(whole, protocol=2) if form == "pickle" else json.dumps({"entries": whole["entries"]}).encode()
    (tmp_path / "nccl_trace_rank_1").write_bytes(data[: int(len(data) * share)])
    problems: list[str] = []
    record = records(read(tmp_path, problems))[1]
    assert 40 * share < len(record.entries) <= 120
    assert record.entries == tuple(records(read(write(tmp_path / "w", {1: whole})))[1].entries[: len(record.entries)])
    assert len(problems) == 1
    assert "truncated" in problems[0]


DAMAGED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "cut at once": (pickle.dumps(trace(STEPS), protocol=2)[:60], "truncated before its first entry"),
    "a class": (b"\x80\x02cos\nsystem\n.", "names os.system"),
    "no dump": (pickle.dumps([1, 2, 3]), "not a Flight Recorder dump"),
    "no list": (pickle.dumps({"version": "2.10", "entries": {"a": 1}}), "not a Flight Recorder dump"),
    "no JSON": (b'{"pg_config": {', "invalid JSON"),
    "deep JSON": (b'{"pg_config": ' + b"[" * 30_000, "invalid JSON|too deeply"),
    "version": (pickle.dumps(trace(STEPS, version="7.1"), protocol=2), "version 7.1"),
    "bad entries": (pickle.dumps({**trace(STEPS), "entries": [1, None, {}, {"frames": 3}]}), "4 unreadable entries"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_unreadable_dump_gives_one_warning(tmp_path: Path, name: str) -> None:
    data, told = DAMAGED[name]
    (tmp_path / "nccl_trace_rank_0").write_bytes(data)
    problems: list[str] = []
    read(tmp_path, problems)
    assert len(problems) == 1
    assert problems[0].startswith(str(tmp_path))
    assert any(part in problems[0] for part in told.split("|"))


def test_other_files_are_not_recognised(tmp_path: Path) -> None:
    for name, data in {"log.txt": b"step 1\n", "a.json": b'{"loss": 1}', "x": b"\x00\x01", "none": b""}.items():
        (tmp_path / name).write_bytes(data)
        (source,) = find_sources([tmp_path / name], lambda text: None)
        assert not READER.recognises(source)


def test_hostile_texts_are_shortened_and_redacted(tmp_path: Path) -> None:
    evil = "\x1b[31m[bold]<script>alert(1)</script>" + "x" * 5000
    one = trace([call("all_reduce", 5, done=False, function=evil)], {evil: [0, 1]})
    one["entries"][0]["frames"][1]["filename"] = "/job/token=hunter2hunter2/" + "y" * 5000
    one["entries"][0]["profiling_name"] = f"nccl:{evil}"
    pieces = read(write(tmp_path, {0: one}))
    entry = records(pieces)[0].entries[0]
    assert entry.frames[1].function.startswith("\x1b[31m[bold]<script>")
    assert len(entry.frames[1].function) <= 300
    assert len(entry.frames[1].file) <= 300
    assert len(entry.op) <= 300
    assert "hunter2" not in str(pieces)


def bomb() -> Any:
    folded: Any = [1, 1]
    for _ in range(50):
        folded = [folded, folded]
    return folded


WRONG = [None, True, -1, 10**40, 1.5, "x", b"x", [], {}, [[]], [["x"]], (1, (2,)), bomb()]


def places(one: Any) -> list[Any]:
    """Dictionaries of a trace, as far as they still are some."""
    entries = [entry for entry in one["entries"] if isinstance(entry, dict)] if isinstance(one["entries"], list) else []
    frames = [frame for entry in entries[:1] if isinstance(entry["frames"], list) for frame in entry["frames"]]
    config = one["pg_config"].values() if isinstance(one["pg_config"], dict) else ()
    return [part for part in (one, *entries, *frames, *config) if isinstance(part, dict) and part]


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_value_in_any_field_raises_nothing(data: st.DataObject) -> None:
    one = trace([*STEPS, call("send 0->1", 9, done=False)], EVERYBODY)
    for _ in range(data.draw(st.integers(1, 4))):
        targets = places(one)
        target = targets[data.draw(st.integers(0, len(targets) - 1))]
        target[data.draw(st.sampled_from(sorted(target)))] = WRONG[data.draw(st.integers(0, len(WRONG) - 1))]
    record, bad = flight_recorder(one, SharedParts())
    assert len(record.entries) + bad <= len(one["entries"]) if isinstance(one["entries"], list) else not record.entries


@pytest.mark.slow("150 damaged dumps")
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_file_raises_nothing(tmp_path: Path, data: st.DataObject) -> None:
    whole = bytearray(pickle.dumps(trace(STEPS, EVERYBODY), protocol=2))
    for _ in range(data.draw(st.integers(1, 5))):
        whole[data.draw(st.integers(2, len(whole) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "nccl_trace_rank_0").write_bytes(whole)
    read(tmp_path)


# --- many ranks -----------------------------------------------------------------------------------


def of_rank(rank: int, **more: Any) -> Mapping[str, Any]:
    """One of a mesh: its groups have names of its own, and its calls instants and a thread of its own."""
    names = str(1 + rank // 4), str(100 + rank % 4)
    calls = [
        call("all_reduce", 24),
        call("reduce_scatter", 26, group=names[0]),
        call("all_gather", 28, group=names[1]),
    ] * 9
    one = trace(calls, {"0": range(8), names[0]: range(4), names[1]: range(2)}, **more)
    for entry in one["entries"]:
        entry["thread_id"] = str(140157692726144 + rank)
        entry["time_created_ns"] += 12345 * rank
        entry["process_group"] = (entry["process_group"][0], "a group")
    return one


def test_deduplicated_dumps_equal_loaded_ones(tmp_path: Path) -> None:
    write(tmp_path / "all", {rank: of_rank(rank) for rank in range(8)})
    digest = Digest()
    for rank in range(8):
        digest.answer((tmp_path / f"all/nccl_trace_rank_{rank}").read_bytes())
    assert digest.models.hits == 7
    found = records(read(tmp_path / "all"))
    for rank in range(8):
        alone = records(read(write(tmp_path / f"one{rank}", {rank: of_rank(rank)})))[rank]
        assert found[rank] == alone
    assert found[0].entries[0] is found[7].entries[0]  # what they have in common is one object


def test_calls_of_groups_with_other_names_are_answered_once() -> None:
    digest = Digest()
    answers = [digest.answer(pickle.dumps(of_rank(rank), protocol=4)) for rank in (0, 5)]
    assert digest.models.hits == 0  # each was loaded
    (first, indices), (second, same) = answers
    assert (len(first["calls"]), second["calls"]) == (27, [])
    assert indices == same
    assert [group[0] for group, _ in second["groups"]] == ["0", "2", "101"]


def test_calls_in_two_groups_of_one_dump_stay_apart(tmp_path: Path) -> None:
    parts = [call("all_reduce", 24, group=group) for group in ("1", "2", "1")]
    write(tmp_path, {rank: trace(parts, {"1": [0, 1], "2": [0, 1]}) for rank in range(2)})
    for record in records(read(tmp_path)).values():
        assert [entry.group for entry in record.entries] == ["1", "2", "1"]


@pytest.mark.parametrize("field", ["retired", "state", "input_sizes", "collective_seq_id", "profiling_name"])
def test_dump_with_any_relevant_difference_is_loaded(tmp_path: Path, field: str) -> None:
    other = {"retired": False, "state": "scheduled", "input_sizes": [[11]], "collective_seq_id": 99}
    odd = dict(of_rank(1))
    odd["entries"][12][field] = other.get(field, "nccl:all_redace")
    found = records(read(write(tmp_path / "all", {0: of_rank(0), 1: odd})))
    alone = records(read(write(tmp_path / "one", {1: odd})))
    assert found[1] == alone[1]
    assert found[1].entries != found[0].entries


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("version", ["2.0", "2.10"])
def test_digested_dumps_equal_those_that_are_read_carefully(tmp_path: Path, protocol: int, version: str) -> None:
    parts = [call("send 0->1", 5, done=False), call("recv 0<-1", 6, done=False), call("coalesced", 7, [])]
    for rank in range(4):
        one = dict(of_rank(rank, version=version))
        one["entries"] += trace(parts * (1 + rank))["entries"]
        for number, entry in enumerate(one["entries"]):
            entry["thread_name"] = f"worker-{rank}-{number}"
            entry["record_id"] += 500
            if version == "2.0":
                entry["seq_id"] = entry.pop("collective_seq_id")
                del entry["is_p2p"], entry["timeout_ms"]
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(one, protocol=protocol))
    found = records(read(tmp_path))
    for source in find_sources([tmp_path], lambda text: None):
        careful = _read_carefully(source, ReadContext(lambda text: None), SharedParts())
        assert found[source.rank_in_name] == careful
    assert found[2].missed == 500
    assert found[2].labels == {"0": "a group", "1": "a group", "102": "a group"}


def test_a_dump_that_kills_its_process_costs_no_other_dump(tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        write(tmp_path, {rank: of_rank(rank)})
    nested = b"\x80\x02}(X\x07\x00\x00\x00entries()" + b"\x85" * 2_000_000 + b"K\x01u."
    (tmp_path / "nccl_trace_rank_2").write_bytes(nested)
    problems: list[str] = []
    assert set(records(read(tmp_path, problems))) == {0, 1, 3}
    assert len(problems) == 1
    assert "rank_2" in problems[0]


@pytest.mark.slow("writes and reads a dump of many entries")
def test_only_the_newest_entries_of_a_huge_dump_are_read(tmp_path: Path) -> None:
    one = trace([call("all_reduce", 24)])
    entry = one["entries"][0]
    one["entries"] = [{**entry, "record_id": n, "collective_seq_id": n} for n in range(MAX_ENTRIES + 5)]
    problems: list[str] = []
    record = records(read(write(tmp_path, {0: one}), problems))[0]
    assert (len(record.entries), record.missed, record.entries[0].sequence) == (MAX_ENTRIES, 5, 5)
    assert "5 were left out" in problems[0]


def test_large_dump(tmp_path: Path) -> None:
    one = trace([call("all_reduce", 24)])
    entry = one["entries"][0]
    one["entries"] = [{**entry, "record_id": n, "collective_seq_id": n} for n in range(30_000)]
    record = records(read(write(tmp_path, {0: one})))[0]
    assert len(record.entries) == 30_000
    assert C10D in record.entries[0].frames[0].file
