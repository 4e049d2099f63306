"""Data-parallel training on two hosts; GLOO_SOCKET_IFNAME is not right for both of them.

python reproducer.py [--variant other|caret|restarts|single]     needs root and `ip`

--variant   other: both are told the interface of the first host, the second one's is called differently; caret: both
            are told `^lo`, as NCCL would understand it; restarts: as `other`, with no launcher but a loop that starts a
            rank again when it ends; single: the first host is told nothing, and nobody knows its name
"""

import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

ADDRESS = "192.168.59.{}"
PORT = "29576"
NAME = "gpu{}"
NICS = ("ens5", "enp3s0")
TOLD = {
    "other": ("ens5", "ens5"),
    "caret": ("^lo", "^lo"),
    "restarts": ("ens5", "ens5"),
    "single": ("", "enp3s0"),
}


# --- the training script, started by torchrun on each host ----------------------------------------------


class Walk:
    """Learns where a random walk with a drift goes next."""

    def __init__(self, rank):
        import torch
        from torch import nn

        self.generator = torch.Generator().manual_seed(rank)
        self.net = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 1))

    def steps(self, net, count, pause=0.0):
        import torch

        optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
        for number in range(count):
            walk = (0.1 + torch.randn(64, 9, generator=self.generator)).cumsum(1)
            loss = torch.nn.functional.smooth_l1_loss(net(walk[:, :8]), walk[:, 8:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(pause)
            yield number, loss.item()


def train():
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    rank = int(os.environ["RANK"])
    walk = Walk(rank)
    for number, loss in walk.steps(walk.net, 20, 0.3):
        print(f"rank {rank} dry run {number} loss {loss:.4f}", flush=True)
    dist.init_process_group("gloo")
    for number, loss in walk.steps(DistributedDataParallel(walk.net), 100_000):
        if rank == 0 and number % 100 == 0:
            print(f"step {number} loss {loss:.4f}", flush=True)
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
        ip("-n", switch, "link", "add", f"port{index}", "type", "veth", "peer", "name", NICS[index], "netns", host)
        ip("-n", switch, "link", "set", f"port{index}", "master", "bridge", "up")
        ip("-n", host, "address", "add", f"{ADDRESS.format(index + 1)}/24", "dev", NICS[index])
        ip("-n", host, "link", "set", "lo", "up")
        ip("-n", host, "link", "set", NICS[index], "up")


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


def once(host, index, told):
    return start(host, index, torchrun(index), GLOO_SOCKET_IFNAME=told)


def again(host, index, told):
    """As a supervisor does that knows nothing of the other ranks."""
    loop = ["sh", "-c", 'until "$@"; do sleep 0.5; done', "loop", sys.executable, os.path.abspath(__file__)]
    where = {"MASTER_ADDR": ADDRESS.format(1), "MASTER_PORT": PORT, "RANK": str(index), "WORLD_SIZE": "2"}
    return start(host, index, loop, GLOO_SOCKET_IFNAME=told, **where)


def run(variant):
    switch = f"hangdoc-{os.getpid()}-switch"
    hosts = [f"hangdoc-{os.getpid()}-host{index}" for index in range(2)]
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))
    try:
        build(switch, hosts)
        for index, host in enumerate(hosts):
            write_names(host, [] if variant == "single" else [f"{ADDRESS.format(index + 1)} {NAME.format(index)}"])
        starting = again if variant == "restarts" else once
        processes = [starting(host, index, TOLD[variant][index]) for index, host in enumerate(hosts)]
        return max(process.wait() for process in processes)
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        remove(switch, hosts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("other", "caret", "restarts", "single"), default="other")
    args = parser.parse_args()
    if "RANK" in os.environ:
        train()
    elif os.geteuid() != 0 or shutil.which("ip") is None:
        sys.exit("this job builds network namespaces: run it as root, with `ip` installed")
    else:
        sys.exit(run(args.variant))
