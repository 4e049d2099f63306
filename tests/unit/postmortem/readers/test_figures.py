"""Figures in a text: owners, values, units, tables, and what their names mean."""

from __future__ import annotations

import pytest

from hangdoc.evidence.figures import Figures
from hangdoc.postmortem.readers._logs.figure_kinds import FigureKind, figure_kinds, meaning
from hangdoc.postmortem.readers._logs.figures import MAX_BYTES, MAX_FIGURES, MAX_LINE, read_figures
from hangdoc.postmortem.readers._logs.prefixes import PrefixStyle

# Text -> figures as `kind of owner=value`, in their order.
TEXTS = {
    "prefixes": (
        "[rank0]: step 12 fwd 0.84s allreduce 40 ms\n[rank1]: step 12 fwd 14.1s allreduce 31 ms",
        ["work rank 0=0.84", "wait rank 0=0.04", "work rank 1=14.1", "wait rank 1=0.031"],
    ),
    "owners in one line": (
        "forward: rank 0 0.088s, rank 1 0.271s",
        ["work rank 0=0.088", "work rank 1=0.271"],
    ),
    "owners under a heading": (
        "forward-compute (ms):\n  rank 0: 88.5\n  rank 1: 271.0",
        ["work rank 0=0.0885", "work rank 1=0.271"],
    ),
    "several owners of a value": (
        "param checksum: ranks 0-1 7be01c, rank 2 c314aa",
        ["state rank 0=7be01c", "state rank 1=7be01c", "state rank 2=c314aa"],
    ),
    "unknown names of what replicas have in common": (
        "step 0 rank 0 trunk 41837.25 fan 9917.125 loss 7.1\nstep 0 rank 1 trunk 41837.25 fan 9917.125 loss 7.2\n"
        "step 9 rank 0 trunk 41840.50 fan 9921.500 loss 6.1\nstep 9 rank 1 trunk 41840.50 fan 9920.875 loss 6.2",
        [
            "state rank 0=41837.25",
            "state rank 0=9917.125",
            "state rank 1=41837.25",
            "state rank 1=9917.125",
            "state rank 0=41840.50",
            "state rank 0=9921.500",
            "state rank 1=41840.50",
            "state rank 1=9920.875",
        ],
    ),
    "unknown names that begin apart, or have few digits": (
        "step 0 rank 0 seen 41837.25 beta 0.5\nstep 0 rank 1 seen 41902.75 beta 0.5\n"
        "step 9 rank 0 seen 51837.25 beta 0.6\nstep 9 rank 1 seen 51902.75 beta 0.7",
        [],
    ),
    "checksums in numbered rows": (
        "buffer hash (sha1 of 318 tensors)\n   0  c4407a91fe\n   1  09e2b6d718",
        ["state rank 0=c4407a91fe", "state rank 1=09e2b6d718"],
    ),
    "table of ranks": (
        "| rank | fwd ms | tokens/s |\n|---|---|---|\n| 0 | 88 | 1,900 |\n| 1 | 90 | 600 |",
        ["work rank 0=0.088", "rate rank 0=1900", "work rank 1=0.09", "rate rank 1=600"],
    ),
    "table of hosts": (
        "host,step_time\ngpu07,1.25\ngpu08,4.5",
        ["step host gpu07=1.25", "step host gpu08=4.5"],
    ),
    "table with a column for each rank": (
        "            rank 0   rank 1\nbackward    0.5      1.5",
        ["backward rank 0=0.5", "backward rank 1=1.5"],
    ),
    "a list of hosts under a heading": (
        "throughput per node (tokens/s)\nhn-01 40120\nhn-02 19870\n",
        ["rate host hn-01=40120", "rate host hn-02=19870"],
    ),
    "torch.profiler": (
        "rank 3:\n  Name   Self CPU %   Self CPU   CPU total   Self CUDA   CUDA total   # of Calls\n"
        "  enumerate(DataLoader)#_Multi...   80.00%   8.000s   8.000s   0.000us   0.000us   10\n"
        "  ncclDevKernel_AllReduce_Sum   0.00%   0.000us   0.000us   400.000ms   400.000ms   20\n"
        "  nccl:all_reduce   0.00%   1.000ms   1.000ms   400.000ms   400.000ms   20\n"
        "Self CPU time total: 10.000s\nSelf CUDA time total: 1.500s\n",
        [
            "wait rank 3=0.4",
            "work rank 3=1.1",
            "input rank 3=0.8",
            "step rank 3=1",
        ],
    ),
    "nsys stats": (
        "report (rank 1)\n Time (%)  Total Time (ns)  Instances  Avg (ns)  Name\n --------  -------  ----  ---  ----\n"
        "  60.0  600,000,000  10  60000000.0  ncclDevKernel_AllGather_RING_LL(args)\n"
        "  40.0  400,000,000  10  40000000.0  gemm_kernel\n",
        ["wait rank 1=0.6", "work rank 1=0.4"],
    ),
    "headings of profiles that belong to no table": (
        "rank 0\nrank 1\n Time (%)  Total Time (ns)  Instances  Name\n  60.0  600000000  10  ncclKernel_AllReduce\n"
        "  40.0  400000000  10  gemm\n\nno heading\n\n\n\n\n\n\n\n\n\n Time (%)  Total Time (ns)  Instances  Name\n"
        "  10.0  100000000  10  ncclKernel_AllReduce\n  90.0  900000000  10  gemm\n",
        [],
    ),
    "extremes of Megatron's timers": (
        "(min, max) time across ranks (ms):\n    forward-compute ...: (702.40, 1828.19)\n    optimizer ...: (1.0, 9.0)",
        ["work extreme fastest=0.7024", "work extreme slowest=1.82819"],
    ),
    "Megatron's straggler detector": (
        "MnEtpt/Rnk: 101.12TF/21 | MxEtpt/Rnk: 312.95TF/10\n"
        "^^^^ Bottom 2 Ranks with lowest  Etpt(TF): 101.1/21, 306.7/3,",
        ["rate rank 21=101.12", "rate rank 10=312.95", "rate rank 21=101.1", "rate rank 3=306.7"],
    ),
    "metrics of DCGM": (
        'DCGM_FI_DEV_SM_CLOCK{gpu="5",Hostname="n1"} 510\nDCGM_FI_DEV_GPU_UTIL{gpu="5",Hostname="n1"} 1e2\n'
        'DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{gpu="5",Hostname="n1"} 64\nDCGM_FI_DEV_FAN_SPEED{gpu="5"} 30',
        ["gpu clock gpu n1/5=510", "gpu utilisation gpu n1/5=100", "gpu slowed gpu n1/5=HW Thermal Slowdown"],
    ),
    "NVLink": (
        "n1$ nvidia-smi nvlink -s\nGPU 0: NVIDIA A100 (UUID: GPU-1)\n\t Link 0: 25 GB/s\n\t Link 1: <inactive>",
        ["gpu nvlinks up gpu n1/0=1", "gpu nvlinks down gpu n1/0=1"],
    ),
    "the topology": (
        "        GPU0    GPU1    NIC0\nGPU0     X      NV12    SYS\nGPU1    NV12     X      SYS",
        ["gpu nvlink peers gpu 0=1", "gpu nvlink peers gpu 1=1"],
    ),
    "rates between GPUs": (
        "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)\n   D\\D     0      1      2\n"
        "     0 1530.20 262.20  21.33\n     1 262.30 1531.20  262.34\n     2  21.35  21.35 1532.20",
        ["gpu peer rate gpu 0=141.765", "gpu peer rate gpu 1=262.32", "gpu peer rate gpu 2=21.35"],
    ),
    "the width of a link": (
        "GPU 00000000:5E:00.0\n        GPU Link Info\n            PCIe Generation\n                Current  : 1\n"
        "            Link Width\n                Max      : 16x\n                Current  : 4x",
        ["gpu link width max gpu 00000000:5E:00.0=16", "gpu link width gpu 00000000:5E:00.0=4"],
    ),
    "ECC errors of the queried GPUs": (
        "index, ecc.errors.uncorrected.volatile.total\n0, 0\n1, [N/A]\n2, 14",
        ["gpu ecc errors gpu 0=0", "gpu ecc errors gpu 2=14"],
    ),
    "pmon": (
        "# gpu         pid   type     sm    mem   command\n    0      2010     C      -      -    python\n"
        "    1      2011     C     99      2    python\n    2         -     -      -      -    -",
        ["gpu utilisation gpu 0=0", "gpu utilisation gpu 1=99"],
    ),
    "meters of a step": (
        "Epoch: [3][ 20/900]  Time  2.112 ( 2.204)  Data  1.921 ( 2.011)  Loss 4.12",
        ["step  =2.112", "input  =1.921"],
    ),
    "parts of a step": (
        "step 20 | data 2.50s | fwd 0.10s | bwd 0.20s | loss 2.1",
        ["input  =2.5", "work  =0.1", "backward  =0.2"],
    ),
    "times of OpenMMLab": (
        "lr: 1.978e-03, eta: 1 day, 2:03:04, time: 2.9, data_time: 2.5, memory: 3781, loss: 1.2",
        ["step  =2.9", "input  =2.5"],
    ),
    "a table with other columns": (
        "rank | host | fwd_s | loss\n0 | a-1 | 0.2 | 2.1\n1 | a-1 | 0.3 | 2.2\nmean | - | 0.25 | 2.15",
        ["work rank 0=0.2", "work rank 1=0.3"],
    ),
    "a table of two columns, whose first looks like a label": (
        "rank | wait_s\n-----+-----\n0    | 0.412\n1    | 0.003",
        ["wait rank 0=0.412", "wait rank 1=0.003"],
    ),
    "a table in a box": (
        "\u2503 rank \u2503 fwd ms \u2503\n\u2521\u2501\u2501\u2529\n"
        "\u2502 0 \u2502 211.4 \u2502\n\u2502 1 \u2502 634.8 \u2502",
        ["work rank 0=0.2114", "work rank 1=0.6348"],
    ),
    "pandas, grouped by rank": (
        "      forward  backward\nrank                   \n0      0.1821    0.9412\n1      0.4520    0.6720",
        ["work rank 0=0.1821", "backward rank 0=0.9412", "work rank 1=0.452", "backward rank 1=0.672"],
    ),
    "pandas, with its own index": (
        "   rank     host  fwd_s\n0     2  gx-01  0.181\n1     3  gx-01  0.452",
        ["work rank 2=0.181", "work rank 3=0.452"],
    ),
    "steps in rows, ranks in columns": (
        "compute s\nstep | r0 | r1 | mean\n100 | 0.81 | 0.82 | 0.815",
        ["work rank 0=0.81", "work rank 1=0.82"],
    ),
    "shares of a step": (
        "rank  data%  comm%\n0  1.1  60.7\n1  60.4  1.2",
        ["input rank 0=1.1", "wait rank 0=60.7", "input rank 1=60.4", "wait rank 1=1.2"],
    ),
    "a table of experts": ("expert  tokens  ms\n0  4011  2.1\n1  9120  7.9", []),
    "a table of models": ("rank  model  latency_ms\n1  m-large  412\n2  m-base  101\n3  m-small  99", []),
    "ranks of LoRA": ("rank  train_time_s\n4  812\n8  815\n64  2410", []),
    "a dictionary": (
        "fwd (ms) by rank: {0: 812.2, 1: 2210.4}",
        ["work rank 0=0.8122", "work rank 1=2.2104"],
    ),
    "a dictionary over several lines": (
        "fwd (ms) by rank:\n{0: 812.2,\n 1: 2210.4,\n 2: 813.0}",
        ["work rank 0=0.8122", "work rank 1=2.2104", "work rank 2=0.813"],
    ),
    "a dictionary of hosts": (
        "step_time_s = {'gx-01': 0.41, 'gx-02': 1.9}",
        ["step host gx-01=0.41", "step host gx-02=1.9"],
    ),
    "pairs in one line": (
        "fwd per rank, seconds: 0-1: 0.2, 2: 3.1, 3: 0.2",
        ["work rank 0=0.2", "work rank 1=0.2", "work rank 2=3.1", "work rank 3=0.2"],
    ),
    "ranks by short names, in any language": (
        "paso 81  r0 0.31s   r1 0.30s   r2 28.7s\npaso 82  r0 0.31s   r1 0.30s   r2 29.1s",
        [
            "step rank 0=0.31",
            "step rank 1=0.3",
            "step rank 2=28.7",
            "step rank 0=0.31",
            "step rank 1=0.3",
            "step rank 2=29.1",
        ],
    ),
    "the time until a collective is work": (
        "tempo antes do all-reduce:\npasso 1  r0 0.31s   r1 0.30s   r2 28.7s",
        ["work rank 0=0.31", "work rank 1=0.3", "work rank 2=28.7"],
    ),
    "numbers of registers": ("0x10: r0 0.31s r2 0.30s r5 0.2s", []),
    "labels of Prometheus": (
        'step_compute_seconds{rank="0"} 0.412\nstep_compute_seconds{rank="1"} 1.2',
        ["work rank 0=0.412", "work rank 1=1.2"],
    ),
    "a dictionary by nobody": ("fwd ms {0: 812.2, 1: 2210.4}", []),
    "a gathered list": (
        "all_gather of fwd time [s]: [0.2, 0.9, 0.2]",
        ["work rank 0=0.2", "work rank 1=0.9", "work rank 2=0.2"],
    ),
    "a list of something else": ("fwd time of the last steps [0.2, 0.9, 0.2]", []),
    "numbered lines": (
        "forward time (ms), rank -> value\n  0 -> 201\n  1 -> 611",
        ["work rank 0=0.201", "work rank 1=0.611"],
    ),
    "the first values of a weight": (
        "[rank0] fc.weight[0,:3] = tensor([ 0.01, -0.03, 0.04])\n"
        "[rank1] fc.weight[0,:3] = tensor([ 0.01, -0.04, 0.04])",
        ["state rank 0=0.01, -0.03, 0.04", "state rank 1=0.01, -0.04, 0.04"],
    ),
    "norms between bars": (
        "rank 0 |w| 61.20 |g| 4.1\nrank 1 |w| 61.19 |g| 4.1",
        ["state rank 0=61.20", "grad rank 0=4.1", "state rank 1=61.19", "grad rank 1=4.1"],
    ),
    "a part of the text for each rank": (
        "=== rank 0 ===\n  forward  0.201 s\n  data 0.01 s\n=== rank 1 ===\n  forward  0.671 s\n  data 0.01 s",
        ["work rank 0=0.201", "input rank 0=0.01", "work rank 1=0.671", "input rank 1=0.01"],
    ),
    "JSON with an object for each rank": (
        '{\n "rank_0": {\n  "forward_ms": 201.2\n },\n "rank_1": {\n  "forward_ms": 588.0\n }\n}',
        ["work rank 0=0.2012", "work rank 1=0.588"],
    ),
    "what follows the part of a rank": (
        "rank 0:\n  fwd 0.2 s\nrank 1:\n  fwd 0.3 s\nwe changed that\nfwd 0.9 s",
        ["work rank 0=0.2", "work rank 1=0.3"],
    ),
    "extremes with their ranks": (
        "data: min 11.2 ms (rank 3) max 4820.1 ms (rank 12) mean 162.4 ms",
        ["input extreme fastest=0.0112", "input extreme 12=4.8201", "input extreme usual=0.1624"],
    ),
    "extremes of a wait": (
        "allreduce avg=0.4s min=0.003s@rank9 max=0.43s@rank2",
        ["wait extreme slowest=0.43", "wait extreme 9=0.003", "wait extreme usual=0.4"],
    ),
    "extremes that move": (
        "data: min 0.1 s (rank 3) max 4.1 s (rank 12)\ndata: min 0.1 s (rank 3) max 4.2 s (rank 1)",
        [],
    ),
    "a table of extremes": (
        "phase (ms)  min   max     mean  max_rank\ndata        11.2  4820.1  162.4  12",
        ["input extreme fastest=0.0112", "input extreme 12=4.8201", "input extreme usual=0.1624"],
    ),
    "compact JSON": (
        '{"rank":0,"loader_wait_ms":4.1}\n{"rank":1,"loader_wait_ms":702.2}',
        ["input rank 0=0.0041", "input rank 1=0.7022"],
    ),
    "steps done": (
        "rank  step  last_op\n0  4410  allreduce\n1  4372  -",
        ["count rank 0=4410", "count rank 1=4372"],
    ),
    "errors of links": (
        "host   retrans  rx_GB\nnd-05  12  80.9\nnd-06  48122  79.9",
        ["losses host nd-05=12", "losses host nd-06=48122"],
    ),
    "GPUs in columns of one's own": (
        "gpu  sm_clock_MHz  temp_C\n0  1980  61\n1  705 MHz  91",
        ["gpu clock gpu 0=1980", "gpu temperature gpu 0=61", "gpu clock gpu 1=705", "gpu temperature gpu 1=91"],
    ),
    "a rank that a report compares": (
        "Why: r0 input was slower than median global rank (254.5/3.8ms).",
        ["input extreme 0=0.2545", "input extreme usual=0.0038"],
    ),
    "parts of an epoch": (
        " - total: 612.4s\n - waiting for data loader: 548.7s\n - train_step: 61.0s\n - logging: 0.9s",
        ["step  =612.4", "input  =548.7", "step  =61"],
    ),
    "parts without a wait for data": (" - forward: 0.2s\n - backward: 0.4s", []),
    "times outside of the steps": ("import time: rank 0 4.1 s, rank 1 19.8 s", []),
    "whole numbers of data are counts": ("rank 0 data 512 batches\nrank 1 data 2048 batches", []),
    "local ranks are none of the job": ("local_rank 0 fwd 0.84s\nlocal_rank 1 fwd 0.9s", []),
    "percentiles number no ranks": ("step time p50 0.31s p99 0.48s", []),
    "a figure of one rank": ("[rank0]: fwd 0.84s", []),
    "times of nobody": ("step 12 took 0.84s", []),
    "memory and losses": ("rank 0 loss 2.1 mem 71 GiB\nrank 1 loss 2.2 mem 70 GiB", []),
    "a list of no hosts": ("forward time per layer (ms)\nlayer1 1.2\nlayer2 9.9", []),
    "prose": ("We run 64 GPUs, and rank 3 is slow since version 2.4.", []),
}


def read(text: str, lines: int | None = None) -> Figures | None:
    return read_figures(text.encode(), text.count("\n") if lines is None else lines, PrefixStyle(), "job.log")


@pytest.mark.parametrize("name", TEXTS)
def test_figures_of_a_text(name: str) -> None:
    text, expected = TEXTS[name]
    found = read(text + "\n")
    shown = [f"{one.kind} {one.of} {one.owner}={one.value}" for one in found.values] if found else []
    assert shown == expected


@pytest.mark.parametrize(
    ("entry", "example"),
    [(entry, example) for entry in figure_kinds() for example in entry.examples],
    ids=lambda one: one if isinstance(one, str) else one.kind,
)
def test_example_of_a_kind(entry: FigureKind, example: str) -> None:
    """The first entry that matches it is its own."""
    text = example.lower().replace("_", " ")
    assert next(one for one in figure_kinds() if one.expression.search(text)) is entry
    found = meaning(example, "s" if entry.time == "unit" else None)
    assert (found.kind if found else "none") == entry.kind


def test_numbers_of_gpus_that_are_ranks() -> None:
    table = "GPU  step ms\n0  300\n1  900\n"
    assert [found.index_is_rank for text in (table, f"GPU index = rank here\n{table}") if (found := read(text))] == [
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("text", "staged", "sharded"),
    [
        ("", False, False),
        ("tp=1 pp=1 zero-1, the shards of the data set", False, False),
        ("1F1B, 4 stages", True, True),
        ("pp=2", True, True),
        ("rank = stage", True, True),
        ("tensor parallel size 4", False, True),
        ("ZeRO-3", False, True),
    ],
)
def test_ranks_that_differ_by_design(text: str, staged: bool, sharded: bool) -> None:
    found = read(f"{text}\nrank 0 fwd 0.8s\nrank 1 fwd 0.9s\n")
    assert found
    assert (found.staged, found.sharded) == (staged, sharded)


def test_line_numbers_count_from_the_begin_of_the_file() -> None:
    found = read("[rank0]: fwd 0.8s\n[rank1]: fwd 0.9s\n", lines=1002)
    assert found
    assert [one.line for one in found.values] == [1001, 1002]


def test_a_rank_that_is_glued_to_a_time_is_none() -> None:
    glued = "2025-10-21T08:40:45.013Z INFO:train:DONE ---- rank 02025-10-21T08:40:45.013Z INFO:train:DONE ---- rank 1"
    found = read(f"{glued}\nrank 0 step time 1.92 s\nrank 1 step time 1.93 s\n")
    assert found is not None
    assert [(one.owner, one.value) for one in found.values] == [("0", "1.92"), ("1", "1.93")]


def test_bounds() -> None:
    lines = [f"[rank{at}]: fwd 0.{at}s bwd 0.{at}s wait 0.{at}s opt 0.{at}s step time 0.{at}s" for at in range(2000)]
    found = read("\n".join(lines))
    assert found
    assert len(found.values) <= MAX_FIGURES
    early = "[rank0]: fwd 0.8s\n" + "x" * MAX_BYTES + "\n[rank1]: fwd 0.9s\n"
    assert read(early) is None, "only the end of a file is searched"
    assert read(f"[rank0]: fwd 0.8s\n[rank1]: fwd 0.9s{' ' * MAX_LINE}\n") is None
