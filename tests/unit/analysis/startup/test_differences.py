"""How the settings of a minority differ, and what differs by design."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from hangdoc.analysis.startup.by_design import differs_by_design
from hangdoc.analysis.startup.differences import differences
from hangdoc.evidence import Process
from hangdoc.evidence.software import Configuration, Versions
from tests.support.judge import judge
from tests.support.synthetic_evidence import At, Stage, in_c10d

SCRIPT = "def train():\n    for step in range(9):\n        dist.all_reduce(x)\n    queue.get()\n"


def process(command: str = "python train.py", pid: int = 1, ppid: int = 1, cwd: str = "/job") -> Process:
    return Process(pid, ppid, 0, "S", tuple(command.split()), "/usr/bin/python3", cwd, 10.0, 1.0, 1, ())


def rank(environ: Mapping[str, str] | None = None, **records: object) -> At:
    return in_c10d("all_reduce", ("train", 3), environ=environ or {}, records={"cpu": process(), **records})


def lines(folder: Path, ranks: Sequence[At]) -> tuple[str, ...]:
    return differences(Stage(SCRIPT, folder).facts(ranks).case)


def configured(*values: Mapping[str, str]) -> list[At]:
    return [rank(configuration=Configuration(one)) for one in values]


@pytest.mark.parametrize(
    ("ranks", "shown"),
    [
        (configured({"args.lr": "1"}, {"args.lr": "1"}, {"args.lr": "2"}), ["args.lr = 1 on ranks 0-1, 2 on rank 2"]),
        (configured({"args.lr": "1"}, {"args.lr": "2"}, {"args.lr": "3"}), []),  # distinct on each rank
        (configured({"args.lr": "1"}, {"args.lr": "2"}), ["args.lr = 1 on rank 0, 2 on rank 1"]),
        (configured({"args.local_rank": "0"}, {"args.local_rank": "0"}, {"args.local_rank": "1"}), []),
        (configured({"cfg.where": "cuda:0"}, {"cfg.where": "cuda:1"}), []),  # its own number
        (configured({"args.lr": "1"}, {"args.lr": "1"}, {}), []),  # not seen on each rank
        ([rank({"A": "1"}), rank({"A": "1"}), rank({"B": "1"})],
         ["A = 1 on ranks 0-1, not set on rank 2", "B = not set on ranks 0-1, 1 on rank 2"]),
        ([rank({"RANK": n, "CUDA_VISIBLE_DEVICES": n, "SEED": n, "HOSTNAME": n}) for n in "abb"], []),
        ([rank(versions=Versions("2.9", packages={"numpy": n})) for n in ("1", "1", "2")],
         ["version of numpy = 1 on ranks 0-1, 2 on rank 2"]),
        ([rank(versions=Versions("2.9", scripts={"train.py": n})) for n in ("a", "b", "b")],
         ["content of train.py = a on rank 0, b on ranks 1-2"]),
        ([rank(cpu=process(f"python train.py --wd {n} lr={n}")) for n in "113"],
         ["--wd = 1 on ranks 0-1, 3 on rank 2", "lr = 1 on ranks 0-1, 3 on rank 2"]),
        ([rank(cpu=process(cwd=folder)) for folder in ("/a", "/a", "/b")],
         ["script = /a/train.py on ranks 0-1, /b/train.py on rank 2",
          "working folder = /a on ranks 0-1, /b on rank 2"]),
        ([rank(cpu=process("python /job/train.py")), rank(), rank()], []),  # the same script
    ],
)  # fmt: skip
def test_differences(tmp_path: Path, ranks: Sequence[At], shown: list[str]) -> None:
    assert list(lines(tmp_path, ranks)) == shown


def test_a_rank_that_starts_the_others_lacks_their_variables(tmp_path: Path) -> None:
    first = rank(cpu=process(pid=100))
    others = [rank({"WORLD_SIZE": "3"}, cpu=process(pid=pid, ppid=100)) for pid in (101, 102)]
    assert lines(tmp_path, [first, *others]) == ()


def test_at_most_five_and_an_option_once(tmp_path: Path) -> None:
    names = ("wd", *"abcdefg")
    ranks = [
        rank(cpu=process(f"python t.py --wd {n}"), configuration=Configuration({f"args.{x}": n for x in names}))
        for n in "112"
    ]
    shown = lines(tmp_path, ranks)
    assert len(shown) == 5
    assert [line.partition(" = ")[0] for line in shown[:3]] == ["--wd", "args.a", "args.b"]


def test_shown_where_no_playbook_explains_the_stall(tmp_path: Path) -> None:
    stage = Stage(SCRIPT, tmp_path)
    waiting = [rank(configuration=Configuration({"args.lr": n})) for n in ("1", "1", "2")]
    verdict = judge().verdict(stage.facts(waiting))
    assert (verdict.status, verdict.findings) == ("stalled", ())
    assert verdict.differences == ("args.lr = 1 on ranks 0-1, 2 on rank 2",)


@pytest.mark.parametrize(
    ("name", "by_design"),
    [
        *[(name, True) for name in ("LOCAL_RANK", "--local-rank", "SLURM_PROCID", "args.run_id", "cfg.data.seed")],
        *[(name, True) for name in ("OMPI_COMM_WORLD_NODE_RANK", "--log-dir", "CUDA_VISIBLE_DEVICES", "--port")],
        *[(name, False) for name in ("--lr", "args.batch_size", "MASTER_PORT", "OMP_NUM_THREADS", "WORLD_SIZE")],
        *[(name, False) for name in ("OMPI_MCA_btl_tcp_if_include", "NCCL_ALGO", "cfg.width", "--data-path")],
    ],
)
def test_names(name: str, by_design: bool) -> None:
    assert (differs_by_design(name) is not None) is by_design
