"""Probe `environ`: shows the allowed variables and no secrets."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hangdoc.evidence import Target
from hangdoc.system import procfs
from probes import Probe, Request, Tier
from probes.environ import PROBE, allowed

SHOWN = {
    "RANK": "3",
    "MASTER_ADDR": "10.0.0.1",
    "GLOO_SOCKET_IFNAME": "eth0",
    "NCCL_DEBUG": "INFO",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "TORCHELASTIC_RUN_ID": "none",
    "OMP_NUM_THREADS": "1",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "CUDA_VISIBLE_DEVICES": "",
    "OMPI_COMM_WORLD_RANK": "0",
    "SLURM_PROCID": "1",
    "FI_PROVIDER": "tcp",
    "TOKENIZERS_PARALLELISM": "false",
    "MIXED_PRECISION": "bf16",
    "TRAIN_DTYPE": "",
}
HIDDEN = {
    "HF_TOKEN": "hf_abcdefghijklmnopqrstuvwxyz",
    "WANDB_API_KEY": "x",
    "NCCL_SECRET": "x",
    "TORCH_REGISTRY_PASSWORD": "x",
    "TORCHELASTIC_AUTH": "x",
    "SLURM_JWT": "x",
    "AWS_SECRET_ACCESS_KEY": "x",
    "OMPI_MCA_oob_tcp_credential": "x",
    "HOME": "/root",
    "MY_PRECISION_NOTES": "as we agreed on Monday",
    "AMP_TOKEN": "x",
    "PATH": "/bin",
}


def test_a_real_process() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "import os; os.environ['RANK'] = '9'; print(1, flush=True); input()"],
        env=SHOWN | HIDDEN,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    stat = procfs.stat(child.pid)
    assert stat
    target = Target(child.pid, stat.start_ticks, "here", 3)
    found = PROBE.observe(Request([target], Tier.LOOK))
    child.kill()
    child.communicate()
    gone = PROBE.observe(Request([target], Tier.LOOK))
    assert isinstance(PROBE, Probe)
    assert found.unseen == ()
    assert dict(found.by_pid[child.pid].variables) == SHOWN  # as it was started: RANK is still 3
    assert gone.by_pid == {}
    assert [one.pid for one in gone.unseen] == [child.pid]


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("NCCL_NET_PLUGIN", "x" * 1000, "x" * 397 + "..."),
        ("TORCHELASTIC_ERROR_FILE", "s3://user:pa55@bucket/error", None),
        ("TORCH_TRACE", "https://u:hunter2@host/x " + "y" * 500, None),
        ("NCCL_DEBUG_FILE", "/tmp/nccl.%h", "/tmp/nccl.%h"),
    ],
)
def test_values_are_redacted_before_they_are_shortened(name: str, value: str, shown: str | None) -> None:
    found = allowed({name: value})[name]
    assert "pa55" not in found
    assert "hunter2" not in found
    assert len(found) <= 400
    assert shown in (None, found)
