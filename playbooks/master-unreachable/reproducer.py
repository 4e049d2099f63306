"""A job on two hosts (network namespaces on one switch); the second cannot reach the rendezvous address.

python reproducer.py [--variant address|filtered|name|launcher]
Needs root and `ip`; filtered and launcher need `iptables` as well.

--variant   address: the second host uses the address of a missing host; filtered: the first host's
            firewall drops packets to the port; launcher: the same with torchrun on both; name: the second host uses
            a name that does not resolve
"""

import argparse
import os
import pathlib
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

WRONG = {"address": "10.90.0.9", "name": "trainer-0.cluster.invalid"}


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


# --- two hosts, of which one may have a firewall ---------------------------------------------------------


def start(bed, port, index, variant):
    master = WRONG.get(variant, bed.address(0)) if index else bed.address(0)
    if variant == "launcher":
        command, where = bed.torchrun(index, __file__, master=master), {}
    else:
        command = [sys.executable, os.path.abspath(__file__)]
        where = {"RANK": str(index), "WORLD_SIZE": "2", "MASTER_ADDR": master, "MASTER_PORT": port}
    bed.start(index, *command, GLOO_SOCKET_IFNAME="eth0", **where)


def compare(processes):
    """Train alone until the launchers are up, as a reference for the job."""
    encoder = Encoder(99)
    for loss in encoder.losses(encoder.net, 1000, 0.5):
        print(f"alone: loss {loss:.4f}", flush=True)
        names = [pathlib.Path(f"/proc/{process.pid}/comm").read_text() for process in processes]
        if all(name.startswith("pt_elastic") for name in names):
            return


def run(variant):
    from hosts import PORT, hosts

    with hosts(2, "10.90.0") as bed:
        if variant in ("filtered", "launcher"):  # the host's firewall lets nothing in to the port
            bed.run(0, "iptables", "-w", "-A", "INPUT", "-i", "eth0", "-p", "tcp", "--dport", PORT, "-j", "DROP")
        for index in range(bed.count):
            start(bed, PORT, index, variant)
        if variant == "launcher":
            compare(bed.started)
        return bed.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("address", "filtered", "name", "launcher"), default="address")
    args = parser.parse_args()
    if "RANK" in os.environ:
        train()
    else:
        sys.exit(run(args.variant))
