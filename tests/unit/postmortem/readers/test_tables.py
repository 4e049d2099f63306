"""Output of other tools: torchfrtrace, ps, Slurm, kubectl, and the kernel's blocked tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangdoc.diagnose import load_judge
from hangdoc.errors import HangdocError
from hangdoc.evidence import End, Process
from hangdoc.postmortem.report import report
from tests.support.samples import SAMPLES, pieces, text

JUDGE = load_judge((), lambda text: None)
VERDICTS = {  # sample -> playbook, ranks, PIDs and hosts at fault
    "torchfrtrace/missing": ("rank-behind", [(3, None, None)]),
    "torchfrtrace/tutorial": ("rank-behind", [(1, None, None)]),
    "torchfrtrace/mismatch": ("collective-mismatch", [(2, None, "unknown host")]),
    "torchfrtrace/sizes": ("collective-size-mismatch", [(0, None, "unknown host")]),
    "torchfrtrace/table": ("rank-behind", [(2, None, None)]),
    "bandwidth_tests/nccl_tests": ("wrong-values", [(None, None, "trn-a14")]),
    "bandwidth_tests/pairs": ("degraded-port", [(None, None, "r7n09")]),
    "bandwidth_tests/perftest": ("degraded-port", [(None, None, "lx-21")]),
    "bandwidth_tests/osu": ("degraded-port", [(None, None, "n14")]),
    "call_chains/chains": ("checkpoint-stall", [(7, None, "unknown host")]),
    "call_chains/roll_call": ("rank-left", [(1, None, "unknown host")]),
    "call_chains/merged": ("rank-left", [(1, None, "unknown host")]),
    "call_chains/native_rows": ("ranks-parted", [(2, None, "unknown host")]),
    "recorder_tables/markdown": ("collective-size-mismatch", [(2, None, "unknown host")]),
    "recorder_tables/columns": ("collective-mismatch", [(2, None, "unknown host")]),
    "recorder_entries/json": ("rank-left", [(1, None, "unknown host")]),
    "recorder_entries/python": ("rank-left", [(2, None, "unknown host")]),
    "recorder_entries/rows": ("collective-mismatch", [(1, None, "unknown host")]),
    "recorder_entries/other_names": ("collective-mismatch", [(1, None, "unknown host")]),
    "network_tools/mtr": ("tcp-losses", [(None, None, "gx-07")]),
    "network_tools/ping_french": ("degraded-port", [(None, None, "noeud-c")]),
    "ps/eo": ("stopped-process", [(None, 7011, "unknown host")]),
    "ps/aux": ("stuck-in-kernel", [(None, 4411, "unknown host")]),
    "ps/nfs": ("blocked-on-storage", [(1, 911, "unknown host")]),
    "ps/ef": ("rank-defunct", [(None, 5111, "unknown host")]),
    "kubernetes/pods": ("rank-killed", [(None, 1, "llm-worker-1")]),
    "kubernetes/describe": ("rank-killed", [(None, 1, "llm-worker-1")]),
    "kubernetes/image": ("worker-not-started", [(None, None, "asr-worker-1")]),
    "kubernetes/pending": ("worker-not-started", [(None, None, "llm-worker-0")]),
    "hung_task/dmesg": ("blocked-on-storage", [(None, 4411, "unknown host")]),
}
SLURM = {  # sample -> kind, text and host of each event
    "sacct": [
        ("ended_by_scheduler", "Slurm job 8812 reached its time limit", None),
        ("ended_from_outside", "Slurm job 8812 was cancelled", None),
    ],
    "scontrol": [("node_failed", "Slurm job 8813 ended because a node failed (NodeDown)", None)],
    "node": [("node_failed", "Slurm node node08 is down*+drain: Not responding", "node08")],
    "many": [],
}
HEALTHY = {
    "ps": """\
  PID  PPID STAT WCHAN            COMMAND
 7001     1 Sl   do_epoll_wait    torchrun --nproc-per-node 2 train.py
 7010  7001 Rl   -                python train.py
 7011  7001 Sl   futex_wait_queue python train.py
""",
    "of somebody else": """\
  PID  PPID STAT COMMAND
 7010  6001 T    vim train.py
 7011  6001 D    rsync -a data server:
 7012  6001 Z    [bash] <defunct>
""",
    "pods": """\
NAME           READY   STATUS      RESTARTS   AGE
llm-worker-0   1/1     Running     0          41m
llm-worker-1   1/1     Running     0          41m
other-0        0/1     Pending     0          41m
other2-0       0/1     OOMKilled   0          41m
""",
    "a pod that waited once": """\
Name:             llm-worker-1
Status:           Running
    State:          Running
Events:
  Warning  FailedScheduling  51m   default-scheduler  0/12 nodes are available: 12 Insufficient nvidia.com/gpu.
""",
    "a router that answers seldom": """\
HOST: gx-01                       Loss%   Snt   Last   Avg  Best  Wrst StDev
  1.|-- 10.9.0.1                  41.0%   500    0.2   0.2   0.1   1.9   0.1
  2.|-- gx-07                      0.0%   500    0.3   0.3   0.2  14.1   0.9
HOST: gx-01                       Loss%   Snt   Last   Avg  Best  Wrst StDev
  1.|-- 10.9.0.1                  38.2%   500    0.2   0.2   0.1   1.4   0.1
  2.|-- gx-08                      0.0%   500    0.2   0.2   0.1   0.9   0.0
""",
    "checksums of ranks that agree": """\
crc32 of the params
step 100   0-7: 5be0c771
step 200   0-3: 19fa40d2   4-7: 19fa40d2
""",
    "a task of no rank": "INFO: task kworker/u128:3:992 blocked for more than 122 seconds.\n",
    "a job list": """\
             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)
              8812      gpu pretrain       ml  R      41:00      2 node[07-08]
              8813      gpu     eval       ml PD       0:00      2 (Resources)
""",
    "most ranks are missing": """\
Not all ranks joining collective, sequence number: 9
group info: 0:default_pg
collective: nccl:all_reduce
missing ranks: {1, 2, 3}
expected ranks: {0, 1, 2, 3}
""",
}


@pytest.mark.parametrize("sample", VERDICTS)
def test_verdict(sample: str) -> None:
    playbook, culprits = VERDICTS[sample]
    (verdict,) = report([SAMPLES / f"{sample}.txt"], judge=JUDGE).verdicts
    assert verdict.findings[0].playbook == playbook
    assert [(one.rank, one.pid, one.host) for one in verdict.findings[0].culprits] == culprits


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_claimed(name: str, tmp_path: Path) -> None:
    file = tmp_path / "paste.txt"
    file.write_text(HEALTHY[name])
    try:
        verdicts = report([file], judge=JUDGE).verdicts
    except HangdocError:
        return
    assert [finding.playbook for verdict in verdicts for finding in verdict.findings] == []


def test_the_rank_among_the_variables_that_a_loop_prints(tmp_path: Path) -> None:
    file = tmp_path / "paste.txt"
    file.write_text("""\
$ ps -eo pid,stat,wchan:20,pcpu,args | grep -E 'train|gdb'
   7001 Sl   do_epoll_wait         0.1 python /opt/bin/torchrun --nnodes 2 --node_rank 1 train.py
   7011 Rl   -                     104 python -u train.py
   7012 tl   ptrace_stop          71.6 python -u train.py
$ for p in 7011 7012; do tr '\\0' '\\n' < /proc/$p/environ | grep -E '^(RANK|LOCAL_RANK)=' | xargs; done
LOCAL_RANK=0 RANK=4
LOCAL_RANK=1 RANK=5
""")
    (verdict,) = report([file], judge=JUDGE).verdicts
    assert [(one.rank, one.pid) for one in verdict.findings[0].culprits] == [(5, 7012)]


@pytest.mark.parametrize(("call", "count"), [("nccl:all_reduce", 1), ("nccl:send 0->1", 2)])
def test_an_entry_that_is_printed_twice(call: str, count: int, tmp_path: Path) -> None:
    """Sends have the number of the last collective, so that two of them look alike."""
    entry = f'{{"collective_seq_id": 7, "p2p_seq_id": 1, "profiling_name": "{call}", "state": "completed"}}'
    found = text("recorder_entries", tmp_path, f"rank 0 {entry}\nrank 0 {entry}\nrank 1 {entry}\n")
    records = {piece.process.rank: piece.record for piece in found if piece.probe == "recorder"}
    assert {rank: len(record.entries) for rank, record in records.items()} == {0: count, 1: 1}


@pytest.mark.parametrize("sample", SLURM)
def test_outcomes_of_slurm(sample: str) -> None:
    found = [
        (piece, event) for piece in pieces("slurm", SAMPLES / "slurm" / f"{sample}.txt") for event in piece.record.said
    ]
    assert [(event.kind, event.text, piece.process.host) for piece, event in found] == SLURM[sample]


def test_processes_of_ps() -> None:
    found = {
        piece.process.pid: piece.record for piece in pieces("ps", SAMPLES / "ps" / "eo.txt") if piece.probe == "cpu"
    }
    assert {pid: record.state for pid, record in found.items()} == {7010: "R", 7011: "T", 7012: "S", 7013: "S"}
    stopped = found[7011]
    assert isinstance(stopped, Process)
    assert [(child.pid, child.state) for child in stopped.children] == [(7100, "T")]
    assert stopped.threads[0].wchan == "do_signal_stop"
    assert stopped.age_s == 5018


def test_ps_with_host_prefix(tmp_path: Path) -> None:
    lines = ["PID PPID STAT WCHAN COMMAND", "70 1 Sl - torchrun train.py", "71 70 D nfs_wait python train.py"]
    found = text("ps", tmp_path, "".join(f"{host}: {line}\n" for line in lines for host in ("node-a", "node-b")))
    assert {(piece.process.host, piece.process.pid) for piece in found} == {("node-a", 71), ("node-b", 71)}


def test_defunct_and_killed_processes_have_ended() -> None:
    ended = [piece for piece in pieces("ps", SAMPLES / "ps" / "ef.txt") if piece.probe == "end"]
    assert [(piece.process.pid, piece.record) for piece in ended] == [(5111, End())]
    (killed,) = [piece for piece in pieces("kubernetes", SAMPLES / "kubernetes" / "pods.txt") if piece.probe == "end"]
    assert (killed.process.host, killed.record.signal, killed.record.oom_kills) == ("llm-worker-1", 9, 1)


def test_a_rank_of_a_subgroup_is_global(tmp_path: Path) -> None:
    content = (
        (SAMPLES / "torchfrtrace" / "missing.txt").read_text().replace("0:default_pg", "5:tp").replace("{3}", "{7}")
    )
    (piece,) = text("torchfrtrace", tmp_path, content.replace("{0, 1, 2, 3}", "{4, 5, 6, 7}"))
    assert piece.record.said[0].fields["ranks"] == "7"
    assert piece.world_size is None


TRANSFERS = """\
Rank 4                                                Rank 5
----------------------------------------------------  ----------------------------------------------------
recv(s=5 d=4, input_sizes=[[96]], state=completed)    send(s=5 d=4, input_sizes=[[96]], state=completed)
all_reduce(input_sizes=[[7]], state=completed)        all_reduce(input_sizes=[[7]], state=completed)
recv(s=5 d=4, input_sizes=[[96]], state=started)      LAST
"""


@pytest.mark.parametrize(
    ("last", "waiting"),
    [
        ("all_reduce(input_sizes=[[7]], state=started)", [1, 1]),
        ("all_reduce(input_sizes=[[7]], state=completed)", [0, 0]),  # it may be about to send
        ("send(s=5 d=4, input_sizes=[[96]], state=completed)", [0, 0]),
        ("all_reduce(input_sizes=[[7]], sta", []),  # damaged
    ],
)
def test_transfers_side_by_side_are_recorder_entries(tmp_path: Path, last: str, waiting: list[int]) -> None:
    records = [piece.record for piece in text("torchfrtrace", tmp_path, TRANSFERS.replace("LAST", last))]
    assert [sum(not call.retired for call in record.entries) for record in records] == waiting


def test_columns_that_start_at_another_time_are_not_compared(tmp_path: Path) -> None:
    moved = TRANSFERS.replace("all_reduce(input_sizes=[[7]]", "all_reduce(input_sizes=[[8]]", 1)
    assert list(text("torchfrtrace", tmp_path, moved.replace("LAST", ""))) == []


@pytest.mark.parametrize(
    "content",
    [
        "rank  seq  loss\n0     12   1.9\n1     12   1.8\n",  # no call
        "rank  seq  op\n0     12   all_reduce\n",  # one rank
        "| rank | op | seq |\n|---|---|---|\n| 0 | all reduce of grads | x |\n| 1 | all_reduce | 7 |\n",
    ],
)
def test_a_table_that_is_none_of_calls(content: str, tmp_path: Path) -> None:
    assert not [piece for piece in text("recorder_tables", tmp_path, content) if piece.probe == "recorder"]


@pytest.mark.parametrize(
    ("frame", "site"),
    [
        ("vision.py:312 (visual.blocks.0)", ("unknown", "vision.py", 312)),
        ("step (loop.py:88)", ("step", "loop.py", 88)),
        ("models/lm.py:7", ("unknown", "models/lm.py", 7)),
    ],
)
def test_the_frame_in_a_table_of_calls(frame: str, site: tuple[str, str, int], tmp_path: Path) -> None:
    head = "| rank | seq | op | state | frame |\n|---|---|---|---|---|\n"
    content = head + "".join(f"| {rank} | 7 | all_reduce | started | {frame} |\n" for rank in range(2))
    stacks = [piece.record for piece in text("recorder_tables", tmp_path, content) if piece.probe == "stacks"]
    frames = [(one.function, one.file, one.line) for one in stacks[0].threads[0].frames]
    assert site in frames
