"""A job on three hosts; only two of them start, and the start script does not notice.

python reproducer.py [--variant processes|torchrun|c10d|hosts] [--hosts N] [--started M]

--variant   processes: one process per host, with RANK in its environment; torchrun: one launcher per host (two ranks
            each, static rendezvous); c10d: the same with a rendezvous that assigns ranks; hosts: launchers on hosts
            of their own (network namespaces; needs root and `ip`)
"""

import argparse
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

ADDRESS = "10.89.0.{}"


# --- the training script ---------------------------------------------------------------------------------


def model():
    from torch import nn

    return nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 1))


def fit(net, steps, generator, pause=0.0):
    import torch
    from torch import nn

    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for step in range(steps):
        x = torch.randn(64, 24, generator=generator)
        loss = nn.functional.mse_loss(net(x).squeeze(-1), x[:, 0] * x[:, 1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(pause)
        yield step, loss.item()


def train():
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    rank = int(os.environ["RANK"])
    generator = torch.Generator().manual_seed(rank)
    for step, loss in fit(model(), 8, generator, 0.3):  # does the script run at all on this host?
        print(f"rank {rank} dry run {step} loss {loss:.4f}", flush=True)
    dist.init_process_group("gloo")
    for step, loss in fit(DistributedDataParallel(model()), 10_000, generator):
        if rank == 0 and step % 100 == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


# --- what starts it on each host -------------------------------------------------------------------------


def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def command(args, host, port):
    script = os.path.abspath(__file__)
    if args.variant == "processes":
        return [sys.executable, script]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(args.hosts)]
    if args.variant == "c10d":
        torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}", "--nproc-per-node", "2"]
    elif args.variant == "torchrun":
        torchrun += ["--node-rank", str(host), "--master-port", str(port), "--nproc-per-node", "2"]
    else:
        torchrun += ["--node-rank", str(host), "--master-addr", ADDRESS.format(1), "--master-port", "29500"]
    return [*torchrun, script]


def start(args, host, port):
    told = {"RANK": str(host), "WORLD_SIZE": str(args.hosts), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    inside = ["ip", "netns", "exec", name(host)] if args.variant == "hosts" else []
    environment = {**os.environ, **(told if args.variant == "processes" else {})}
    if host >= args.started:  # this host is down
        return subprocess.Popen(
            ["sh", "-c", f"echo 'ssh: connect to host node-{host} port 22: No route to host' >&2; exit 255"]
        )
    return subprocess.Popen([*inside, *command(args, host, port)], env=environment)


def assembled(process):
    """True if the launcher has reached its rendezvous."""
    try:
        comm = pathlib.Path(f"/proc/{process.pid}/comm").read_text().strip()
    except OSError:
        return False
    return comm.startswith("pt_elastic")


def baseline(processes, longer):
    """While the launchers start, train on this host alone, as a reference for the job on three hosts."""
    import torch

    end = float("inf")
    for step, loss in fit(model(), 1000, torch.Generator().manual_seed(0), 0.5):
        print(f"baseline {step} loss {loss:.4f}", flush=True)
        if end == float("inf") and all(map(assembled, processes)):
            end = time.monotonic() + longer
        if time.monotonic() > end:
            return


# --- hosts -----------------------------------------------------------------------------------------------


def name(host):
    return f"hangdoc-{os.getpid()}-host{host}"


def ip(*arguments, check=True):
    subprocess.run(["ip", *arguments], check=check, stderr=None if check else subprocess.DEVNULL)


def build(hosts):
    switch = name("-switch")
    for namespace in (switch, *map(name, range(hosts))):
        ip("netns", "add", namespace)
    ip("-n", switch, "link", "add", "bridge", "type", "bridge")
    ip("-n", switch, "link", "set", "bridge", "up")
    for host in range(hosts):
        ip("-n", switch, "link", "add", f"port{host}", "type", "veth", "peer", "name", "eth0", "netns", name(host))
        ip("-n", switch, "link", "set", f"port{host}", "master", "bridge", "up")
        ip("-n", name(host), "address", "add", f"{ADDRESS.format(host + 1)}/24", "dev", "eth0")
        ip("-n", name(host), "link", "set", "lo", "up")
        ip("-n", name(host), "link", "set", "eth0", "up")


def remove(hosts):
    for namespace in (*map(name, range(hosts)), name("-switch")):
        inside = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True)
        for pid in inside.stdout.split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue
        ip("netns", "delete", namespace, check=False)


def main(args):
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))
    port = free_port()
    try:
        if args.variant == "hosts":
            build(args.hosts)
        processes = [start(args, host, port) for host in range(args.hosts)]
        if args.variant != "processes":
            baseline(processes[: args.started], 15 if args.variant == "hosts" else 0)
        return max(process.wait() for process in processes)
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        if args.variant == "hosts":
            remove(args.hosts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("processes", "torchrun", "c10d", "hosts"), default="processes")
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--started", type=int, default=2, help="hosts that are up")
    args = parser.parse_args()
    if "RANK" in os.environ:
        train()
    elif args.variant == "hosts" and os.geteuid() != 0:
        sys.exit("this job builds network namespaces: run it as root, with `ip` installed (apt-get install iproute2)")
    else:
        sys.exit(main(args))
