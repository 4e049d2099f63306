"""nvidia-smi: the table, `-q`, and a lost GPU."""

from __future__ import annotations

from pathlib import Path

from hangdoc.evidence.logs import Logs
from hangdoc.postmortem.readers.nvidia_smi import Gpus
from tests.support.samples import SAMPLES, pieces, text

FOLDER = SAMPLES / "nvidia_smi"
OLD = """+-----------------------------------------------------------------------------+
| NVIDIA-SMI 418.87.01    Driver Version: 418.87.01    CUDA Version: 10.1     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
|   0  Tesla V100-SXM2...  On   | 00000000:1A:00.0 Off |                    0 |
| N/A   59C    P0   298W / 300W |  31021MiB / 32480MiB |    100%      Default |
+-------------------------------+----------------------+----------------------+
| Processes:                                                       GPU Memory |
|  GPU       PID   Type   Process name                             Usage      |
|=============================================================================|
|    0     23445      C   python                                     31009MiB |
+-----------------------------------------------------------------------------+
"""


def test_table() -> None:
    every, *of_ranks = pieces("nvidia_smi", FOLDER / "lost.txt")
    assert isinstance(every.record, Gpus)
    first, second, lost = every.record.gpus
    assert (first.index, first.bus, first.utilisation, first.pids) == (0, "00000000:1B:00.0", 100, (2410412,))
    assert (first.power_w, first.power_limit_w, first.temperature_c, first.state) == (119.0, 700.0, 34, "P0")
    assert first.memory_bytes == 61231 << 20
    assert (second.utilisation, second.pids) == (0, (2410413,)), "no desktop"
    assert lost.lost
    assert not first.lost
    assert [piece.process.pid for piece in of_ranks if isinstance(piece.record, Gpus)] == [2410412, 2410413]
    (said,) = [one for piece in of_ranks if isinstance(piece.record, Logs) for one in piece.record.said]
    assert (said.kind, said.fields["gpu"]) == ("gpu_lost", "00000000:52:00.0")


def test_detailed_query() -> None:
    every, of_rank = pieces("nvidia_smi", FOLDER / "slow.txt")
    (gpu,) = every.record.gpus
    assert (gpu.name, gpu.utilisation, gpu.uncorrected, gpu.temperature_c) == ("NVIDIA A100-SXM4-80GB", 100, 2, 88)
    assert gpu.slowed == ("HW Slowdown", "HW Thermal Slowdown")
    assert (of_rank.process.pid, of_rank.record.driver) == (4276, "550.54.15")


def test_old_driver(tmp_path: Path) -> None:
    every, of_rank = text("nvidia_smi", tmp_path, "node-a\n" + OLD)
    assert (every.record.gpus[0].utilisation, of_rank.process.pid) == (100, 23445)


def test_hosts(tmp_path: Path) -> None:
    found = text("nvidia_smi", tmp_path, "".join(f"gpu07: {line}\n" for line in OLD.splitlines()))
    assert {piece.process.host for piece in found} == {"gpu07"}


def test_lost_gpu(tmp_path: Path) -> None:
    found = text("nvidia_smi", tmp_path, "Unable to determine the device handle for GPU0000:4F:00.0: Unknown Error\n")
    (said,) = [one for piece in found if isinstance(piece.record, Logs) for one in piece.record.said]
    assert said.fields["gpu"] == "0000:4F:00.0"
