"""Training logs: every pattern and prefix, many ranks in one file, restarts, damage, hostile bytes."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from hangdoc.evidence import End, Stacks
from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._logs.prefixes import PrefixStyle, parse, prefix_style
from hangdoc.postmortem.readers.logs import READER
from tests.support.pace import within

YEAR = PrefixStyle(year=2026, month=12)


def read(path: Path, text: str | bytes, name: str = "train.log") -> list[Piece]:
    """The pieces of a log of this text."""
    file = path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return pieces(file)


def pieces(file: Path, problems: list[str] | None = None, files: int = 1) -> list[Piece]:
    source = Source(file, str(file), file.stat().st_size)
    context = ReadContext((problems if problems is not None else []).append, files=files)
    found = READER.read(source, context) if READER.recognises(source) else ()
    return [piece for piece in found if isinstance(piece, Piece)]


def said(found: Sequence[Piece], rank: int | None = None) -> list[LogEvent]:
    """What one rank said; with None what anyone did."""
    logs = [one for one in found if isinstance(one.record, Logs) and rank in (None, one.process.rank)]
    return [line for piece in logs for line in piece.record.said]


def ends(found: Sequence[Piece]) -> dict[int | None, End]:
    return {piece.process.rank: piece.record for piece in found if isinstance(piece.record, End)}


def test_each_of_many_files_is_searched_less_far_for_figures(tmp_path: Path) -> None:
    table = "".join(f"rank {rank} step time {rank + 1}.25 s\n" for rank in range(4))
    file = tmp_path / "job.log"
    file.write_text(table + "nothing to compare\n" * 200)
    assert [one.probe for one in pieces(file) if one.probe == "figures"] == ["figures"]
    assert [one.probe for one in pieces(file, files=512) if one.probe == "figures"] == []


# --- forms of line --------------------------------------------------------------------------------

LINES: list[tuple[str, str, dict[str, str]]] = [
    (
        "[E ProcessGroupNCCL.cpp:828] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=18364, "
        "OpType=ALLGATHER, Timeout(ms)=4800000) ran for 4804648 milliseconds before timing out.",
        "collective_timeout",
        {"sequence": "18364", "op": "ALLGATHER", "timeout_ms": "4800000", "ran_ms": "4804648", "group_rank": "2"},
    ),
    (
        "[rank9]:[E129 16:38:47.714693059 ProcessGroupNCCL.cpp:683] [Rank 1] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=19, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for ...",
        "collective_timeout",
        {"sequence": "19", "op": "ALLREDUCE", "numel_in": "1", "group_rank": "1"},
    ),
    (
        "[rank1]:[E ProcessGroupNCCL.cpp:545] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL("
        "SeqNum=2, OpType=COALESCED, NumelIn=18446744073709551615, NumelOut=18446744073709551615, "
        "Timeout(ms)=10000) ran for "
        "10000 milliseconds before timing out.",
        "collective_timeout",
        {"op": "COALESCED"},
    ),
    (
        "[PG 0 Rank 2] Timeout at NCCL work: 19, last enqueued NCCL work: 19, last completed NCCL work: 18.",
        "work_status",
        {"group": "0", "group_rank": "2", "sequence": "19", "enqueued": "19", "completed": "18"},
    ),
    (
        "[rank3]:[E909 09:55:46.996672294 ProcessGroupNCCL.cpp:1709] [PG 0 (default_pg) Rank 3] Timeout at NCCL work: "
        "2070, last enqueued NCCL work: 2082, last completed NCCL work: 2069.",
        "work_status",
        {"group": "0", "group_name": "default_pg", "enqueued": "2082"},
    ),
    (
        "[PG 1 Rank 0] Exception (either an error or timeout) detected by watchdog at work: 1580, last enqueued NCCL "
        "work: 1582, last completed NCCL work: 1579.",
        "work_status",
        {"group": "1", "sequence": "1580", "enqueued": "1582", "completed": "1579"},
    ),
    (
        "[PG ID 5 PG GUID 37(TENSOR_MODEL_PARALLEL_GROUP) Rank 1]  failure detected by watchdog at work sequence id: "
        "49387 PG status: last enqueued work: 49406, last completed work: 49386",
        "work_status",
        {"group": "37", "group_name": "TENSOR_MODEL_PARALLEL_GROUP", "group_rank": "1", "completed": "49386"},
    ),
    (
        "Received a dump signal due to a collective timeout from  rank 34 and we will try our best to dump the debug "
        "info. Last enqueued NCCL work: 460631, last completed NCCL work: 460630.",
        "dump_signal",
        {"from_rank": "34", "enqueued": "460631", "completed": "460630"},
    ),
    (
        "Received a dump signal due to a collective timeout from this local rank and we will try our best to dump the "
        "debug info. Last enqueued NCCL work: 747, last completed NCCL work: 715.This is most likely",
        "dump_signal",
        {"enqueued": "747", "completed": "715"},
    ),
    ("Observed flight recorder dump signal from another rank via TCPStore.", "dump_observed", {}),
    (
        "Stack trace of the failed collective not found, potentially because FlightRecorder is disabled.",
        "failed_stack",
        {"missing": "not found"},
    ),
    (
        "    [7] finished collective #182, but didn't join collective #183 (count from 1)",
        "lagging",
        {"ranks": "7", "completed": "182", "sequence": "183"},
    ),
    ("ranks [47] are the lagging ranks that caused this timeout", "lagging", {"ranks": "47"}),
    (
        "  - [0, 1, 2, 3] joined but didn't finish collective #730 (count from 1)",
        "joined",
        {"ranks": "0, 1, 2, 3", "sequence": "730"},
    ),
    (
        "Detected mismatch between collectives on ranks. Rank 0 is running collective: CollectiveFingerPrint("
        "SequenceNumber=1, OpType=ALLREDUCE, TensorShape=[1000], TensorDtypes=Float, TensorDeviceTypes=TensorOptions("
        "dtype=float (default), device=cpu)), but Rank 1 is running collective: CollectiveFingerPrint("
        "SequenceNumber=1, OpType=ALLREDUCE, TensorShape=[996], TensorDtypes=Float).",
        "mismatch",
        {"rank_a": "0", "op_a": "ALLREDUCE", "shape_a": "1000", "rank_b": "1", "shape_b": "996", "dtype_b": "Float"},
    ),
    (
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 26 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=683057617, OpType=BROADCAST, TensorShape=[1], TensorDtypes=Long), but "
        "Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=513876813OpType=REDUCE).",
        "mismatch",
        {"rank_a": "26", "op_a": "BROADCAST", "rank_b": "1", "sequence_b": "513876813", "op_b": "REDUCE"},
    ),
    (
        "[Rank 0]: Ranks 4, 5 failed to pass monitoredBarrier in 2000000 ms",
        "barrier_lacks",
        {"reporter": "0", "ranks": "4, 5", "timeout_ms": "2000000"},
    ),
    (
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for "
        "recv operation to complete",
        "gloo_timeout",
        {"timeout_ms": "1800000", "what": "recv"},
    ),
    (
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:28840.",
        "connection_closed",
        {"address": "10.0.0.2", "port": "28840"},
    ),
    (
        "misc/socket.cc:47 NCCL WARN socketProgress: Connection closed by remote peer node-a<40001>",
        "connection_closed",
        {"address": "node-a", "port": "40001"},
    ),
    ("Read error [10.0.0.3]:999: Connection reset by peer", "connection_closed", {"address": "10.0.0.3"}),
    (
        "Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:152] timed out connecting: "
        "SO_ERROR: Connection refused, remote=[127.0.0.1]:13215",
        "connect_failed",
        {"why": "Connection refused", "address": "127.0.0.1", "port": "13215"},
    ),
    (
        "[../third_party/gloo/gloo/transport/tcp/debug_logger.cc:9] ERROR failed to connect, willRetry=0, retry=4, "
        "retryLimit=3, rank=1, size=2, local=[127.0.0.1]:40086, remote=[127.0.1.1]:17842$1, "
        "error=SO_ERROR: Connection refused, remote=[127.0.1.1]:17842$1",
        "connect_failed",
        {
            "from_rank": "1",
            "size": "2",
            "local": "127.0.0.1",
            "address": "127.0.1.1",
            "port": "17842",
            "why": "Connection refused",
        },
    ),
    (
        "torch.distributed.DistStoreError: wait timeout after 12000ms, keys: /default_pg/0//cpu//0/3",
        "address_missing",
        {"missing": "3"},
    ),
    ("RuntimeError: Application timeout caused pair closure", "gloo_timeout", {}),
    ("ifa != nullptr. Unable to find address for: eth99", "no_interface", {"interface": "eth99"}),
    (
        "Warning: Unable to resolve hostname to a (local) address. Using the loopback address as fallback.",
        "loopback",
        {},
    ),
    (
        "Timed out after 901 seconds waiting for clients. 1/3 clients joined.",
        "clients_missing",
        {"timeout_s": "901", "joined": "1", "expected": "3"},
    ),
    (
        "Timed out initializing process group in store based barrier on rank: 1, for key: store_based_barrier_key:1 "
        "(world_size=4, worker_count=8, timeout=0:30:00)",
        "barrier_of_store",
        {"expected": "4", "joined": "8", "timeout": "0:30:00"},
    ),
    (
        "[c10d] The client socket has timed out after 900s while trying to connect to (33.145.124.128, 29500).",
        "unreachable",
        {"address": "33.145.124.128", "port": "29500", "timeout": "900s"},
    ),
    (
        "The server socket has failed to bind to [::]:29400 (errno: 98 - Address already in use).",
        "port_in_use",
        {"address": "[::]:29400"},
    ),
    (
        "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        "port_in_use",
        {"port": "29500"},
    ),
    (
        "E0101 10:10:01.000000 100 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) "
        "local_rank: 0 (pid: 2410412) of binary: /usr/bin/python3",
        "failed",
        {"code": "-9", "local_rank": "0", "pid": "2410412"},
    ),
    (
        "node-a:12:13 [0] NCCL INFO NET/Socket : Using [0]docker0:172.17.0.1<0>",
        "nccl_interface",
        {"interfaces": "[0]docker0:172.17.0.1<0>"},
    ),
    (
        "ip-1:2285:2487 [0] NCCL INFO Bootstrap : Using ens3:172.31.1.71<0>",
        "nccl_bootstrap",
        {"interface": "ens3", "address": "172.31.1.71"},
    ),
    (
        "NET/IB : Got completion from peer 10.1.2.3<38560> with error 12, opcode 0, len 0, vendor err 129",
        "ib_error",
        {"peer": "10.1.2.3", "status": "12", "vendor": "129"},
    ),
    (
        "NCCL WARN NET/IB : Got completion with error 4, opcode 1, len 21938, vendor err 81",
        "ib_error",
        {"status": "4", "vendor": "81"},
    ),
    (
        "NET/IB : Got completion from peer 10.1.3.201<33057> with status=9 opcode=0 len=0 vendor err 138 (Send)",
        "ib_error",
        {"peer": "10.1.3.201", "status": "9"},
    ),
    (
        "NCCL WARN NET/IB : mlx5_0:1 Got async event : port error",
        "ib_event",
        {"port": "mlx5_0:1", "event": "port error"},
    ),
    ("NCCL WARN NET/IB : Got async event : port error", "ib_event", {"event": "port error"}),
    (
        "ProcessGroupNCCL's watchdog got stuck for 600 seconds without making progress in monitoring",
        "watchdog_stuck",
        {"seconds": "600"},
    ),
    (
        "[PG 3 Rank 0] Heartbeat monitor timed out! Process will be terminated after dumping debug info.",
        "watchdog_stuck",
        {"group": "3"},
    ),
    (
        "Sending process 812914 closing signal SIGTERM",
        "told_to_end",
        {"pid": "812914", "signal": "SIGTERM"},
    ),
    (
        "Unable to shutdown process 1866 via 15, forcefully exiting via 9",
        "would_not_end",
        {"pid": "1866", "signal": "15"},
    ),
    (
        "mpirun noticed that process rank 0 with PID 21183 on node host01 exited on signal 9 (Killed).",
        "mpi_end",
        {"rank": "0", "pid": "21183", "host": "host01", "signal": "9"},
    ),
    ("srun: error: sdumont6156: task 0: Out Of Memory", "slurm_task", {"tasks": "0", "how": "Out Of Memory"}),
    ("slurmstepd: error: Detected 2 oom-kill event(s) in step 3756240.batch cgroup.", "process_killed", {"count": "2"}),
    (
        "Jan  1 10:10:00 node-a kernel: Out of memory: Killed process 1440763 (perl) total-vm:87033376kB",
        "oom_kill",
        {"pid": "1440763", "command": "perl"},
    ),
    (
        "NVRM: Xid (PCI:0000:44:00): 79, pid=1234, name=python, GPU has fallen off the bus",
        "xid",
        {"gpu": "PCI:0000:44:00", "xid": "79", "pid": "1234", "what": "GPU has fallen off the bus"},
    ),
    ("[ 1843.308145] NVRM: fallen off the bus and is not responding to commands.", "gpu_lost", {}),
    (
        "Feb 14 05:03:41 n kernel: mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link DOWN",
        "port_event",
        {"port": "mlx5_5", "state": "DOWN"},
    ),
    ("mlx5_core 0000:17:00.0 ens1f0np0: Link down", "port_event", {"port": "ens1f0np0", "state": "down"}),
    (
        "RuntimeError: [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 1000 vs 996",
        "size_mismatch",
        {"received": "1000", "expected": "996"},
    ),
    (
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.",
        "reduction_unfinished",
        {},
    ),
    (
        "Parameter indices which did not receive grad for rank 1: 2 3",
        "gradients_missing",
        {"rank": "1", "parameters": "2 3"},
    ),
    (
        "Parameters which did not receive grad for rank 0: head.bias, head.weight",
        "gradients_missing",
        {"rank": "0", "parameters": "head.bias, head.weight"},
    ),
    ("Fatal Python error: Segmentation fault", "fatal_error", {"error": "Segmentation fault"}),
]


@pytest.mark.parametrize(("line", "kind", "fields"), LINES)
@pytest.mark.parametrize("ending", ["\n", "", "\r\n"])
def test_line_becomes_an_event(line: str, kind: str, fields: dict[str, str], ending: str, tmp_path: Path) -> None:
    (found,) = [one for one in said(read(tmp_path, "step 1 loss 0.5\n" + line + ending)) if one.kind == kind]
    assert {name: found.fields.get(name) for name in fields} == fields
    assert found.line == 2


TIMEOUT = (
    "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, "
    "NumelOut=1, Timeout(ms)=1000) ran for 1001 milliseconds before timing out."
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Epoch 1:  50%|#####     | 5/10 [00:01<00:01]\r[rank3]:" + TIMEOUT, "3"),
        ("Epoch 1:  50%|#####     | 5/10 [00:01<00:01,  3.2it/s][rank3]:" + TIMEOUT, "3"),
        ("\x1b[36m(RayTrainWorker pid=12, ip=10.0.0.1)\x1b[0m [rank3]:\x1b[31m" + TIMEOUT + "\x1b[0m", "3"),
        ("[rank3]:" + TIMEOUT[:100] + "\n" + TIMEOUT[100:], "3"),
        ("\xff\xfe[rank3]:" + TIMEOUT, "3"),
    ],
    ids=["progress bar", "progress bar without return", "colours", "broken inside", "odd bytes"],
)
def test_prefixes_and_hard_wraps(text: str, told: str, tmp_path: Path) -> None:
    (found,) = said(read(tmp_path, text.encode("latin-1") + b"\n"))
    assert (found.kind, found.fields["sequence"], found.fields["group_rank"]) == ("collective_timeout", "7", told)


# --- prefixes -------------------------------------------------------------------------------------

PREFIXES: list[tuple[str, dict[str, Any]]] = [
    ("[rank9]: text", {"rank": 9}),
    ("[default3]:text", {"local": 3}),
    ("[trainer0]:text", {"local": 0}),
    ("[0]:text", {"local": 0}),
    ("[default3]:[rank11]: text", {"local": 3, "rank": 11}),
    ("[1,0]<stderr>:text", {"rank": 0}),
    ("[1,17]<stdout>: text", {"rank": 17}),
    ("(Worker pid=77) text", {"pid": 77}),
    ("(RayTrainWorker pid=123, ip=10.0.0.1) text", {"pid": 123, "host": "10.0.0.1"}),
    ("(EngineCore_0 pid=77) (RayWorkerWrapper pid=123, ip=10.0.0.1) text", {"pid": 123, "host": "10.0.0.1"}),
    ("(VllmWorker rank=3 pid=123) text", {"rank": 3, "pid": 123}),
    ("[pod/train-0/pytorch] text", {"host": "train-0"}),
    ("2025-03-01T12:00:00.123456789Z stdout F [rank1]: text", {"rank": 1, "at": 1740830400.123456789}),
    ("worker-1  | [rank1]: text", {"host": "worker-1", "rank": 1}),
    ("train-0 pytorch 2025-03-01T12:00:00Z text", {"host": "train-0", "at": 1740830400.0}),
    ("[2025-03-01 12:00:00,500] text", {"at": 1740830400.5}),
    ("2025-03-01 12:00:00,500 INFO text", {"at": 1740830400.5}),
    ("2025-03-01T13:00:00+01:00 text", {"at": 1740830400.0}),
    ("2025-03-01 12:00:00 | rank 3 | text", {"rank": 3, "at": 1740830400.0}),
    ("2025-03-01 12:00:00 | INFO     | rank=3 | text", {"rank": 3, "at": 1740830400.0}),
    ("2025-03-01 12:00:00,500 - rank 3 - text", {"rank": 3, "at": 1740830400.5}),
    ("Mar  1 12:00:00 node-a kernel: text", {"host": "node-a", "at": 1772366400.0}),
    ("Mar  1 12:00:00 node-a train[55]: text", {"host": "node-a", "at": 1772366400.0}),
    ("[ 1843.308145] text", {}),
    ("[rank0]:[E301 12:00:00.500000000 ProcessGroupNCCL.cpp:632] text", {"rank": 0, "at": 1772366400.5}),
    ("W0301 12:00:00.313000 140145 torch/distributed/run.py:757] text", {"at": 1772366400.313}),
    ("18:11:06.680 [rank4]: text", {"rank": 4}),
    ("node-a:100:200 [3] text", {"host": "node-a", "pid": 100}),
    ("[PG ID 5 PG GUID 37(TP) Rank 1] text", {"group": "37", "group_name": "TP", "group_rank": 1}),
    ("[PG 1 Rank 0] text", {"group": "1", "group_rank": 0}),
]


@pytest.mark.parametrize(("raw", "told"), PREFIXES)
def test_prefix_names_the_process(raw: str, told: dict[str, Any]) -> None:
    line = parse(raw, YEAR)
    names = ("rank", "local", "host", "pid", "at", "group", "group_name", "group_rank")
    assert {name: value for name in names if (value := getattr(line, name)) is not None} == told
    assert line.text.endswith("text")


def test_srun_labels_need_most_lines_of_the_file_or_a_block() -> None:
    head = "".join(f"{rank}: step {rank} loss 0.5\n" for rank in range(8))
    assert parse("3: text", prefix_style(head, 0.0)).rank == 3
    assert parse("3: text", prefix_style("a\nb\nc\n3: text\n", 0.0)).rank is None
    pasted = "it stops\n" * 9 + "3: a\n3: b\n3: c\n3: d\n" + "as you see\n" * 9  # four lines of one task in a text
    assert parse("3: text", prefix_style(pasted, 0.0)).rank == 3
    assert parse("3: text", prefix_style(pasted.replace("3: b", "4: b"), 0.0)).rank is None


@pytest.mark.parametrize(("numbers", "rank"), [((0, 1, 2, 3), 3), ((1, 2, 3, 4), None), ((0, 1, 1, 2), None)])
def test_ranks_in_brackets_that_say_the_same_of_a_batch(numbers: tuple[int, ...], rank: int | None) -> None:
    head = "".join(f"[{number}] batch 51 cuts: ['a-{number}']\n" for number in numbers)
    assert parse("[3] text", prefix_style(f"what I print:\n{head}", 0.0)).rank == rank


@pytest.mark.parametrize(
    "of_launcher",
    [
        "W0914 03:37:19.702000 140211 torch/distributed/elastic/multiprocessing/api.py:858] Sending process 1 closing",
        "INFO:torch.distributed.elastic.agent.server.api:Received 2 death signal, shutting down workers",
    ],
)
def test_srun_labels_of_launchers_are_nodes(of_launcher: str) -> None:
    style = prefix_style(f"0: a\n0: b\n1: {of_launcher}\n1: c\n", 0.0)
    line = parse("1: [default2]: text", style)
    assert (line.rank, line.node, line.local) == (None, 1, 2)
    assert parse("1: [rank6]: text", style).rank == 6


def test_srun_labels_are_ranks_beside_a_traceback_through_the_library_of_torchrun() -> None:
    frame = '  File "/x/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 355, in wrapper'
    assert parse("1: text", prefix_style(f"0: a\n0: b\n1: {frame}\n1: c\n", 0.0)).rank == 1


@pytest.mark.parametrize(
    ("numbers", "rank"),
    [
        ((0, 1, 0, 1), 1),  # both ranks, again and again
        ((0, 1, 2, 3), 1),  # every rank once
        ((1, 2, 3), None),  # what is done of four
        ((1, 1, 4), None),
    ],
)
def test_numbers_with_the_world_size_are_ranks(numbers: Sequence[int], rank: int | None) -> None:
    head = "".join(f"INFO [train.py:12] ({number}/4) step\n" for number in numbers)
    assert parse("INFO [train.py:20] (1/4) text", prefix_style(head, 0.0)).rank == rank


@pytest.mark.parametrize(
    ("record", "rank"),
    [
        ("07:14:09,300 trainer ERROR rank 4: training loop failed", 4),
        ("2022-07-28 23:14:06.711 | ERROR    | fit:step:121 - rank 4 step 2207 bad sample", 4),
        ("ERROR lost the connection to rank 4", None),
        ("ERROR local rank 4 failed", None),
    ],
)
def test_a_traceback_belongs_to_the_rank_that_its_record_names(record: str, rank: int | None, tmp_path: Path) -> None:
    text = f'{record}\nTraceback (most recent call last):\n  File "a.py", line 7, in fit\n    go()\nValueError: bad\n'
    found = [piece for piece in read(tmp_path, text) if any(e.kind == "exception" for e in piece.record.said)]
    assert [piece.process.rank for piece in found] == [rank]


# --- whose lines ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "rank", "run"),
    [
        ("none_xyz/attempt_0/3/stderr.log", "hello\n", 3, 0),
        ("none_xyz/attempt_2/3/stderr.log", "hello\n", 3, 2),
        ("none_xyz/attempt_0/3/stderr.log", "[rank11]: hello\n", 11, 0),
        ("log.7", "hello\n", 7, 0),
        ("rank_12.out", "hello\n", 12, 0),
        ("worker-5.log", "hello\n", 5, 0),
    ],
)
def test_rank_from_the_file_path(name: str, text: str, rank: int, run: int, tmp_path: Path) -> None:
    (found,) = read(tmp_path, text, name)
    assert (found.process.rank, found.process.run) == (rank, run)


def test_job_id_in_a_file_name_is_not_a_rank(tmp_path: Path) -> None:
    assert read(tmp_path, "hello\n", "slurm-418332.out") == []


def test_local_ranks_become_global_if_a_line_has_both(tmp_path: Path) -> None:
    text = "[default0]:[rank8]: a\n[default1]:[rank9]: b\n[default1]:" + LINES[17][0] + "\n"
    (found,) = said(read(tmp_path, text), 9)
    assert found.kind == LINES[17][1]


def test_nccl_init_lines_map_processes_to_ranks(tmp_path: Path) -> None:
    text = (
        "node-b:500:600 [1] NCCL INFO ncclCommInitRank comm 0x1 rank 9 nranks 16 cudaDev 1 - Init COMPLETE\n"
        "node-b:500:600 [1] NCCL INFO ncclCommInitRank comm 0x2 rank 1 nranks 2 cudaDev 1 - Init COMPLETE\n"
        "node-b:500:700 [1] NCCL WARN NET/IB : Got async event : port error\n"
    )
    (piece,) = [one for one in read(tmp_path, text) if said([one])]
    assert (piece.process.rank, piece.process.host, piece.process.pid, piece.world_size) == (9, "node-b", 500, 16)


def test_restarts_are_separate_runs(tmp_path: Path) -> None:
    failed = '[rank0]: Traceback (most recent call last):\n[rank0]:   File "t.py", line 1, in <module>\n[rank0]: E: x\n'
    banner = "Setting OMP_NUM_THREADS environment variable for each process to be 1\n"
    found = read(tmp_path, banner + failed + banner + failed.replace("E: x", "F: y"))
    told = {(piece.process.run, line.fields["type"]) for piece in found for line in said([piece])}
    assert told == {(0, "E"), (1, "F")}


def test_rank_silent_since_long_is_still_listed(tmp_path: Path) -> None:
    begin = "".join(f"[rank{rank}]: hello\n" for rank in range(60))
    rest = "".join(f"[rank{n % 59}]: step {n} and so on and so forth\n" for n in range(30_000))
    assert {piece.process.rank for piece in read(tmp_path, begin + rest)} == set(range(60))


def test_times_of_each_ranks_last_line(tmp_path: Path) -> None:
    lines = [f"[rank{rank}]: 2025-03-01 12:00:{rank + step:02} step {step}\n" for step in range(9) for rank in (0, 1)]
    found = {piece.process.rank: piece.record.last for piece in read(tmp_path, "".join(lines))}
    assert found == {0: 1740830408.0, 1: 1740830409.0}


# --- tracebacks and ends --------------------------------------------------------------------------

TRACEBACK = """\
Traceback (most recent call last):
  File "/work/train.py", line 40, in <module>
    main()
    ~~~~^^
  File "/work/train.py", line 27, in main
    raise ValueError("x")
ValueError: no label
"""


@pytest.mark.parametrize("prefix", ["", "    ", "[rank0]: ", "2025-03-01 12:00:00,123 ", "[1,0]<stderr>:"])
def test_traceback_yields_a_stack_an_exception_and_an_exit(prefix: str, tmp_path: Path) -> None:
    text = "".join(prefix + line + "\n" for line in TRACEBACK.splitlines())
    found = read(tmp_path, text, "rank_0.log")
    (line,) = said(found, 0)
    assert (line.kind, line.text, line.fields["site"]) == (
        "exception",
        "ValueError: no label",
        "main (/work/train.py:27)",
    )
    (stacks,) = [piece.record for piece in found if isinstance(piece.record, Stacks)]
    assert [(frame.function, frame.line) for frame in stacks.threads[0].frames] == [("main", 27), ("<module>", 40)]
    assert ends(found) == {0: End(code=1)}


def test_first_exception_of_a_chain_is_the_cause(tmp_path: Path) -> None:
    text = (
        TRACEBACK
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + TRACEBACK.replace("ValueError: no label", "RuntimeError: gave up")
    )
    (line,) = said(read(tmp_path, text, "rank_0.log"), 0)
    assert (line.fields["type"], line.fields["cause"]) == ("RuntimeError", "ValueError: no label")


def test_caught_exception_is_not_an_exit(tmp_path: Path) -> None:
    text = TRACEBACK.replace("in <module>", "in fetch") + "going on\n"
    found = read(tmp_path, text, "rank_0.log")
    assert ends(found) == {}
    assert not [piece for piece in found if isinstance(piece.record, Stacks)]


@pytest.mark.parametrize("prefix", ["", "[rank0]: "])
def test_faulthandler_dump_in_a_log(prefix: str, tmp_path: Path) -> None:
    crash = [
        "Fatal Python error: Segmentation fault",
        "",
        "Thread 0x00007f0000000001 (most recent call first):",
        '  File "/work/train.py", line 31 in train',
        '  File "/work/train.py", line 40 in <module>',
    ]
    text = "[rank0]: step 1\n" * 30 + "".join(f"{prefix}{one}\n" for one in crash)
    found = read(tmp_path, text, "rank_0.log")
    (stacks,) = [piece.record for piece in found if isinstance(piece.record, Stacks)]
    assert [frame.function for frame in stacks.threads[0].frames] == ["train", "<module>"]
    assert ends(found) == {0: End(signal=11, native_thread=True)}


def test_failure_table_of_torchelastic(tmp_path: Path) -> None:
    entry = "[{}]:\n  time      : 2025-05-21_15:43:03\n  host      : node-a\n  rank      : {} (local_rank: {})\n"
    entry += "  exitcode  : {} (pid: {})\n  error_file: <N/A>\n  traceback : Signal 9 (SIGKILL) received by PID 1\n"
    text = "Failures:\n" + entry.format(1, 9, 1, 1, 777) + "---\nRoot Cause (first observed failure):\n"
    found = read(tmp_path, text + entry.format(0, 8, 0, -9, 776))
    assert ends(found) == {9: End(code=1, at_s=0.0), 8: End(signal=9)}
    assert {piece.process.pid for piece in found if piece.process.rank == 8} == {776}


def test_slurm_tasks_that_start_torchrun_are_not_ranks(tmp_path: Path) -> None:
    task = "srun: error: n1: task 1: Exited with exit code 1\n"
    assert ends(read(tmp_path, task)) == {1: End(code=1)}
    assert ends(read(tmp_path, "Sending process 5 closing signal SIGTERM\n" + task)) == {}


def test_watchdog_stack_of_the_failed_collective(tmp_path: Path) -> None:
    text = (
        "[rank0]:[E301 12:00:00.500000000 ProcessGroupNCCL.cpp:632] Stack trace of the failed collective: \n"
        "#0 all_reduce from /opt/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:3174\n"
        "#1 train from /work/train.py:31\n"
    )
    (stacks,) = [piece.record for piece in read(tmp_path, text) if isinstance(piece.record, Stacks)]
    assert [frame.function for frame in stacks.threads[0].frames] == ["all_reduce", "train"]


# --- what files are like --------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress], ids=["gzip", "zstd"])
def test_compressed_log(pack: Any, tmp_path: Path) -> None:
    assert [one.kind for one in said(read(tmp_path, pack(LINES[0][0].encode()), "rank_2.log.gz"))] == [LINES[0][1]]


def test_lines_before_damage_are_kept(tmp_path: Path) -> None:
    file, problems = tmp_path / "rank_2.log.gz", list[str]()
    noise = "".join(f"{n * 7919 % 104729} noise\n" for n in range(50_000))
    file.write_bytes(gzip.compress((LINES[0][0] + "\n" + noise).encode())[:-4000])
    assert [one.kind for one in said(pieces(file, problems))] == [LINES[0][1]]
    assert len(problems) == 1
    assert "read up to there" in problems[0]


def test_line_of_100_mb_is_truncated(tmp_path: Path) -> None:
    file = tmp_path / "rank_0.log"
    with file.open("wb") as out:
        for _ in range(100):
            out.write(b"x" * 2**20)
        out.write(LINES[0][0].encode() + b"y" * 2**20 + b"\n" + LINES[0][0].encode())
    with within(10.0):
        found = said(pieces(file))
    assert [one.kind for one in found] == [LINES[0][1]] * 2
    assert all(len(one.text) < 1000 for one in found)


def test_secrets_are_masked(tmp_path: Path) -> None:
    found = read(tmp_path, TRACEBACK.replace("no label", "HF_TOKEN=hf_abcdefghijklmnop1234 refused"), "rank_0.log")
    assert "abcdefghijklmnop" not in repr(found)


def test_binary_file_is_not_a_log(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(range(256)) * 40)
    assert not READER.recognises(Source(tmp_path / "x", "x", 10240))


PARTS = st.sampled_from([line for line, _, _ in LINES] + [raw for raw, _ in PREFIXES] + TRACEBACK.splitlines())
TEXTS = st.lists(PARTS | st.text(max_size=30), max_size=12).map(lambda parts: "\n".join(parts).encode())


@settings(max_examples=150, deadline=2000)
@given(data=st.binary(max_size=400) | TEXTS, cut=st.integers(0, 60), name=st.sampled_from(["rank_3.log", "all.log"]))
@pytest.mark.slow("hundreds of damaged logs")
def test_hostile_lines_do_not_raise(data: bytes, cut: int, name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    for piece in read(tmp_path_factory.mktemp("log"), data[cut:] + b"\r" + data[: len(data) - cut], name):
        assert piece.probe in ("logs", "stacks", "end", "figures")


@pytest.mark.parametrize(
    "text",
    [
        "Traceback (most recent call last):\n" * 20_000,
        "Fatal Python error: Aborted\n" * 5_000,
        "failed to bind to port: 1 " * 20_000 + "Address already in use",
        "[rank1]: " * 50_000 + "Timed out waiting 5ms for recv operation to complete",
        "NET/IB : Got async event " * 50_000,
        "Detected mismatch between collectives Rank 0 is running collective: CollectiveFingerPrint(" * 5_000,
    ],
    ids=["tracebacks", "crashes", "binds", "prefixes", "events", "fingerprints"],
)
def test_hostile_lines_are_fast(text: str, tmp_path: Path) -> None:
    with within(10.0):
        read(tmp_path, text)
