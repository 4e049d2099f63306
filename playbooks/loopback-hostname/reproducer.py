"""Data-parallel training on two hosts; a host's own name stands for 127.0.1.1 there, as Debian's installer leaves it.

python reproducer.py [--variant first|both|unknown]     needs root and `ip`

--variant   first: on the first host; both: on both hosts; unknown: no hosts file knows the first host's name at all
"""

import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

ADDRESS = "192.168.58.{}"
PORT = "29574"
NAME = "node-{}"
NAMED = {
    "first": ("127.0.1.1", ADDRESS.format(2)),
    "both": ("127.0.1.1", "127.0.1.1"),
    "unknown": ("", ADDRESS.format(2)),
}


# --- the training script, started by torchrun on each host ----------------------------------------------


def sample(generator):
    """Points of two spirals."""
    import torch

    angle = 3 * torch.rand(64, 1, generator=generator).sqrt() * 3.14
    side = (torch.rand(64, 1, generator=generator) > 0.5).float()
    turned = angle + 3.14 * side
    return torch.cat((turned.cos() * angle, turned.sin() * angle), 1) / 10, side


def epoch(model, optimizer, generator, pause=0.0):
    import torch

    for _ in range(10):
        points, side = sample(generator)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(points), side)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(pause)
    return loss.item()


def train():
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    rank = int(os.environ["RANK"])
    generator = torch.Generator().manual_seed(rank)
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    for number in range(6):
        loss = epoch(model, torch.optim.SGD(model.parameters(), lr=0.1), generator, 0.1)
        print(f"rank {rank} trial {number} loss {loss:.4f}", flush=True)
    dist.init_process_group("gloo")
    shared = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(shared.parameters(), lr=1e-3)
    for number in range(10_000):
        loss = epoch(shared, optimizer, generator)
        if rank == 0:
            print(f"epoch {number} loss {loss:.4f}", flush=True)
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


def run(variant):
    switch = f"hangdoc-{os.getpid()}-switch"
    hosts = [f"hangdoc-{os.getpid()}-host{index}" for index in range(2)]
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))
    try:
        build(switch, hosts)
        for index, host in enumerate(hosts):
            own = NAMED[variant][index]
            write_names(host, [f"{own} {NAME.format(index)}.cluster {NAME.format(index)}"] if own else [])
        processes = [start(host, index, torchrun(index, "--variant", variant)) for index, host in enumerate(hosts)]
        return max(process.wait() for process in processes)
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        remove(switch, hosts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("first", "both", "unknown"), default="first")
    args = parser.parse_args()
    if "RANK" in os.environ:
        train()
    elif os.geteuid() != 0 or shutil.which("ip") is None:
        sys.exit("this job builds network namespaces: run it as root, with `ip` installed")
    else:
        sys.exit(run(args.variant))
