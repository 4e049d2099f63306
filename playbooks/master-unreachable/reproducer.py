"""A job on two hosts (network namespaces on one switch); the second cannot reach the address where they are to meet.

python reproducer.py [--variant address|filtered|name|launcher]
Needs root and `ip`; filtered and launcher need `iptables` as well.

--variant   address: the second host was told the address of a host that is not there; filtered: the first host's
            firewall drops what comes to the port; launcher: the same with torchrun on both; name: it was told a name
            that nobody knows
"""

import argparse
import os
import pathlib
import signal
import subprocess
import sys
import time

ADDRESS = "10.90.0.{}"
PORT = "29571"
WRONG = {"address": ADDRESS.format(9), "name": "trainer-0.cluster.invalid"}


# --- the training script ---------------------------------------------------------------------------------


class Encoder:
    """A small denoising autoencoder."""

    def __init__(self, seed):
        import torch
        from torch import nn

        self.net = nn.Sequential(nn.Linear(48, 12), nn.Tanh(), nn.Linear(12, 48))
        self.generator = torch.Generator().manual_seed(seed)

    def losses(self, net, steps, pause=0.0):
        import torch

        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        basis = torch.randn(6, 48, generator=self.generator)
        for _ in range(steps):
            clean = torch.randn(64, 6, generator=self.generator) @ basis
            loss = (net(clean + 0.1 * torch.randn(64, 48)) - clean).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(pause)
            yield loss.item()


def train():
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    rank = int(os.environ["RANK"])
    encoder = Encoder(rank)
    for loss in encoder.losses(encoder.net, 8, 0.3):
        print(f"rank {rank} warm-up loss {loss:.4f}", flush=True)
    dist.init_process_group("gloo")
    for step, loss in enumerate(encoder.losses(DistributedDataParallel(encoder.net), 10_000)):
        if rank == 0 and step % 100 == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


# --- two hosts and a switch ------------------------------------------------------------------------------


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


def close(host):
    """The host's firewall lets nothing in to the port."""
    rule = ["iptables", "-w", "-A", "INPUT", "-i", "eth0", "-p", "tcp", "--dport", PORT, "-j", "DROP"]
    subprocess.run(["ip", "netns", "exec", host, *rule], check=True)


def start(host, index, variant):
    address = WRONG.get(variant, ADDRESS.format(1)) if index else ADDRESS.format(1)
    script, environment = os.path.abspath(__file__), {**os.environ, "GLOO_SOCKET_IFNAME": "eth0"}
    if variant == "launcher":
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(index)]
        command += ["--master-addr", address, "--master-port", PORT, script]
    else:
        command = [sys.executable, script]
        environment |= {"RANK": str(index), "WORLD_SIZE": "2", "MASTER_ADDR": address, "MASTER_PORT": PORT}
    return subprocess.Popen(["ip", "netns", "exec", host, *command], env=environment)


def remove(switch, hosts):
    for namespace in (*hosts, switch):
        inside = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True)
        for pid in inside.stdout.split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue
        ip("netns", "delete", namespace, check=False)


def compare(processes):
    """Train alone until the launchers have come up: what the job is to be compared with."""
    encoder = Encoder(99)
    for loss in encoder.losses(encoder.net, 1000, 0.5):
        print(f"alone: loss {loss:.4f}", flush=True)
        names = [pathlib.Path(f"/proc/{process.pid}/comm").read_text() for process in processes]
        if all(name.startswith("pt_elastic") for name in names):
            return


def run(variant):
    switch = f"hangdoc-{os.getpid()}-switch"
    hosts = [f"hangdoc-{os.getpid()}-host{index}" for index in range(2)]
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))
    try:
        build(switch, hosts)
        if variant in ("filtered", "launcher"):
            close(hosts[0])
        processes = [start(host, index, variant) for index, host in enumerate(hosts)]
        if variant == "launcher":
            compare(processes)
        return max(process.wait() for process in processes)
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        remove(switch, hosts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("address", "filtered", "name", "launcher"), default="address")
    args = parser.parse_args()
    if "RANK" in os.environ:
        train()
    elif os.geteuid() != 0:
        sys.exit("this job builds network namespaces: run it as root, with `ip` installed (apt-get install iproute2)")
    else:
        sys.exit(run(args.variant))
