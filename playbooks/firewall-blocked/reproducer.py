"""Data-parallel training on two hosts whose firewalls let only ssh and the store's port in.

python reproducer.py [--variant drop|reject|later]     needs root, `ip` and `iptables`

--variant   drop: what is not let in vanishes; reject: it is refused; later: the firewalls close while the job trains,
            and then it makes another process group
"""

import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

ADDRESS = "10.96.0.{}"
PORT = "29575"
NAME = "worker{}"
STEPS = 40  # until the script of `later` makes its second group


# --- the training script, started by torchrun on each host ----------------------------------------------


def digits(generator):
    """Rows of a number's segments, some of them wrong."""
    import torch

    wanted = torch.randint(10, (64,), generator=generator)
    segments = torch.tensor([119, 36, 93, 109, 46, 107, 123, 37, 127, 111])
    lit = (segments[wanted, None] >> torch.arange(7)) & 1
    return (lit ^ (torch.rand(64, 7, generator=generator) < 0.05)).float(), wanted


def step(model, optimizer, generator):
    import torch

    inputs, wanted = digits(generator)
    loss = torch.nn.functional.cross_entropy(model(inputs), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def train(later):
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    rank = int(os.environ["RANK"])
    generator = torch.Generator().manual_seed(rank)
    model = nn.Sequential(nn.Linear(7, 48), nn.ReLU(), nn.Linear(48, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for number in range(20):
        print(f"rank {rank} warm-up {number} loss {step(model, optimizer, generator):.4f}", flush=True)
        time.sleep(0.3)
    dist.init_process_group("gloo")
    shared = DistributedDataParallel(model)
    for number in range(100_000):
        loss = step(shared, optimizer, generator)
        if rank == 0 and number % 10 == 0:
            print(f"step {number} loss {loss:.4f}", flush=True)
        if later:
            time.sleep(0.1)
            if number == STEPS:
                dist.barrier(dist.new_group([0, 1]))
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
        env={**environment, **variables},
        stdout=None if index else subprocess.PIPE,
        text=True,
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


def close(hosts, target):
    """Let nobody in but to the ports for ssh and for the store; what stands goes on."""
    for host in hosts:
        rule = ["iptables", "-w", "-A", "INPUT", "-i", "eth0", "-p", "tcp", "--syn"]
        rule += ["-m", "multiport", "!", "--dports", f"22,{PORT}", "-j", target]
        subprocess.run(["ip", "netns", "exec", host, *rule], check=True)


def run(variant):
    switch = f"hangdoc-{os.getpid()}-switch"
    hosts = [f"hangdoc-{os.getpid()}-host{index}" for index in range(2)]
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))
    try:
        build(switch, hosts)
        for index, host in enumerate(hosts):
            write_names(host, [f"{ADDRESS.format(index + 1)} {NAME.format(index)}"])
        if variant != "later":
            close(hosts, "REJECT" if variant == "reject" else "DROP")
        processes = [start(host, index, torchrun(index, "--variant", variant)) for index, host in enumerate(hosts)]
        for line in processes[0].stdout:
            print(line, end="", flush=True)
            if variant == "later" and line.startswith("step 10 "):
                close(hosts, "DROP")
        return max(process.wait() for process in processes)
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        remove(switch, hosts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("drop", "reject", "later"), default="drop")
    args = parser.parse_args()
    if "RANK" in os.environ:
        train(args.variant == "later")
    elif os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("iptables") is None:
        sys.exit("this job builds network namespaces: run it as root, with `ip` and `iptables` installed")
    else:
        sys.exit(run(args.variant))
