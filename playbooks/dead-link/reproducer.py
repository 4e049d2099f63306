"""Data-parallel training on hosts (network namespaces on one switch); the switch, a link or a filter fails during it.

python reproducer.py [--steps-before N] [--variant interface|cable|path|filter]     needs root, `ip` (and `iptables`)

--variant   interface: the second host's interface goes down; cable: it stays up, but loses its carrier;
            path: both ends keep their carrier, but nothing passes between them;
            filter: of three hosts the second one's firewall drops every packet;
            server: the first host's firewall drops the packets to a server of inputs there, and no other
"""

import argparse
import os
import random
import socket
import socketserver
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

VARIANTS = ("interface", "cable", "path", "filter", "server")
INPUTS = 7000  # port of the server of inputs
ROWS, WIDTH = 64, 32


# --- the training script, started by torchrun on each host ------------------------------------------


def train(steps, served):
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    inputs_of = client() if served else None
    torch.manual_seed(7)
    teacher = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 4))
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 4))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    for step in range(steps):
        inputs = inputs_of(step) if inputs_of else torch.randn(ROWS, WIDTH, generator=generator)
        with torch.no_grad():
            targets = teacher(inputs)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


def client():
    """Fetches the inputs of a step from the first host, whose first rank starts the server."""
    import torch

    if os.environ["RANK"] == "0":
        subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.DEVNULL)
    for _ in range(100):
        try:
            connection = socket.create_connection((os.environ["MASTER_ADDR"], INPUTS))
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
    stream = connection.makefile("rwb")

    def fetch(step):
        stream.write(b"%d\n" % step)
        stream.flush()
        return torch.frombuffer(bytearray(stream.read(ROWS * WIDTH * 4)), dtype=torch.float32).view(ROWS, WIDTH)

    return fetch


class Inputs(socketserver.StreamRequestHandler):
    def handle(self):
        for step in self.rfile:
            chance = random.Random(int(step))
            self.wfile.write(struct.pack(f"{ROWS * WIDTH}f", *(chance.gauss(0, 1) for _ in range(ROWS * WIDTH))))


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True


# --- the hosts and what happens to them -------------------------------------------------------------


def cut(bed, variant):
    if variant == "interface":
        bed.ip(1, "link", "set", "eth0", "down")
    elif variant == "cable":
        bed.ip(None, "link", "set", "port1", "down")
    elif variant == "path":
        bed.ip(None, "link", "set", "port1", "nomaster")
    elif variant == "server":
        bed.run(0, "iptables", "-A", "INPUT", "-p", "tcp", "--dport", str(INPUTS), "-s", bed.address(1), "-j", "DROP")
    else:
        for chain in ("INPUT", "OUTPUT"):
            bed.run(1, "iptables", "-A", chain, "-j", "DROP")


def run(args):
    from hosts import hosts

    with hosts(3 if args.variant == "filter" else 2) as bed:

        def on_line(line):
            if line.startswith(f"step {args.steps_before} "):
                cut(bed, args.variant)

        return bed.job(__file__, sys.argv[1:], on_line)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps-before", type=int, default=20, help="steps that succeed")
    parser.add_argument("--variant", choices=VARIANTS, default="interface")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--serve", action="store_true")
    args = parser.parse_args()
    if args.serve:
        Server(("", INPUTS), Inputs).serve_forever()
    elif "RANK" in os.environ:
        train(args.steps, args.variant == "server")
    else:
        sys.exit(run(args))
