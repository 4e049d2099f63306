"""py-spy dumps as text and JSON, whole and pasted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hangdoc.evidence.pieces import Piece
from tests.support import samples
from tests.support.samples import SAMPLES, pieces, stacks, text

FOLDER = SAMPLES / "pyspy"

HEADER = "Process {pid}: python {args}\nPython v3.11.7 (/usr/bin/python3.11)\n\n"
THREAD = """Thread {tid} (idle): "MainThread"
    barrier (torch/distributed/distributed_c10d.py:5356)
    main (train.py:8)
"""


def one(pid: int, args: str = "train.py", tid: int | None = None) -> str:
    return HEADER.format(pid=pid, args=args) + THREAD.format(tid=tid or pid)


def who(found: list[Piece]) -> list[tuple[int | None, str | None, int | None]]:
    return [(piece.process.rank, piece.process.host, piece.process.pid) for piece in found]


def test_every_process_in_a_text() -> None:
    found = pieces("pyspy", FOLDER / "text.txt")
    assert who(found) == [(None, None, 28015), (None, None, 28016), (None, None, 28017)]
    (main,) = stacks(found[2]).threads
    assert (main.tid, main.name, main.active, main.holds_gil) == (28017, "MainThread", False, False)
    assert [(f.function, f.line) for f in main.frames][:3] == [
        ("barrier", 5356),
        ("wrapper", 83),
        ("save_checkpoint", 68),
    ]
    assert stacks(found[0]).python == "3.11.7"


def test_text_and_json_give_the_same_record() -> None:
    """What the text leaves out is the folder of a package and the addresses of objects."""
    (dumped,) = pieces("pyspy", FOLDER / "rank_2.json")
    in_text = stacks(pieces("pyspy", FOLDER / "locals.txt")[2]).threads[0].frames
    in_json = stacks(dumped).threads[0].frames
    assert [(f.function, f.line, f.short) for f in in_text] == [(f.function, f.line, f.short) for f in in_json]
    for a, b in zip(in_text, in_json, strict=True):
        assert [(v.name, v.text, v.kind, v.number) for v in a.variables or ()] == [
            (v.name, v.text, v.kind, v.number) for v in b.variables or ()
        ]


def test_library_paths_are_restored() -> None:
    frames = stacks(pieces("pyspy", FOLDER / "text.txt")[0]).threads[0].frames
    assert frames[0].file == ".../site-packages/torch/autograd/graph.py"
    assert frames[0].short == "torch/autograd/graph.py"
    assert [f.file for f in frames if f.function == "train_epoch"] == ["train.py"]


def test_native_frames() -> None:
    record = stacks(pieces("pyspy", FOLDER / "native.txt")[0])
    assert record.native
    native = [f for f in record.threads[0].frames if f.native]
    assert ("c10d::Reducer::finalize_backward", "libtorch_cpu.so") in [(f.function, f.file) for f in native]
    assert any("{lambda()#1}" in f.function for f in native)
    assert not any(f.native for f in record.threads[0].frames if f.file.endswith(".py"))


def test_rank_from_variables() -> None:
    found = pieces("pyspy", FOLDER / "locals.txt")
    assert who(found) == [(0, None, 28015), (1, None, 28016), (2, None, 28017)]
    variables = {
        v.name: v for f in stacks(found[0]).threads[0].frames if f.function == "train_epoch" for v in f.variables or ()
    }
    assert (variables["step"].number, variables["num_batches"].number) == (38, 39)
    assert variables["rank"].argument
    assert not variables["step"].argument


def test_equal_rank_variables_are_not_ranks(tmp_path: Path) -> None:
    """The rank of a LoRA adapter, say."""
    locals_ = "        Locals:\n            rank: 1\n"
    found = text("pyspy", tmp_path, one(11) + locals_ + one(12) + locals_)
    assert who(found) == [(None, None, 11), (None, None, 12)]


def test_quoted_in_a_ticket() -> None:
    """Prose, quotes, fences, an indented block, marks before each dump."""
    found = pieces("pyspy", FOLDER / "ticket.md")
    assert who(found) == [(0, None, 28015), (1, None, 28016), (2, "node-b", 311)]
    assert [len(stacks(piece).threads) for piece in found] == [2, 1, 1]
    assert stacks(found[1]).threads[0].holds_gil
    assert stacks(found[1]).threads[0].active


def test_interleaved_lines_of_pdsh() -> None:
    found = pieces("pyspy", FOLDER / "pdsh.txt")
    assert who(found) == [(None, "node-a", 28015), (None, "node-b", 28016), (None, "node-c", 28017)]
    assert all(len(stacks(piece).threads[0].frames) > 8 for piece in found)


def test_ray_stack() -> None:
    assert who(pieces("pyspy", FOLDER / "ray_stack.txt")) == [(None, None, pid) for pid in (28015, 28016, 28017)]


def test_local_ranks_of_one_host() -> None:
    assert who(pieces("pyspy", FOLDER / "local_rank.txt")) == [(0, None, 28015), (1, None, 28016), (2, None, 28017)]


@pytest.mark.parametrize(
    ("mark", "rank", "host"),
    [
        ("=== rank 3 ===", 3, None),
        ("# rank 3", 3, None),
        ("rank3:", 3, None),
        ("Rank: 3", 3, None),
        ("[node-a] rank 3", 3, "node-a"),
        ("--- rank 3 (node-a) ---", 3, "node-a"),
        ("global_rank=3 host=node-a pid=77", 3, "node-a"),
        ("==> rank_3.txt <==", 3, None),
        ("==> logs/rank_3.txt <==", 3, None),
        ("*** rank 3 on gpu07 ***", 3, "gpu07"),
        ("=== node-a ===", None, "node-a"),
        ("----------------\nnode-a\n----------------", None, "node-a"),
        ("=== local_rank 3 ===", None, None),
        ("node_rank: 3", None, None),
        ("I think rank 3 hangs while the others wait for it", None, None),
        ("=== stacks ===", None, None),
    ],
)
def test_labels_before_a_dump(mark: str, rank: int | None, host: str | None, tmp_path: Path) -> None:
    assert who(text("pyspy", tmp_path, f"{mark}\n{one(77)}", "x.txt")) == [(rank, host, 77)]


def test_rank_label_holds_for_one_dump_and_host_for_all(tmp_path: Path) -> None:
    found = text("pyspy", tmp_path, "=== node-a ===\n# rank 3\n" + one(77) + one(78))
    assert who(found) == [(3, "node-a", 77), (None, "node-a", 78)]


@pytest.mark.parametrize(
    ("prefix", "rank", "host"),
    [
        ("node-a: ", None, "node-a"),
        ("[rank3]:", 3, None),
        ("[1,3]<stdout>:", 3, None),
        ("3: ", 3, None),
        ("[pod/train-worker-3/pytorch] ", None, "train-worker-3"),
        ("worker-1  | ", None, "worker-1"),
        ("2026-11-20T10:00:00.123456Z ", None, None),
        ("\t", None, None),
        ("> > ", None, None),
    ],
)
def test_prefixes(prefix: str, rank: int | None, host: str | None, tmp_path: Path) -> None:
    lines = "".join(f"{prefix}{line}\r\n" for line in one(77).splitlines())
    found = text("pyspy", tmp_path, lines)
    assert who(found) == [(rank, host, 77)]
    assert len(stacks(found[0]).threads[0].frames) == 2


@pytest.mark.parametrize(
    ("args", "rank"),
    [
        ("train.py --rank 3", 3),
        ("train.py --rank=3", 3),
        ("train.py --local_rank=3", 3),
        ("train.py --local-rank 3 --lr 1", 3),
        ("train.py --node_rank 3", None),
        ("train.py --nnodes 2 --local_rank=3", None),
        ("train.py --lora-rank 8", None),
    ],
)
def test_ranks_of_command_lines(args: str, rank: int | None, tmp_path: Path) -> None:
    assert who(text("pyspy", tmp_path, one(77, args), "x.txt")) == [(rank, None, 77)]


def test_local_ranks_of_two_hosts_are_not_ranks(tmp_path: Path) -> None:
    assert who(text("pyspy", tmp_path, one(77, "t.py --local_rank=0") + one(78, "t.py --local_rank=0"))) == [
        (None, None, 77),
        (None, None, 78),
    ]


def test_rank_in_the_file_name(tmp_path: Path) -> None:
    assert who(text("pyspy", tmp_path, one(77), "dump_rank_3.txt")) == [(3, None, 77)]
    assert who(text("pyspy", tmp_path, one(77), "dump_77.txt")) == [(None, None, 77)], "that is the PID"
    assert who(text("pyspy", tmp_path, one(77) + one(78), "node_3.txt")) == [(None, None, 77), (None, None, 78)]


def test_two_looks_at_one_process(tmp_path: Path) -> None:
    assert who(text("pyspy", tmp_path, one(77) * 2, "rank3.txt")) == [(3, None, 77), (3, None, 77)]


def test_without_the_header(tmp_path: Path) -> None:
    """Linux: the main thread's id is the process's."""
    both = THREAD.format(tid=77) + THREAD.format(tid=78)
    assert who(text("pyspy", tmp_path, both)) == [(None, None, 77), (None, None, 78)]
    assert who(text("pyspy", tmp_path, "rank 5\n" + THREAD.format(tid="0x7FB32C636B80"))) == [(5, None, None)]


def test_a_heading_that_ends_in_parentheses_is_no_frame(tmp_path: Path) -> None:
    found = text(
        "pyspy", tmp_path, f"#### rank 0\n{one(77)}#### rank 1 (not dumped, same as before / after)\n{one(78)}"
    )
    assert who(found) == [(0, None, 77), (1, None, 78)]
    assert [len(stacks(piece).threads[0].frames) for piece in found] == [len(stacks(found[0]).threads[0].frames)] * 2


def test_workers_belong_to_their_rank(tmp_path: Path) -> None:
    loop = "    _worker_loop (torch/utils/data/_utils/worker.py:252)\n    main (train.py:8)\n"
    worker = f'Thread 99 (idle): "MainThread"\n{loop}'
    (found,) = text("pyspy", tmp_path, one(77) + HEADER.format(pid=99, args="train.py") + worker)
    assert found.process.pid == 77
    assert [pid for pid, _ in stacks(found).children] == [99]


def test_launchers_are_not_ranks(tmp_path: Path) -> None:
    frames = (
        "    _invoke_run (torch/distributed/elastic/agent/server/api.py:906)\n    main (torch/distributed/run.py:1)\n"
    )
    agent = HEADER.format(pid=5, args="torchrun train.py") + 'Thread 5 (idle): "MainThread"\n' + frames
    assert who(text("pyspy", tmp_path, agent + one(77))) == [(None, None, 77)]


def test_json_of_several_processes(tmp_path: Path) -> None:
    dumps = [(FOLDER / f"rank_{rank}.json").read_text() for rank in range(3)]
    marked = "\n".join(f"rank {rank}\n{dump}" for rank, dump in enumerate(dumps))
    assert who(text("pyspy", tmp_path, marked, "x.json")) == [(0, None, 28015), (1, None, 28016), (2, None, 28017)]
    found, problems = samples.read("pyspy", tmp_path / "x.json")
    assert (len(found), problems) == (3, [])
    (tmp_path / "cut.json").write_text(dumps[0] + dumps[1][:5000] + "\n" + dumps[2])
    found, problems = samples.read("pyspy", tmp_path / "cut.json")
    assert [piece.process.pid for piece in found if isinstance(piece, Piece)] == [28015, 28017]
    assert len(problems) == 1


def test_secrets_and_hostile_text(tmp_path: Path) -> None:
    evil = "[red]x[/red]<script>alert(1)</script>\x07"
    secrets = f'            api_token: "abc"\n            url: "http://me:hunter2@host/{evil}"\n'
    locals_ = f"        Locals:\n{secrets}            n: 3\n"
    thread = f'Thread 77 (idle): "{evil}"\n    f{evil} (train.py:3)\n'
    (found,) = text("pyspy", tmp_path, HEADER.format(pid=77, args=evil) + thread + locals_)
    stack = stacks(found).threads[0]
    assert stack.name == evil
    assert stack.frames[0].function.startswith("f[red]")
    variables = {v.name: v.text for v in stack.frames[0].variables or ()}
    assert "abc" not in variables["api_token"]
    assert "hunter2" not in variables["url"]
    assert "<script>" in variables["url"]
    assert variables["n"] == "3"


def test_colours_are_removed(tmp_path: Path) -> None:
    coloured = (
        one(77).replace("Process 77", "Process \x1b[33m\x1b[1m77\x1b[0m").replace("barrier", "\x1b[32mbarrier\x1b[0m")
    )
    (found,) = text("pyspy", tmp_path, coloured)
    assert stacks(found).threads[0].frames[0].function == "barrier"


def test_multi_line_variable(tmp_path: Path) -> None:
    locals_ = '        Locals:\n            text: "one\ntwo\nthree"\n            step: 4\n    outer (train.py:9)\n'
    (found,) = text("pyspy", tmp_path, one(77) + locals_)
    frames = stacks(found).threads[0].frames
    assert [(v.name, v.text) for v in frames[1].variables or ()] == [("text", '"one\ntwo\nthree"'), ("step", "4")]
    assert frames[2].function == "outer"


def test_malformed_json(tmp_path: Path) -> None:
    frame = {
        "name": 3,
        "filename": None,
        "module": [],
        "line": "x",
        "locals": [1, {"name": None}, {"name": "a", "repr": 5}],
    }
    thread = {
        "thread_id": "x",
        "owns_gil": 1,
        "frames": [frame, 4, {"name": "f", "filename": "x.py", "line": 2.5, "locals": {}}],
    }
    (found,) = text("pyspy", tmp_path, json.dumps([thread, 7, None]), "x.json")
    assert [f.function for f in stacks(found).threads[0].frames] == ["f"]


def test_middle_of_a_deep_stack_is_dropped(tmp_path: Path) -> None:
    deep = "".join(f"    f (train.py:{n})\n" for n in range(1, 5000))
    (found,) = text("pyspy", tmp_path, HEADER.format(pid=7, args="x") + 'Thread 7 (idle): "MainThread"\n' + deep)
    frames = stacks(found).threads[0].frames
    assert len(frames) == 250
    assert (frames[0].line, frames[-1].line) == (1, 4999)
    assert stacks(found).threads[0].left_out == 4999 - 250
