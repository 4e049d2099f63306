"""Options of launchers of the torchrun family, from realistic command lines."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hangdoc.discovery.launcher import Launch, launch_of

CASES: list[tuple[str, Mapping[str, str], Launch | None]] = [
    (
        "python -m torch.distributed.run --nnodes 3 --node-rank 1 --nproc-per-node 2 --master-addr h --master-port 4 t",
        {},
        Launch(3, 3, 1, 2, "static", "h:4", "none", 900),
    ),
    (
        "torchrun --nnodes=2:4 --rdzv-backend=c10d --rdzv-endpoint=h t.py",
        {},
        Launch(2, 4, None, 1, "c10d", "h:29400", timeout_s=600),
    ),
    (
        "/v/torchrun --nnodes 2 --rdzv_backend c10d --rdzv_endpoint h:7 --rdzv_id x --rdzv_conf join_timeout=60 t.py",
        {},
        Launch(2, 2, None, 1, "c10d", "h:7", "x", 60),
    ),
    ("torchrun --nproc-per-node 4 t.py", {}, Launch(1, 1, 0, 4, endpoint="127.0.0.1:29500", timeout_s=900, alone=True)),
    (
        "torchrun --standalone --nnodes 1 -m pkg.train",
        {},
        Launch(1, 1, 0, 1, endpoint="127.0.0.1:29500", timeout_s=900, alone=True),
    ),
    (
        "torchrun t.py",
        {"PET_NNODES": "2", "PET_NODE_RANK": "1"},
        Launch(2, 2, 1, 1, endpoint="127.0.0.1:29500", timeout_s=900),
    ),
    (
        "python /v/bin/accelerate launch --num_machines 2 --machine_rank 1 --num_processes 8 --main_process_ip h t.py",
        {},
        Launch(2, 2, 1, 4, endpoint="h:29500", timeout_s=900),
    ),
    (
        "torchrun --nproc-per-node gpu --nnodes many t.py",
        {},
        Launch(None, None, 0, None, endpoint="127.0.0.1:29500", timeout_s=900),
    ),
    ("python train.py --nnodes 3", {}, None),
    ("python train.py torchrun-notes.txt", {}, None),
    ("", {}, None),
]


@pytest.mark.parametrize(("command", "environ", "told"), CASES, ids=[case[0][:60] for case in CASES])
def test_command_lines(command: str, environ: Mapping[str, str], told: Launch | None) -> None:
    assert launch_of(command.split(), environ) == told


def test_what_follows_from_it() -> None:
    told = Launch(3, 3, 2, 4)
    assert (told.ranks, told.world_size, told.nodes) == (range(8, 12), 12, "3")
    assert (Launch(2, 4, None, 4).ranks, Launch(2, 4, None, 4).world_size, Launch(2, 4).nodes) == (None, None, "2:4")
    assert Launch().nodes is None
