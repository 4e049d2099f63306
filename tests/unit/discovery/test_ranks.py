"""Discovery on real processes: each case is a small process tree and the ranks expected in it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hangdoc.discovery.ranks import discover, same_process
from hangdoc.evidence import Target
from hangdoc.system import procfs
from tests.support.fake_ranks import GLOO, STORE, node, running
from tests.support.paths import ROOT
from tests.support.polling import until

# Imports as root, because another user may not read this checkout, then becomes user and group 64999.
AS_OTHER_USER = """
import os, sys
from hangdoc.discovery.ranks import discover
from hangdoc.doctor.checks import _hidden
discover()
os.setgroups([]), os.setgid(64999), os.setuid(64999)
"""


def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def worker(rank: int, master: int, world: int = 2, run: str = "none") -> dict[str, str]:
    """The environment that torchrun gives."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(master),
        "TORCHELASTIC_RUN_ID": run,
    }


def plain(rank: int, master: int = 29500) -> dict[str, str]:
    return {name: value for name, value in worker(rank, master).items() if name != "TORCHELASTIC_RUN_ID"}


@dataclass
class Case:
    id: str
    tree: dict[str, Any]
    ranks: dict[str, int | None]
    job: str | None = None
    launcher: str | None = None
    launched_by: str | None = None
    children: dict[str, set[str]] = field(default_factory=dict)
    world: int | None = None
    jobs: int = 1


SLURM = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
P = [port() for _ in range(13)]
LIGHTNING = {"NODE_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(P[12])}

CASES = [
    Case(
        "ranks that a program of hangdoc has started, as `hangdoc demo` does",
        node(
            "main",
            [
                node(
                    "launcher", [node("r0", env=plain(0, P[0]), torch=True), node("r1", env=plain(1, P[0]), torch=True)]
                ),
            ],
            program="bin/hangdoc",
        ),
        {"r0": 0, "r1": 1},
        world=2,
    ),
    Case(
        "srun, and below it a rank that `hangdoc watch -- COMMAND` has started",
        node(
            "supervisor",
            [node("watcher", [node("r0")], program="bin/hangdoc", args=("watch", "--", "train.py"))],
            program="bin/hangdoc",
            args=("watch", "--", "train.py"),
            env=SLURM,
        ),
        {"r0": 0},
        job="77.0",
    ),
    Case(
        "a main process that has started the other rank and waits for it",
        node(
            "main",
            [node("r1", env={**plain(1, P[11]), "LOCAL_RANK": "1"}, torch=True, joins=P[11])],
            threads=STORE,
            torch=True,
            serves=P[11],
        ),
        {"main": 0, "r1": 1},
        world=2,
    ),
    Case(
        "torchrun with dataloader workers and a compile worker",
        node(
            "agent",
            [
                node("r0", env=worker(0, 29500), threads=GLOO, torch=True, forks=["w0", "w1"]),
                node(
                    "r1",
                    [node("compiler", program="torch/_inductor/compile_worker/__main__.py", torch=True, forks=["job"])],
                    env=worker(1, 29500),
                    threads=GLOO,
                    torch=True,
                ),
            ],
            program="torchrun",
            threads=STORE,
            torch=True,
        ),
        {"r0": 0, "r1": 1},
        job="none",
        launcher="torchrun",
        launched_by="agent",
        children={"r0": {"w0", "w1"}, "r1": {"compiler", "job"}},
        world=2,
    ),
    Case(
        "torchrun before any process group, its agent inside a Slurm task",
        node(
            "sh",
            [
                node(
                    "agent",
                    [node("r0", env=worker(0, 29500), forks=["w"]), node("r1", env=worker(1, 29500), torch=True)],
                    program=["-m", "torch.distributed.run"],
                    torch=True,
                )
            ],
            shell=True,
            env=SLURM,
        ),
        {"r0": 0, "r1": 1},
        job="77.0",
        launcher="torchrun",
        children={"r0": {"w"}},
    ),
    Case(
        "an agent that has a RANK itself, as on Kubeflow",
        node("agent", [node(f"r{r}", env=worker(r, 29500)) for r in (0, 1)], program="torchrun", env={"RANK": "0"}),
        {"r0": 0, "r1": 1},
    ),
    Case(
        "two jobs with one run id",
        node(
            "sh",
            [
                node("a", [node("a0", env=worker(0, P[0])), node("a1", env=worker(1, P[0]))], program="torchrun"),
                node("b", [node("b0", env=worker(0, P[1])), node("b1", env=worker(1, P[1]))], program="torchrun"),
            ],
        ),
        {"a0": 0, "a1": 1, "b0": 0, "b1": 1},
        jobs=2,
    ),
    Case(
        "two agents of one job",
        node(
            "sh",
            [
                node("a", [node("r0", env=worker(0, 29500, run="mine"))], program="torchrun"),
                node("b", [node("r1", env=worker(1, 29500, run="mine"))], program="torchrun"),
            ],
        ),
        {"r0": 0, "r1": 1},
        job="mine",
    ),
    Case(
        "RANK set by hand, from a shell that keeps it",
        node("sh", [node("r3", env={}, torch=True, forks=["w"])], shell=True, env=plain(3)),
        {"r3": 3},
        job="127.0.0.1:29500",
        launcher="plain",
        children={"r3": {"w"}},
    ),
    Case(
        "a script in a folder named as a helper",
        node("r0", program="hangdoc/wandb/torchrun/train.py", env=plain(0)),
        {"r0": 0},
    ),
    Case(
        "a wrapper in Python that has torch loaded",
        node("wrapper", [node("r0", torch=True, threads=GLOO, program="real.py")], torch=True, env=plain(0)),
        {"r0": 0},
    ),
    Case(
        "the same before the process group",
        node("wrapper", [node("r0", torch=True, program="real.py", forks=["w"])], torch=True, env=plain(0)),
        {"r0": 0},
        children={"r0": {"w"}},
    ),
    Case(
        "a rank that runs a tool in Python",
        node("r0", [node("tool", program="prepare.py")], torch=True, env=plain(0)),
        {"r0": 0},
        children={"r0": {"tool"}},
    ),
    Case(
        "accelerate launch in a Slurm task",
        node("launch", [node("r0", torch=True)], torch=True, program="accelerate", env=SLURM),
        {"r0": 0},
        launcher="slurm",
        job="77.0",
        launched_by="launch",
    ),
    Case(
        "MPI under a launcher of that name",
        node(
            "mpi",
            [node(f"r{r}", env={"OMPI_COMM_WORLD_RANK": str(r), "OMPI_COMM_WORLD_SIZE": "2"}) for r in (0, 1)],
            program="mpirun",
        ),
        {"r0": 0, "r1": 1},
        launcher="mpi",
        world=2,
    ),
    Case(
        "PMI",
        node("sh", [node(f"r{r}", env={"PMI_RANK": str(r), "PMI_SIZE": "2"}) for r in (0, 1)]),
        {"r0": 0, "r1": 1},
        launcher="mpi",
        world=2,
    ),
    Case(
        "multiprocessing.spawn",
        node(
            "main",
            spawns=[
                node("r0", threads=[*GLOO, *STORE], torch=True, serves=P[2], forks=["w"]),
                node("r1", threads=GLOO, torch=True, joins=P[2]),
                node("r2", threads=GLOO, torch=True, joins=P[2]),
            ],
            torch=True,
        ),
        {"r0": 0, "r1": 1, "r2": 2},
        launcher="spawn",
        launched_by="main",
        children={"r0": {"w"}},
        world=3,
    ),
    Case(
        "multiprocessing.spawn, still waiting for one rank",
        node(
            "main",
            spawns=[
                node("r0", threads=STORE, torch=True, serves=P[3]),
                node("r1", torch=True, joins=P[3]),
                node("r2", torch=True),
            ],
            torch=True,
        ),
        {"r0": 0, "r1": 1, "r2": 2},
        world=3,
    ),
    Case(
        "multiprocessing.spawn in a Slurm task",
        node(
            "main",
            spawns=[
                node("r0", threads=[*GLOO, *STORE], torch=True, serves=P[4]),
                node("r1", threads=GLOO, torch=True, joins=P[4]),
            ],
            torch=True,
            env=SLURM,
        ),
        {"r0": 0, "r1": 1},
        job="77.0",
        launcher="spawn",
    ),
    Case(
        "multiprocessing.spawn where the server was not made first: the order proves nothing",
        node(
            "main",
            spawns=[
                node("x", threads=GLOO, torch=True, joins=P[5]),
                node("y", threads=GLOO, torch=True, joins=P[5]),
                node("r0", threads=[*GLOO, *STORE], torch=True, serves=P[5]),
            ],
            torch=True,
        ),
        {"r0": 0, "x": None, "y": None},
    ),
    Case(
        "RANK set after the start, two ranks",
        node(
            "sh",
            [
                node("one", threads=GLOO, torch=True, joins=P[6]),
                node("zero", threads=[*GLOO, *STORE], torch=True, serves=P[6], forks=["w"]),
            ],
        ),
        {"zero": 0, "one": 1},
        job=f"127.0.0.1:{P[6]}",
        children={"zero": {"w"}},
        world=2,
    ),
    Case(
        "RANK set after the start, three ranks",
        node(
            "sh",
            [
                node("zero", threads=[*GLOO, *STORE], torch=True, serves=P[7]),
                node("x", threads=GLOO, torch=True, joins=P[7]),
                node("y", threads=GLOO, torch=True, joins=P[7]),
            ],
        ),
        {"zero": 0, "x": None, "y": None},
    ),
    Case(
        "Lightning: the main process is rank 0, its children are told LOCAL_RANK alone",
        node(
            "main",
            [
                node(
                    "r1",
                    env={"LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(P[8])},
                    threads=GLOO,
                    torch=True,
                    joins=P[8],
                    forks=["w1"],
                )
            ],
            threads=[*GLOO, *STORE],
            torch=True,
            serves=P[8],
            forks=["w0"],
        ),
        {"main": 0, "r1": 1},
        job=f"127.0.0.1:{P[8]}",
        children={"main": {"w0"}, "r1": {"w1"}},
        world=2,
    ),
    Case(
        "Lightning: a pool of the main process inherits what that has written into its environment",
        node(
            "main",
            [node("r1", env={**LIGHTNING, "LOCAL_RANK": "1"}, threads=GLOO, torch=True, joins=P[12])],
            threads=[*GLOO, *STORE],
            torch=True,
            serves=P[12],
            spawns=[node(f"p{i}", env={**LIGHTNING, "LOCAL_RANK": "0"}, torch=True) for i in (0, 1)],
        ),
        {"main": 0, "r1": 1},
        children={"main": {"p0", "p1"}},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_finds_the_ranks_and_nobody_else(case: Case, tmp_path: Path) -> None:
    with running(case.tree, tmp_path) as pids:
        names = {pid: name for name, pid in pids.items()}
        found = {names[t.pid]: t for t in discover().targets if t.pid in names}
        given = discover([pids[case.tree["name"]]])  # a launcher's PID stands for its ranks
    assert {name: target.rank for name, target in found.items()} == case.ranks
    assert {names[target.pid] for target in given.targets} == set(case.ranks)
    assert given.problems == ()
    assert len({target.job for target in given.targets}) == case.jobs
    for target in given.targets:
        assert case.job in (None, target.job)
        assert case.launcher in (None, target.launcher)
        assert case.launched_by is None or target.launcher_pid == pids[case.launched_by]
        assert case.world in (None, target.world_size)
        kids = {names[pid] for pid in target.children if pid in names}
        assert kids == case.children.get(names[target.pid], set())


NO_RANKS = [
    node("notebook", torch=True, forks=["w"]),
    node("server", [node("a", torch=True, joins=P[9]), node("b", torch=True, joins=P[9])], serves=P[9], torch=True),
    node("pool", spawns=[node("p0", torch=True), node("p1", torch=True)], torch=True),
    node("sh", [node("hangdoc-itself", program="bin/hangdoc")], shell=True, env=SLURM),
]


@pytest.mark.parametrize("tree", NO_RANKS, ids=lambda tree: tree["name"])
def test_what_only_resembles_a_job_is_none(tree: dict[str, Any], tmp_path: Path) -> None:
    with running(tree, tmp_path) as pids:
        assert not {t.pid for t in discover().targets} & set(pids.values())


def test_a_dead_sibling_keeps_its_number(tmp_path: Path) -> None:
    tree = node(
        "main",
        spawns=[
            node("r0", threads=[*GLOO, *STORE], torch=True, serves=P[10]),
            node("r1", threads=GLOO, torch=True, joins=P[10], dies=True),
            node("r2", threads=GLOO, torch=True, joins=P[10]),
        ],
        torch=True,
    )
    with running(tree, tmp_path) as pids:
        wait_for_state(pids["r1"], "Z")
        assert {t.pid: t.rank for t in discover([pids["main"]]).targets} == {pids["r0"]: 0, pids["r2"]: 2}


@pytest.mark.parametrize(("backend", "waiting"), [("static", {"waits"}), ("c10d", {"waits", "had_rank"})])
def test_a_launcher_whose_rank_has_ended_waits_only_in_a_rendezvous_that_forms_again(
    backend: str, waiting: set[str], tmp_path: Path
) -> None:
    options = ["--nnodes", "3", "--rdzv-backend", backend, "--rdzv-endpoint", f"127.0.0.1:{P[1]}"]
    launcher: dict[str, Any] = {"program": ["-m", "torch.distributed.run"], "args": options, "torch": True}
    ended = node("r1", env=worker(1, P[1], 3), torch=True, dies=True)
    with running(node("root", [node("waits", **launcher), node("had_rank", [ended], **launcher)]), tmp_path) as pids:
        wait_for_state(pids["r1"], "Z")
        names = {pid: name for name, pid in pids.items()}
        assert {names[t.pid] for t in discover([pids["root"]]).targets} == waiting


# --- PIDs that the user gave ----------------------------------------------------------------------


def wait_for_state(pid: int, state: str) -> None:
    until(lambda: procfs.stat(pid), lambda found: found and found.state == state)


def test_given_pids_are_explained(tmp_path: Path) -> None:
    tree = node(
        "sh",
        [
            node("r0", env=plain(0), forks=["w"]),
            node("lone", program="lone.py"),
            node("dead", dies=True),
            node("torchrun", program="torchrun"),
        ],
    )
    sleeper = subprocess.Popen(["sleep", "30"])
    try:
        with running(tree, tmp_path) as pids:
            wait_for_state(pids["dead"], "Z")
            asked = [pids[name] for name in ("w", "lone", "lone", "dead", "torchrun")]
            found = discover([*asked, sleeper.pid, 2**22 + 1, 2])
    finally:
        sleeper.kill()
        sleeper.wait()
    assert [(t.pid, t.rank) for t in found.targets] == [(pids["r0"], 0), (pids["lone"], None)]
    said = [problem.why for problem in found.problems]
    for part in (
        f"PID {pids['w']} is a helper of the rank with PID {pids['r0']}",
        f"PID {pids['dead']} is a zombie",
        f"PID {pids['torchrun']} (python",
        f"PID {sleeper.pid} (sleep) is not a Python process",
        f"PID {2**22 + 1} does not exist",
        "PID 2 is a kernel thread",
    ):
        assert len([why for why in said if why.startswith(part)]) == 1, part
    assert len(said) == 6


def test_ranks_below_a_process_that_may_come_late(tmp_path: Path) -> None:
    tree = node(
        "sh", [node("lone", program="lone.py", kids=[node("r0", env=plain(0))]), node("torchrun", program="torchrun")]
    )
    with running(tree, tmp_path) as pids:
        found = discover([pids["lone"]], below=True)
        assert ([t.pid for t in found.targets], found.starting) == ([pids["r0"]], ())
        # A launcher may start its ranks yet; of other processes, only those that are asked for as such.
        assert discover([pids["torchrun"]]).starting == (pids["torchrun"],)
        late = discover([pids["torchrun"], os.getpid(), 2**22 + 1], below=True)
        assert {t.pid for t in late.targets} >= {pids["r0"]}  # it is below this process
        assert (late.starting, late.problems) == ((pids["torchrun"],), ())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_process_of_another_user_is_reported(tmp_path: Path) -> None:
    """A user without rights looks at a rank of root."""
    looker = f"{AS_OTHER_USER}print(*[p.why for p in discover([int(sys.argv[1])]).problems], sep='\\n')"
    with running(node("r0", env=plain(0)), tmp_path) as pids:
        answer = subprocess.run(
            [sys.executable, "-c", looker, str(pids["r0"])],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    assert f"PID {pids['r0']} (of user 0) may not be read; run hangdoc as root" in answer.stdout, answer


def test_same_process() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    stat = procfs.stat(child.pid)
    assert stat
    target = Target(child.pid, stat.start_ticks, "here", 0)
    assert same_process(target) is True
    assert same_process(replace(target, start_ticks=stat.start_ticks - 1)) is False  # the PID is another's now
    child.send_signal(signal.SIGSTOP)
    assert same_process(target) is True
    child.kill()
    wait_for_state(child.pid, "Z")
    assert same_process(target) is False
    child.wait()
    assert same_process(target) is False


NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc"]


@pytest.mark.parametrize("tree", ["launcher", "rank 0"])
def test_pid_2_of_a_container_is_no_kernel_thread(tree: str, tmp_path: Path) -> None:
    """A container whose PID 1 has started the launcher, or the ranks: the first child is PID 2."""
    if subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no PID namespace can be made")
    sleeper, launcher = tmp_path / "train.py", tmp_path / "torchrun"
    sleeper.write_text("import time\ntime.sleep(60)\n")
    launcher.write_text(
        "import os, subprocess, sys, time\n"
        "[subprocess.Popen([sys.executable, os.environ['TRAIN']], env=os.environ | {'RANK': n}) for n in '01']\n"
        "time.sleep(60)\n"
    )
    inside = (  # PID 1: what is started first is PID 2
        "import os, subprocess, sys\n"
        "from tests.support.polling import until\n"
        "from hangdoc.discovery.ranks import discover\n"
        "started = [subprocess.Popen([sys.executable, path], env=os.environ | {'RANK': rank} if rank else None)\n"
        "           for path, rank in zip(sys.argv[1::2], sys.argv[2::2])]\n"
        "until(lambda: len(discover().targets) == 2)\n"
        "found = discover()\n"
        "print([(t.rank, t.pid > 0) for t in found.targets], found.absent, [p.why for p in found.problems])\n"
        "print(started[0].pid, [p.why for p in discover([2]).problems])\n"
        "[one.kill() for one in started]\n"
    )
    started = [str(launcher), ""] if tree == "launcher" else [str(sleeper), "0", str(sleeper), "1"]
    done = subprocess.run(
        [*NAMESPACE, sys.executable, "-c", inside, *started],
        env={
            "PATH": os.defpath,
            "PYTHONPATH": str(ROOT),
            **plain(0),
            "RANK": "",
            "TRAIN": str(sleeper),
        },
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout.splitlines() == ["[(0, True), (1, True)] () []", "2 []"], done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount /proc")
@pytest.mark.parametrize("value", ["1", "2", "invisible"])
def test_hidden_processes_are_no_absent_job(value: str, tmp_path: Path) -> None:
    looker = (
        f"{AS_OTHER_USER}"
        "for found in (discover(), discover([int(sys.argv[1])])):\n"
        "    print([p.why for p in found.problems], found.absent)\n"
        "print(_hidden())\n"
    )
    with running(node("r0", env=plain(0)), tmp_path) as pids:
        script = 'mount -t proc -o "hidepid=$1" proc /proc && exec "$2" -c "$3" "$4"'
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", script, "sh", value, sys.executable, looker, str(pids["r0"])],
            cwd=ROOT,
            env={"PATH": os.defpath},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    if "mount" in done.stderr:
        pytest.skip(f"/proc cannot be mounted so: {done.stderr}")
    nothing, given, check = done.stdout.splitlines()
    assert "no training rank is visible: /proc hides processes of other users" in nothing, done
    assert "run hangdoc as root" in nothing
    assert f"PID {pids['r0']} is not visible, but may exist" in given
    assert "ok=False" in check
    assert "hidepid=" in check
