"""The beds that the tests of the fleet stand on do what they say: hosts, their faults, what carries commands there."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_kubectl import Pods
from tests.support.polling import until
from tests.support.testbeds import ssh
from tests.support.testbeds.hosts import Host
from tests.support.testbeds.network import Node
from tests.support.testbeds.slurm import Slurm, require_slurm, slurm_testbed

ECHO = "import sys\nfor line in sys.stdin: print('got', line, end='', flush=True)\nprint('eof', flush=True)"


@pytest.fixture(scope="module")
def bed() -> Iterator[ssh.SshTestbed]:
    ssh.require()
    with ssh.ssh_testbed(hosts=2) as bed:
        yield bed


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    require_slurm()
    with slurm_testbed() as slurm:
        yield slurm


class TestSsh:
    def test_each_host_is_reached_and_is_one_of_its_own(self, bed: ssh.SshTestbed) -> None:
        for index, host in enumerate(bed.hosts):
            said = bed.ssh(index, "hostname; hostname -i; ls -d /proc/[1-9]*")
            name, address, *processes = said.stdout.split()
            assert (name, address) == (f"node-{index + 1}", host.address), said
            assert "/proc/1" in processes
            assert len(processes) < 15, "the processes of the machine are seen"

    def test_plain_hangdoc_is_there(self, bed: ssh.SshTestbed) -> None:
        assert bed.ssh(0, "hangdoc --version").stdout == bed.hangdoc("--version").stdout != ""

    def test_killed_sshd_ends_the_session_and_comes_back(self, bed: ssh.SshTestbed) -> None:
        session = bed.start("ssh", "node-1", "echo up; sleep 60", stdout=subprocess.PIPE, text=True)
        assert session.stdout is not None
        assert session.stdout.readline() == "up\n"
        bed.stop(0)
        assert session.wait(5) == 255
        refused = bed.ssh(0, "true")
        assert (refused.returncode, "Connection refused" in refused.stderr) == (255, True), refused
        bed.serve(0)
        assert bed.ssh(0, "true").returncode == 0

    def test_frozen_session_says_nothing_until_it_thaws(self, bed: ssh.SshTestbed) -> None:
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
        session = bed.start("ssh", "node-2", f"{sys.executable} -S -c {ECHO!r}".replace("\\n", "\n"), **streams)
        assert session.stdin is not None
        assert session.stdout is not None
        session.stdin.write(b"first\n")
        assert session.stdout.readline() == b"got first\n"
        bed.freeze(1)
        session.stdin.write(b"second\n")
        time.sleep(0.3)
        assert session.poll() is None
        assert {process.status() for process in bed.sessions(1)} == {"stopped"}
        bed.thaw(1)
        assert session.stdout.readline() == b"got second\n"
        session.stdin.close()
        assert session.stdout.read() == b"eof\n"

    def test_cut_host_answers_nobody_until_it_is_mended(self, bed: ssh.SshTestbed) -> None:
        bed.cut(1)
        with pytest.raises(subprocess.TimeoutExpired):
            bed.ssh(1, "true", timeout=1)
        assert bed.ssh(0, "true").returncode == 0
        bed.mend(1)
        # The kernel may refuse a connection at once for some time: it remembers that nobody answered its ARP requests.
        until(lambda: bed.ssh(1, "true").returncode == 0)


class TestSlurm:
    def test_srun_runs_on_both_nodes(self, slurm: Slurm) -> None:
        done = slurm.run(
            "srun", "-N2", "sh", "-c", "echo $SLURMD_NODENAME $SLURM_PROCID $SLURM_NTASKS; hangdoc --version"
        )
        lines = done.stdout.splitlines()
        assert sorted(line for line in lines if line.startswith("n")) == ["n1 0 2", "n2 1 2"], done
        assert sum(line.startswith("hangdoc") for line in lines) == 2

    def test_a_step_beside_another_reads_its_stdin_to_the_end(self, slurm: Slurm) -> None:
        job = slurm.allocate()
        busy = slurm.start("srun", "--jobid", str(job), "-N2", "sleep", "60")
        beside = ("srun", "--overlap", "--jobid", str(job), "--nodes=1", "--ntasks=1", "--nodelist", "n2")
        with slurm.start(*beside, sys.executable, "-S", "-c", ECHO, stdin=-1, stdout=-1, text=True) as echo:
            assert echo.stdin is not None
            assert echo.stdout is not None
            echo.stdin.write("look\n")
            echo.stdin.flush()
            assert echo.stdout.readline() == "got look\n"
            echo.stdin.close()
            assert echo.stdout.read() == "eof\n"
        assert busy.poll() is None
        assert slurm.run("squeue", "-h", "-j", str(job), "-o", "%N").stdout == "n[1-2]\n"


class TestKubectl:
    def kubectl(self, pods: Pods, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = (str(pods.folder / "bin" / "kubectl"), *arguments)
        return subprocess.run(command, env=pods.environment(), input=stdin, capture_output=True, text=True)

    @pytest.fixture
    def pods(self, tmp_path: Path) -> Pods:
        pods = Pods(tmp_path, {"w-0": ["env", "POD=w-0"], "w-1": ["env", "POD=w-1"]}, phases={"w-1": "Succeeded"})
        pods.environment()
        return pods

    def test_pods_are_listed(self, pods: Pods) -> None:
        done = self.kubectl(pods, "get", "pods", "--selector", "app=train", "--namespace", "ml", "-o", "json")
        assert '"name": "w-1"' in done.stdout
        running = ("--field-selector", "status.phase=Running", "--output", "jsonpath={.items[*].metadata.name}")
        named = self.kubectl(pods, "get", "pods", "--selector", "app=train", "--namespace", "ml", *running)
        assert named.stdout == "w-0"
        none = self.kubectl(pods, "get", "pods", "--selector=app=other", "--namespace=ml", "-o", "json")
        assert (none.returncode, '"items": []' in none.stdout) == (0, True)

    def test_command_runs_in_its_pod_with_stdin(self, pods: Pods) -> None:
        line = ("exec", "-i", "w-0", "--namespace", "ml", "--container", "trainer", "--", "sh", "-c", "cat; echo $POD")
        assert self.kubectl(pods, *line, stdin="look\n").stdout == "look\nw-0\n"
        assert pods.calls() == [list(line)]

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            (["exec", "-i", "-t", "w-0", "-n", "ml", "--", "true"], "unrecognized arguments: -t"),
            (["exec", "-i", "w-0", "-n", "ml", "sh", "--json"], "unrecognized arguments"),
            (["exec", "-i", "w-0", "--", "true"], '"w-0" not found'),
            (["exec", "-i", "w-0", "-n", "ml", "-c", "sidecar", "--", "true"], "container sidecar is not valid"),
            (["exec", "-i", "w-1", "-n", "ml", "--", "true"], "current phase is Succeeded"),
            (["delete", "pods"], "invalid choice"),
        ],
    )
    def test_all_else_is_refused(self, pods: Pods, arguments: list[str], why: str) -> None:
        done = self.kubectl(pods, *arguments)
        assert done.returncode == 1
        assert why in done.stderr


def test_host_that_is_not_set_apart_is_its_network_only() -> None:
    assert Host("node-1", Node("bed-0", "10.77.0.1")).command("true") == ["ip", "netns", "exec", "bed-0", "true"]
