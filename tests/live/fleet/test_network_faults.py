"""What a network does to a job of three hosts, told by `watch --nodes` over the sshds of these hosts.

The jobs are the training scripts of the playbooks' reproducers; the hosts, and what happens to them, are of here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import pytest

from hangdoc.demo import reproducer
from hangdoc.demo.harness import Trial
from tests.support import reproducers
from tests.support.paths import HUNG
from tests.support.testbeds import ssh
from tests.support.testbeds.hosts import STORE_PORT, Host, torchrun
from tests.support.testbeds.ssh import SshTestbed

pytestmark = pytest.mark.network

HOSTS = ("10.77.0.1", "10.77.0.2", "10.77.0.3")
GATEWAY = "10.77.0.254"
LOSES = ("-m", "statistic", "--mode", "random", "--probability", "0.2")
THIRD = 2  # the host that most faults concern, counted from 0
SHAPER = ("tbf", "rate", "2mbit", "burst", "16kb", "limit", "400kb")
UNTOLD = ("-u", "GLOO_SOCKET_IFNAME")
AGAIN = ("sh", "-c", 'until "$@"; do sleep 0.5; done', "loop")  # a supervisor that knows nothing of the other hosts
PATIENCE_S = 150.0  # on a busy machine, a rank that starts again and again loads torch for most of a minute

Fault = Callable[[SshTestbed], AbstractContextManager[None]]


# --- what goes wrong, until the context ends; every host is still reached by ssh from the collector ----------------


@contextmanager
def nothing(_: SshTestbed) -> Iterator[None]:
    yield


@contextmanager
def firewall(*rules: tuple[int, tuple[str, ...]], bed: SshTestbed) -> Iterator[None]:
    """So many rules of iptables, each on its host."""
    for index, rule in rules:
        done = bed.hosts[index].run("iptables", "-w", "-A", *rule)
        assert done.returncode == 0, done.stderr
    try:
        yield
    finally:
        for index, rule in rules:
            bed.hosts[index].run("iptables", "-w", "-D", *rule)


def filtered(bed: SshTestbed) -> AbstractContextManager[None]:
    """Nothing passes between the third host and the others of the job."""
    peers = ",".join(HOSTS[:THIRD])
    return firewall(
        (THIRD, ("INPUT", "-s", peers, "-j", "DROP")), (THIRD, ("OUTPUT", "-d", peers, "-j", "DROP")), bed=bed
    )


@contextmanager
def cut_off(bed: SshTestbed) -> Iterator[None]:
    """The interface of the third host is down, for the job and for us."""
    bed.hosts[THIRD].node.link("down")
    try:
        yield
    finally:
        bed.hosts[THIRD].node.link("up")


def lossy(bed: SshTestbed) -> AbstractContextManager[None]:
    """A fifth of what the third host and its peers send one another is lost, and of what the collector sends it."""
    arrives = (THIRD, ("INPUT", "-i", "eth0", *LOSES, "-j", "DROP"))
    leaves = [(index, ("INPUT", "-s", HOSTS[THIRD], *LOSES, "-j", "DROP")) for index in range(THIRD)]
    return firewall(arrives, *leaves, bed=bed)


def closed(bed: SshTestbed) -> AbstractContextManager[None]:
    """Only ssh and the store are let in, on every host."""
    syn = ("INPUT", "-i", "eth0", "-p", "tcp", "--syn", "-m", "multiport", "!", "--dports", f"22,{STORE_PORT}")
    return firewall(*((index, (*syn, "-j", "DROP")) for index in range(len(HOSTS))), bed=bed)


@contextmanager
def shaped(bed: SshTestbed) -> Iterator[None]:
    """The third host sends through a shaper, the agent's evidence too."""
    host = bed.hosts[THIRD]
    assert host.run("tc", "qdisc", "add", "dev", "eth0", "root", *SHAPER).returncode == 0
    try:
        yield
    finally:
        host.run("tc", "qdisc", "del", "dev", "eth0", "root")


@contextmanager
def narrow(bed: SshTestbed) -> Iterator[None]:
    """The third host is behind a second switch, and the line between the two takes 1400 bytes, as no host knows."""
    switch, port = bed.bed.switch, f"port{THIRD}"
    switch.ip("link", "add", "behind", "type", "bridge")
    switch.ip("link", "add", "near", "type", "veth", "peer", "name", "far")
    for link, bridge in (("near", "bridge"), ("far", "behind"), (port, "behind")):
        switch.ip("link", "set", link, "master", bridge, "up")
    for link in ("near", "far"):
        switch.ip("link", "set", link, "mtu", "1400")
    switch.link("up", "behind")
    try:
        yield
    finally:
        switch.ip("link", "set", port, "master", "bridge")
        switch.ip("link", "del", "near")
        switch.ip("link", "del", "behind")


@contextmanager
def containers(bed: SshTestbed) -> Iterator[None]:
    """Each host has a bridge of Docker with a container on it, and a default route that knows no such network."""
    bed.bed.switch.ip("address", "add", f"{GATEWAY}/24", "dev", "bridge")
    for index, host in enumerate(bed.hosts, 1):
        host.node.ip("link", "add", "docker0", "type", "bridge")
        host.node.ip("link", "add", "veth1", "type", "veth", "peer", "name", "guest")
        host.node.ip("link", "set", "veth1", "master", "docker0")
        for name in ("docker0", "veth1", "guest"):
            host.node.link("up", name)
        host.node.ip("address", "add", f"172.17.{index}.1/24", "dev", "docker0")
        host.node.ip("route", "add", "default", "via", GATEWAY, "dev", "eth0")
    try:
        yield
    finally:
        for host in bed.hosts:
            host.node.ip("route", "del", "default")
            host.node.ip("link", "del", "veth1")
            host.node.ip("link", "del", "docker0")
        bed.bed.switch.ip("address", "del", f"{GATEWAY}/24", "dev", "bridge")


@contextmanager
def looped_name(bed: SshTestbed) -> Iterator[None]:
    """The first host's own name stands for loopback there, as Debian's installer leaves it.

    The names of the others stand for a network of the job, above 127.x: of two ranks the one with the lower address
    waits to be called, so among hosts in 10.x, which it can call, such a rank does no harm.
    """
    with ExitStack() as undone:
        for index, host in enumerate(bed.hosts, 1):
            address = f"192.168.77.{index}"
            host.node.ip("address", "add", f"{address}/24", "dev", "eth0")
            undone.callback(host.node.ip, "address", "del", f"{address}/24", "dev", "eth0")
            file = bed.folder / f"hosts-{index}"
            named = f"127.0.1.1 {host.name}.cluster" if index == 1 else address
            file.write_text(f"127.0.0.1 localhost\n{named} {host.name}\n")
            assert host.run("mount", "--bind", str(file), "/etc/hosts").returncode == 0
            undone.callback(host.run, "umount", "/etc/hosts")
        yield


# --- the cases ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A fault, and what must be said of the job."""

    playbook: str
    culprits: tuple[int, ...]
    evidence: tuple[str, ...]
    begins: Fault = nothing  # before the job
    strikes: Fault = nothing  # once it trains
    told: dict[int, tuple[str, ...]] = field(default_factory=dict)  # what a host's torchrun is started through
    reproducer: str = ""  # whose training script runs; empty: the playbook's
    script: str = ""  # under `tests/live/jobs/hung`, in its place
    loud_s: float | None = None  # for a job that never falls silent: judged so long after its first lines
    ranks: tuple[int, ...] = (0, 1, 2)  # who is still there
    status: str | None = None  # None: that of the playbook
    lost: tuple[int, ...] = ()  # hosts that the collector does not reach either
    otherwise: Case | None = None  # what is right as well: it depends on the instant of the fault


NOWHERE = r"unacknowledged between .*, retransmitted \d+ times without an answer"
SILENT = Case("host-unreachable", (2,), ("no answer from 10.77.0.3",), ranks=(0, 1), reproducer="dead-link")
CASES = (
    Case("dead-link", (2,), (NOWHERE,), strikes=filtered),
    # Nothing is retransmitted if nothing was under way to the host when it was cut off.
    Case("dead-link", (2,), (NOWHERE,), strikes=cut_off, ranks=(0, 1), lost=(THIRD,), otherwise=SILENT),
    replace(SILENT, script="fed_by_last.py", strikes=cut_off, lost=(THIRD,)),
    Case(
        "packet-loss", (2,), (r"\d+ of \d+ segments retransmitted|pings from rank",),
        strikes=lossy, loud_s=reproducer.UNDER_WAY_S,
    ),
    Case(
        "slow-link", (2,), ("KiB per step", "eth0, limited to 2 Mbit/s by tbf"),
        begins=shaped, loud_s=reproducer.UNDER_WAY_S,
    ),
    # Only the first rank has sent much when the job comes to a halt: pings to its other peer tell which end it is.
    Case(
        "mtu-blackhole", (2,), (r"retransmitted \d+ times without an answer", "pings of 64 bytes were answered"),
        begins=narrow,
    ),
    Case("firewall-blocked", (1, 2), ("SYN-SENT from rank", "-j DROP"), begins=closed),
    Case(
        "wrong-nic", (0, 1, 2), (r"advertises 172.17.1.1:\d+, on docker0; eth0 .10.77.0.1. reaches the other hosts",),
        begins=containers, told=dict.fromkeys(range(3), ("GLOO_SOCKET_IFNAME=docker0",)),
    ),
    Case(
        "loopback-hostname", (0,), ("/etc/hosts:2: 127.0.1.1 node-1.cluster node-1",),
        begins=looped_name, told=dict.fromkeys(range(3), UNTOLD), ranks=(0,),
    ),
    Case(
        "interface-missing", (2,), ("GLOO_SOCKET_IFNAME=eth99 on rank 2",),
        told={THIRD: ("GLOO_SOCKET_IFNAME=eth99", *AGAIN)}, loud_s=20.0, status="stalled",
    ),
)  # fmt: skip


@dataclass(slots=True)
class Through(Host):
    """A host where everything is started through `prefix`: settings for env, a shell."""

    prefix: tuple[str, ...] = ()

    def command(self, *arguments: str) -> list[str]:
        return Host.command(self, *self.prefix, *arguments)


@pytest.fixture(scope="module")
def bed() -> Iterator[SshTestbed]:
    ssh.require()
    with ssh.ssh_testbed(hosts=len(HOSTS)) as made:
        for host in made.hosts:
            host.node.ip("link", "set", "eth0", "gso_max_segs", "1")  # packets as on a wire
        # The collector's is a network for management, where packets are small: a narrow path does not concern it.
        made.collector.ip("route", "replace", "10.77.0.0/24", "dev", "eth0", "mtu", "1300", "advmss", "1200")
        yield made


def expected(case: Case) -> reproducer.BrokenJob:
    """A rank on each host, and what must be said of them."""
    job = reproducers.broken(case.reproducer or case.playbook)
    expect = job.spec.expect.model_copy(update={"culprits": case.culprits, "evidence": case.evidence})
    told = job.spec.model_copy(update={"ranks": len(case.ranks), "expect": expect})
    script = HUNG / case.script if case.script else job.script
    return replace(job, playbook=case.playbook, script=script, spec=told, status=case.status or job.status)


def judged(bed: SshTestbed, trial: Trial, job: reproducer.BrokenJob, loud_s: float | None) -> reproducers.Result:
    """What `watch --nodes --once` says, once it has seen enough to be sure: a rank that starts again and again is away
    half of the time."""
    limit = time.monotonic() + PATIENCE_S
    reproducer.Log(trial, lambda line: None).follow(time.monotonic() + job.spec.within_s, loud_s)
    while True:
        started = time.monotonic()
        done = bed.hangdoc("watch", "--nodes", bed.nodes, "--once", "--json", *job.asking, timeout=120)
        assert done.stdout.count("\n") == 1, done
        result = reproducers.Result(job, json.loads(done.stdout), done.returncode, time.monotonic() - started)
        seen = {line["rank"] for line in result.verdict["job"]["ranks"]}  # a launcher without its rank has no number
        whole = seen == set(range(result.verdict["job"]["world_size"]))
        sure = result.best.get("confidence", "low") != "low"
        if (sure and whole) or loud_s is None or time.monotonic() > limit:
            return result


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.playbook + " lost" * bool(case.lost))
def test_network_between_hosts_is_blamed(bed: SshTestbed, case: Case) -> None:
    job = expected(case)
    hosts = [
        Through(host.name, host.node, host.first, prefix=case.told.get(at, ())) for at, host in enumerate(bed.hosts)
    ]
    with ExitStack() as going_on:
        going_on.enter_context(case.begins(bed))
        trial = going_on.enter_context(torchrun(hosts, job.script))
        trial.wait_log("loss" if case.strikes is nothing else "step 20 ", 90)
        going_on.enter_context(case.strikes(bed))
        result = judged(bed, trial, job, case.loud_s)
    if case.otherwise and result.said == case.otherwise.playbook:
        result = replace(result, job=expected(case.otherwise))
    if case.strikes is filtered and len(links := result.best["links"]) == 1:
        # Only one peer had data under way: the link does not show which end is at fault, and the verdict says so.
        assert result.best["confidence"] == "medium", result.told()
        case = replace(case, culprits=tuple(sorted((links[0]["from_rank"], links[0]["to_rank"]))))
        assert THIRD in case.culprits
        result = replace(result, job=expected(case))
    verdict = result.verdict
    assert result.problems() == {}, result.told()
    assert {blamed["rank"]: blamed["host"] for blamed in result.best["culprits"]} == {
        rank: HOSTS[rank] for rank in case.culprits
    }, result.told()
    assert [line["rank"] for line in verdict["job"]["ranks"]] == list(case.ranks), result.told()
    seen = {line["rank"]: line["host"] for line in verdict["job"]["ranks"] if line["pid"]}
    assert seen.items() <= dict(enumerate(HOSTS)).items(), result.told()
    lost = [lack["host"] for lack in verdict["unseen"] if lack["probe"] == "agent"]
    assert lost == [HOSTS[index] for index in case.lost], result.told()
