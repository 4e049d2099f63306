"""Data-parallel training on two hosts that have an interface for their containers besides the one between them.

python reproducer.py [--variant own|same|one|bridge]     needs root and `ip`

--variant   own: GLOO_SOCKET_IFNAME=docker0 on both hosts, each with a network of its own behind it; same: with the same
            network, as Docker has it by default; one: on the first host only; bridge: no interface is told, and the
            hosts' names, and their default routes, lead to the bridge of the container network
"""

import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

ADDRESS = "192.168.57.{}"
GATEWAY = ADDRESS.format(254)
PORT = "29573"
NAME = "trainer-{}"
INSIDE = {"own": "172.17.{}.1/24", "one": "172.17.{}.1/24", "same": "172.17.0.1/16", "bridge": "10.244.{}.1/24"}
TOLD = {"own": ("docker0", "docker0"), "same": ("docker0", "docker0"), "one": ("docker0", "eth0"), "bridge": ("", "")}


# --- the training script, started by torchrun on each host ----------------------------------------------


def batches(seed):
    """A noisy sine, and the samples before each point of it."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    while True:
        start = torch.rand(32, 1, generator=generator) * 6.28
        wave = torch.sin(start + torch.arange(17) / 4) + 0.05 * torch.randn(32, 17, generator=generator)
        yield wave[:, :-1], wave[:, -1:]


def fit(model, data, steps, pause, tell):
    import torch

    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step, (past, coming) in zip(range(steps), data, strict=False):
        loss = torch.nn.functional.mse_loss(model(past), coming)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tell(step, loss.item())
        time.sleep(pause)


def train():
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    rank = int(os.environ["RANK"])
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 1))
    fit(
        model, batches(rank), 20, 0.3, lambda step, loss: print(f"rank {rank} alone {step} loss {loss:.4f}", flush=True)
    )
    dist.init_process_group("gloo")
    fit(
        DistributedDataParallel(model), batches(rank), 100_000, 0.0,
        lambda step, loss: rank == 0 and step % 100 == 0 and print(f"step {step} loss {loss:.4f}", flush=True),
    )  # fmt: skip
    dist.destroy_process_group()


# --- hosts, each with a name, a hosts file and a switch between them ------------------------------------


def ip(*arguments, check=True):
    subprocess.run(["ip", *arguments], check=check, stderr=None if check else subprocess.DEVNULL)


def build(switch, hosts):
    for namespace in (switch, *hosts):
        ip("netns", "add", namespace)
    ip("-n", switch, "link", "add", "bridge", "type", "bridge")
    ip("-n", switch, "link", "set", "bridge", "up")
    for index, host in enumerate(hosts):
        ip("-n", switch, "link", "add", f"port{index}", "type", "veth", "peer", "name", "eth0", "netns", host)
        ip("-n", switch, "link", "set", f"port{index}", "master", "bridge", "up")
        ip("-n", host, "address", "add", f"{ADDRESS.format(index + 1)}/24", "dev", "eth0")
        ip("-n", host, "link", "set", "lo", "up")
        ip("-n", host, "link", "set", "eth0", "up")


def write_names(host, lines):
    """What /etc/hosts is on that host: `ip netns exec` lays it over the machine's own."""
    folder = pathlib.Path("/etc/netns", host)
    folder.mkdir(parents=True)
    (folder / "hosts").write_text("\n".join(("127.0.0.1 localhost", *lines, "")))
    (folder / "resolv.conf").write_text("nameserver 127.0.0.1\n")


def start(host, index, command, **variables):
    named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', NAME.format(index)]
    environment = {key: value for key, value in os.environ.items() if key != "GLOO_SOCKET_IFNAME"}
    return subprocess.Popen(
        ["ip", "netns", "exec", host, *named, *command],
        env={**environment, **{key: value for key, value in variables.items() if value}},
    )


def torchrun(index, *options):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(index)]
    launcher += ["--master-addr", ADDRESS.format(1), "--master-port", PORT]
    return [*launcher, os.path.abspath(__file__), *options]


def remove(switch, hosts):
    for namespace in (*hosts, switch):
        inside = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True)
        for pid in inside.stdout.split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue
        ip("netns", "delete", namespace, check=False)
        shutil.rmtree(f"/etc/netns/{namespace}", ignore_errors=True)


def add_containers(host, index, variant):
    """A bridge for containers, with one container that runs."""
    bridge = "cni0" if variant == "bridge" else "docker0"
    inside = INSIDE[variant].format(index + 1)
    ip("-n", host, "link", "add", bridge, "type", "bridge")
    ip("-n", host, "link", "add", "veth1", "type", "veth", "peer", "name", "guest")
    for name in (bridge, "veth1", "guest"):
        ip("-n", host, "link", "set", name, "up")
    ip("-n", host, "link", "set", "veth1", "master", bridge)
    ip("-n", host, "address", "add", inside, "dev", bridge)
    if variant == "bridge":
        router = inside.replace(".1/24", ".254")
        ip("-n", host, "neigh", "replace", router, "lladdr", "02:00:00:00:00:99", "dev", bridge)
        ip("-n", host, "route", "add", "default", "via", router, "dev", bridge)
        write_names(host, [f"{inside.partition('/')[0]} {NAME.format(index)}"])
    else:
        ip("-n", host, "route", "add", "default", "via", GATEWAY, "dev", "eth0")
        write_names(host, [f"{ADDRESS.format(index + 1)} {NAME.format(index)}"])


def run(variant):
    switch = f"hangdoc-{os.getpid()}-switch"
    hosts = [f"hangdoc-{os.getpid()}-host{index}" for index in range(2)]
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))
    try:
        build(switch, hosts)
        ip("-n", switch, "address", "add", f"{GATEWAY}/24", "dev", "bridge")  # a router that knows no other network
        for index, host in enumerate(hosts):
            add_containers(host, index, variant)
        processes = [
            start(host, index, torchrun(index, "--variant", variant), GLOO_SOCKET_IFNAME=TOLD[variant][index])
            for index, host in enumerate(hosts)
        ]
        return max(process.wait() for process in processes)
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        remove(switch, hosts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("own", "same", "one", "bridge"), default="own")
    args = parser.parse_args()
    if "RANK" in os.environ:
        train()
    elif os.geteuid() != 0 or shutil.which("ip") is None:
        sys.exit("this job builds network namespaces: run it as root, with `ip` installed")
    else:
        sys.exit(run(args.variant))
