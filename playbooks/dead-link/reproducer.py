"""Data-parallel training on two hosts (network namespaces on one switch); the switch or a link fails under it.

python reproducer.py [--steps-before N] [--variant interface|cable|path]     needs root and `ip`

--variant   interface: the second host's interface goes down; cable: it stays up, but loses its carrier;
            path: both ends keep their carrier, and nothing passes between them
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys

FIRST_HOST = "10.88.0.1"
BREAK = {
    "interface": ("{host}", "link", "set", "eth0", "down"),
    "cable": ("{switch}", "link", "set", "port1", "down"),
    "path": ("{switch}", "link", "set", "port1", "nomaster"),
}


# --- the training script, started by torchrun on each host ------------------------------------------


def train(steps):
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(7)
    teacher = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 4))
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 4))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    for step in range(steps):
        inputs = torch.randn(64, 32, generator=generator)
        with torch.no_grad():
            targets = teacher(inputs)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


# --- two hosts and a switch -------------------------------------------------------------------------


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
        ip("-n", host, "address", "add", f"10.88.0.{index + 1}/24", "dev", "eth0")
        ip("-n", host, "link", "set", "lo", "up")
        ip("-n", host, "link", "set", "eth0", "up")


def start(host, index, steps, log):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(index)]
    torchrun += ["--nproc-per-node", "1", "--master-addr", FIRST_HOST, "--master-port", "29500"]
    return subprocess.Popen(
        ["ip", "netns", "exec", host, *torchrun, os.path.abspath(__file__), "--steps", str(steps)],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "eth0"},
        stdout=log,
        stderr=subprocess.STDOUT if log is subprocess.PIPE else None,
        text=True,
    )


def remove(switch, hosts):
    for namespace in (*hosts, switch):
        inside = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True)
        for pid in inside.stdout.split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue
        ip("netns", "delete", namespace, check=False)


def run(args):
    switch = f"hangdoc-{os.getpid()}-switch"
    hosts = [f"hangdoc-{os.getpid()}-host{index}" for index in range(2)]
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))
    try:
        build(switch, hosts)
        first = start(hosts[0], 0, args.steps, subprocess.PIPE)
        second = start(hosts[1], 1, args.steps, None)
        for line in first.stdout:
            print(line, end="", flush=True)
            if line.startswith(f"step {args.steps_before} "):
                ip("-n", *(word.format(switch=switch, host=hosts[1]) for word in BREAK[args.variant]))
        return first.wait() or second.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        remove(switch, hosts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps-before", type=int, default=20, help="steps that succeed")
    parser.add_argument("--variant", choices=BREAK, default="interface")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    if "RANK" in os.environ:
        train(args.steps)
    elif os.geteuid() != 0 or shutil.which("ip") is None:
        sys.exit("this job builds network namespaces: run it as root, with `ip` installed (apt-get install iproute2)")
    else:
        sys.exit(run(args))
