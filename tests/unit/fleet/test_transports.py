"""Which hosts, and what is started there."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hangdoc.errors import HangdocError
from hangdoc.fleet.transports import FleetOptions, hosts_of, transport_of


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Schedulers that say what the test wants (mocks: the real Slurm is in tests/live/fleet/test_slurm.py)."""
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
    assert hosts_of(FleetOptions(nodes=text)) == hosts


@pytest.mark.parametrize("text", ["node[1-", "", "@no-such-source:1"])
def test_an_invalid_node_set_is_a_usage_error(text: str) -> None:
    with pytest.raises(HangdocError) as raised:
        hosts_of(FleetOptions(nodes=text))
    assert raised.value.code == 64


def test_the_nodes_of_a_slurm_job_are_a_group(commands: Path) -> None:
    (commands / "squeue.says").write_text("n[1-2]\n")
    assert hosts_of(FleetOptions(nodes="@slurmjob:70,n9")) == ["n1", "n2", "n9"]  # ClusterShell keeps what it asked
    assert "--jobs 70" in (commands / "asked").read_text()


def test_ssh_uses_the_sites_configuration_and_gives_up_on_a_dead_host() -> None:
    way = transport_of(FleetOptions(nodes="n1", agent="sudo hangdoc"))
    assert way.remote
    assert way.command("n1") == "sudo hangdoc agent"
    assert "ServerAliveInterval" in str(way.options["ssh_options"])
    assert way.options["connect_timeout"] == 5


def test_the_agents_command_may_name_the_host() -> None:
    assert (
        transport_of(FleetOptions("local", agent="ip netns exec %h hangdoc")).command("a b")
        == "ip netns exec 'a b' hangdoc agent"
    )


def test_srun_takes_the_nodes_of_the_job(commands: Path) -> None:
    (commands / "squeue.says").write_text("n[1-2]\n")
    options = FleetOptions("srun", job="7")
    assert hosts_of(options) == ["n1", "n2"]
    words = transport_of(options).command("n2").split()
    assert words[:4] == ["exec", "srun", "--jobid", "7"]
    assert "--overlap" in words
    assert words[-4:] == ["--nodelist", "n2", "hangdoc", "agent"]


def test_inside_a_slurm_job_its_id_is_known(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "9")
    assert " --jobid 9 " in transport_of(FleetOptions("srun")).command("n1")


def test_kubectl_takes_the_running_pods_of_a_selector(commands: Path) -> None:
    (commands / "kubectl.says").write_text("train-0 train-1\n")
    options = FleetOptions("kubectl", selector="app=train", namespace="ml", container="main")
    assert hosts_of(options) == ["train-0", "train-1"]
    assert (
        "--selector app=train --namespace ml --field-selector status.phase=Running" in (commands / "asked").read_text()
    )
    command = transport_of(options).command("train-1")
    assert command == "exec kubectl exec -i train-1 --namespace ml --container main -- hangdoc agent"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (FleetOptions("ssh"), "--nodes"),
        (FleetOptions("srun"), "--jobid"),
        (FleetOptions("kubectl"), "--selector"),
        (FleetOptions("kubectl", selector="app=x"), "no running pod"),
        (FleetOptions("srun", job="7"), "no nodes yet"),
    ],
)
def test_a_missing_option_is_reported(commands: Path, options: FleetOptions, says: str) -> None:
    with pytest.raises(HangdocError, match=says):
        hosts_of(options)


def test_a_missing_command_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HangdocError, match="`srun` is not installed"):
        transport_of(FleetOptions("srun", job="7"))


# --- what a shell or another program's options must not see ------------------------------------------

EVIL = (
    "$(touch {0})",
    "`touch {0}`",
    "1;touch {0}",
    "1|touch {0}",
    "1 touch {0}",
    "1\ntouch {0}",
    "1>{0}",
    "-oX={0}",
    "'{0}",
)


def start(options: FleetOptions) -> None:
    """As a fleet does, without a host."""
    for host in hosts_of(options):
        subprocess.run(transport_of(options).command(host), shell=True, timeout=10, check=False)


@pytest.mark.parametrize("evil", EVIL)
@pytest.mark.parametrize(
    "options",
    [
        FleetOptions(nodes="{0}"),
        FleetOptions(nodes="n1,{0}"),
        FleetOptions(nodes="@slurmjob:{0}"),
        FleetOptions(nodes="@{0}"),
        FleetOptions("local", nodes="{0}"),
        FleetOptions("srun", job="{0}"),
        FleetOptions("srun", nodes="n1", job="{0}"),
        FleetOptions("srun", nodes="{0}", job="7"),
        FleetOptions("kubectl", selector="app=x", namespace="{0}"),
        FleetOptions("kubectl", selector="app=x", container="{0}"),
        FleetOptions("kubectl", nodes="{0}"),
    ],
    ids=str,
)
def test_shell_syntax_in_an_option_is_a_usage_error(commands: Path, options: FleetOptions, evil: str) -> None:
    canary = commands / "canary"
    values = {
        name: getattr(options, name) for name in ("nodes", "job", "namespace", "container") if getattr(options, name)
    }
    told = replace(options, **{name: value.replace("{0}", evil.format(canary)) for name, value in values.items()})
    with pytest.raises(HangdocError) as raised:
        start(told)
    assert raised.value.code == 64
    assert not canary.exists()
    assert not (commands / "asked").exists(), "nothing was started"


@pytest.mark.parametrize("evil", ["--as=root", "-A", "a=$(touch x)", "a=b;c", "a=`b`", ""])
def test_a_selector_is_one(commands: Path, evil: str) -> None:
    with pytest.raises(HangdocError) as raised:
        hosts_of(FleetOptions("kubectl", selector=evil))
    assert raised.value.code == 64
    assert not (commands / "asked").exists()


@pytest.mark.parametrize("selector", ["app=train", "app==train,tier!=web", "!old", "tier in (a, b)", "x.y/z-1=A_b.c"])
def test_a_selector_may_be_all_that_kubernetes_knows(commands: Path, selector: str) -> None:
    (commands / "kubectl.says").write_text("train-0\n")
    assert hosts_of(FleetOptions("kubectl", selector=selector)) == ["train-0"]


@pytest.mark.parametrize("job", ["7", "123_4", "123+1"])
def test_jobs_of_slurm(commands: Path, job: str) -> None:
    (commands / "squeue.says").write_text("n[1-2]\n")
    assert hosts_of(FleetOptions("srun", job=job)) == hosts_of(FleetOptions(nodes=f"@slurmjob:{job}")) == ["n1", "n2"]


@pytest.mark.parametrize(
    ("number", "says"), list(enumerate(["n1;touch x", "-oProxyCommand=x", "$(x)", "n1 -lroot"], 801))
)  # ClusterShell remembers the nodes of a group
def test_names_from_a_scheduler_are_checked(commands: Path, number: int, says: str) -> None:
    (commands / "squeue.says").write_text(says + "\n")
    (commands / "kubectl.says").write_text(says + "\n")
    for options in (
        FleetOptions("srun", job="7"),
        FleetOptions("kubectl", selector="a=b"),
        FleetOptions(nodes=f"@slurmjob:{number}"),
    ):
        with pytest.raises(HangdocError) as raised:
            hosts_of(options)
        assert raised.value.code == 64


def test_the_job_id_from_the_environment_is_checked(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7;touch x")
    with pytest.raises(HangdocError, match="SLURM_JOB_ID") as raised:
        transport_of(FleetOptions("srun", nodes="n1"))
    assert raised.value.code == 64


@pytest.mark.parametrize("agent", ["hangdoc-agent", "sudo -n /opt/hangdoc/bin/hangdoc-agent"])
def test_a_command_that_can_only_be_an_agent_gets_no_argument(agent: str) -> None:
    for verb in ("agent", "doctor --json"):
        assert transport_of(FleetOptions(nodes="n1", agent=agent), verb).command("n1") == agent


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone trusts nobody")
def test_root_runs_no_command_that_other_users_can_change(commands: Path) -> None:
    os.chown(commands / "srun", 65534, 65534)
    with pytest.raises(HangdocError, match="other users can change"):
        transport_of(FleetOptions("srun", job="7"))
