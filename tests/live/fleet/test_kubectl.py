"""`watch --via kubectl` against a stand-in for kubectl: its exact command lines, and the agent behind them.

A pod of the stand-in is a host of its own: its network, host name and processes. The job in them is a real one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.fake_kubectl import Pods
from tests.support.paths import HUNG
from tests.support.testbeds import network
from tests.support.testbeds.hosts import host_testbed, torchrun, with_hangdoc

NAMES = ("trainer-0", "trainer-1")
WHERE = ("--selector", "app=train", "--namespace", "ml")
RUNNING = ("--field-selector", "status.phase=Running", "--output", "jsonpath={.items[*].metadata.name}")


@pytest.fixture(scope="module")
def pods() -> Iterator[Pods]:
    """Two pods with a job that stands still, and one that has ended."""
    network.require()
    with host_testbed(2) as bed:
        path = f"PATH={with_hangdoc(bed.folder)}"
        prefixes = {name: host.command("env", path) for name, host in zip(NAMES, bed.hosts, strict=True)}
        pods = Pods(bed.folder, {**prefixes, "trainer-old": []}, phases={"trainer-old": "Succeeded"})
        with torchrun(bed.hosts, HUNG / "leaves_early.py") as trial:
            trial.wait_log("step 10", 90)
            yield pods


def hangdoc(pods: Pods, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line, and what it asked of kubectl."""
    pods.forget_calls()
    env = {**os.environ, **pods.environment()}
    command = shutil.which("hangdoc", path=with_hangdoc(pods.folder))
    assert command is not None
    words = (command, "watch", "--via", "kubectl", "--once", "--json", *arguments)
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=120)


def test_pods_of_a_selector_are_found_and_judged(pods: Pods) -> None:
    done = hangdoc(pods, *WHERE, "--container", "trainer")
    assert done.returncode == 2, done
    said = json.loads(done.stdout)
    assert {line["rank"]: line["host"] for line in said["job"]["ranks"]} == dict(enumerate(NAMES)), done
    best = said["findings"][0]
    assert (best["playbook"], best["culprits"][0]["host"]) == ("uneven-batches", "trainer-1"), done
    into = ("--namespace", "ml", "--container", "trainer", "--", "hangdoc", "agent")
    execs = [["exec", "-i", name, *into] for name in NAMES]
    assert pods.calls()[0] == ["get", "pods", *WHERE, *RUNNING]
    assert sorted(pods.calls()[1:]) == execs


def test_named_pods_in_the_context_s_namespace(pods: Pods) -> None:
    """Without --namespace and --container kubectl chooses: it is told neither."""
    done = hangdoc(pods, "--nodes", "trainer-0", "--agent-command", "env DEBUG=1 hangdoc")
    assert pods.calls() == [["exec", "-i", "trainer-0", "--", "env", "DEBUG=1", "hangdoc", "agent"]]
    assert 'pods "trainer-0" not found' in done.stderr, done


def test_no_pod_is_said(pods: Pods) -> None:
    done = hangdoc(pods, "--selector", "app=other", "--namespace", "ml")
    assert (done.returncode, "app=other" in done.stderr) == (3, True), done
