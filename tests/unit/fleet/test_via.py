"""Which hosts, and what is started there."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangdoc.errors import HangdocError
from hangdoc.fleet.via import Wish, hosts_of, way_of


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Schedulers that say what the test wants (mocks: the real Slurm is in tests/integration/test_fleet_slurm.py)."""
    for name in ("srun", "squeue", "kubectl"):
        (tmp_path / name).write_text(
            f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\ncat {tmp_path}/{name}.says 2>/dev/null; true\n'
        )
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "hosts"),
    [("n[1-3]", ["n1", "n2", "n3"]), ("a,b", ["a", "b"]), ("10.77.0.[1-2]", ["10.77.0.1", "10.77.0.2"])],
)
def test_node_sets(text: str, hosts: list[str]) -> None:
    assert hosts_of(Wish(nodes=text)) == hosts


@pytest.mark.parametrize("text", ["node[1-", "", "@no-such-source:1"])
def test_what_is_no_node_set_is_wrong_usage(text: str) -> None:
    with pytest.raises(HangdocError) as raised:
        hosts_of(Wish(nodes=text))
    assert raised.value.code == 64


def test_the_nodes_of_a_slurm_job_are_a_group(commands: Path) -> None:
    (commands / "squeue.says").write_text("n[1-2]\n")
    assert hosts_of(Wish(nodes="@slurmjob:7,n9")) == ["n1", "n2", "n9"]
    assert "--jobs 7" in (commands / "asked").read_text()


def test_ssh_is_the_sites_own_and_gives_up_on_a_dead_way() -> None:
    way = way_of(Wish(nodes="n1", agent="sudo hangdoc"))
    assert way.remote
    assert way.command("n1") == "sudo hangdoc agent"
    assert "ServerAliveInterval" in str(way.options["ssh_options"])
    assert way.options["connect_timeout"] == 5


def test_the_agents_command_may_name_the_host() -> None:
    assert way_of(Wish("local", agent="ip netns exec %h hangdoc")).command("a b") == "ip netns exec 'a b' hangdoc agent"


def test_srun_takes_the_nodes_of_the_job(commands: Path) -> None:
    (commands / "squeue.says").write_text("n[1-2]\n")
    wish = Wish("srun", job="7")
    assert hosts_of(wish) == ["n1", "n2"]
    words = way_of(wish).command("n2").split()
    assert words[:4] == ["exec", "srun", "--jobid", "7"]
    assert "--overlap" in words
    assert words[-4:] == ["--nodelist", "n2", "hangdoc", "agent"]


def test_within_a_slurm_job_its_number_is_known(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "9")
    assert " --jobid 9 " in way_of(Wish("srun")).command("n1")


def test_kubectl_takes_the_running_pods_of_a_selector(commands: Path) -> None:
    (commands / "kubectl.says").write_text("train-0 train-1\n")
    wish = Wish("kubectl", selector="app=train", namespace="ml", container="main")
    assert hosts_of(wish) == ["train-0", "train-1"]
    assert (
        "--selector app=train --namespace ml --field-selector status.phase=Running" in (commands / "asked").read_text()
    )
    command = way_of(wish).command("train-1")
    assert command == "exec kubectl exec -i train-1 --namespace ml --container main -- hangdoc agent"


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        (Wish("ssh"), "--nodes"),
        (Wish("srun"), "--jobid"),
        (Wish("kubectl"), "--selector"),
        (Wish("kubectl", selector="app=x"), "no running pod"),
        (Wish("srun", job="7"), "no nodes yet"),
    ],
)
def test_what_is_missing_is_said(commands: Path, wish: Wish, says: str) -> None:
    with pytest.raises(HangdocError, match=says):
        hosts_of(wish)


def test_a_command_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HangdocError, match="no `srun`"):
        way_of(Wish("srun", job="7"))
