"""A job whose port is taken: rank 0 cannot listen there, and its peers connect to the process that does.

python reproducer.py [--variant service|replies|retries|store|launcher] [--ranks N]

--variant   service: a service holds the port, rank 0 ends with the error and the script that started it does not
            notice; replies: the same, and the service replies to whatever it gets and closes the connection; retries:
            like service, and rank 0 keeps retrying; store: another training job holds the port; launcher: two
            launchers on this host, with their rendezvous on the service's port
"""

import argparse
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time

FEATURES = 16


# --- the training script ---------------------------------------------------------------------------------


def classifier():
    from torch import nn

    return nn.Sequential(nn.Linear(FEATURES, 48), nn.GELU(), nn.Linear(48, 4))


def epochs(net, batches, pause=0.0):
    import torch
    from torch import nn

    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for batch in range(batches):
        x = torch.randn(32, FEATURES)
        loss = nn.functional.cross_entropy(net(x), x[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(pause)
        yield batch, loss.item()


def join(stubborn):
    """Join the process group; a rank with retries keeps trying."""
    import torch.distributed as dist

    while True:
        try:
            return dist.init_process_group("gloo")
        except dist.DistError as error:
            if not stubborn:
                raise
            refused = error
        time.sleep(8)
        if os.getppid() == 1:  # nobody waits for it any more
            raise refused


def train(stubborn):
    from torch.nn.parallel import DistributedDataParallel

    rank = os.environ["RANK"]
    for batch, loss in epochs(classifier(), 6, 0.3):
        print(f"rank {rank} sanity check {batch} loss {loss:.4f}", flush=True)
    join(stubborn)
    for batch, loss in epochs(DistributedDataParallel(classifier()), 100_000):
        if batch % 100 == 0:
            print(f"rank {rank} batch {batch} loss {loss:.4f}", flush=True)


# --- those who were there first --------------------------------------------------------------------------


def leave_with(starter):
    """End with the parent process."""
    while os.path.exists(f"/proc/{starter}"):
        time.sleep(1)
    os._exit(0)


def serve(port, patient):
    """A service with its own protocol: a patient one waits for the empty line that ends a request."""
    server = socket.create_server(("0.0.0.0", port))
    while True:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            request = connection.recv(4096)
            while patient and b"\r\n\r\n" not in request and (more := connection.recv(4096)):
                request += more
            connection.sendall(b"400 Bad Request\r\n\r\n")


def other_job():
    """A colleague's experiment, with one rank."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    for _ in epochs(classifier(), 1_000_000, 0.2):
        pass


def daemon(*arguments, **environment):
    """Start this script like another user: with another parent and in a new session."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            program = [sys.executable, os.path.abspath(__file__), *arguments]
            os.execve(sys.executable, program, {**os.environ, **environment})
        os._exit(0)
    os.wait()


def occupied(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


# --- the script that starts the job ----------------------------------------------------------------------


def command(variant, rank, port):
    script = os.path.abspath(__file__)
    if variant == "launcher":
        place = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}"]
        return [sys.executable, "-m", "torch.distributed.run", *place, script]
    return [sys.executable, script, "--variant", variant]


def main(variant, ranks):
    port = free_port()
    starter = ["--starter", str(os.getpid())]
    if variant == "store":
        daemon("--other-job", *starter, RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    else:
        daemon("--service", str(port), "--variant", variant, *starter)
    while not occupied(port):
        time.sleep(0.1)
    processes = []
    for rank in range(2 if variant == "launcher" else ranks):
        place = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        environment = {**os.environ, **({} if variant == "launcher" else place)}
        processes.append(subprocess.Popen(command(variant, rank, port), env=environment))
    if variant == "launcher":
        for batch, loss in epochs(classifier(), 40, 0.3):  # while the launchers come up
            print(f"baseline {batch} loss {loss:.4f}", flush=True)
    return max(process.wait() for process in reversed(processes))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("service", "replies", "retries", "store", "launcher"), default="service")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--service", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--other-job", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--starter", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.starter:
        threading.Thread(target=leave_with, args=(args.starter,), daemon=True).start()
    if args.service:
        serve(args.service, patient=args.variant != "replies")
    elif args.other_job:
        other_job()
    elif "RANK" in os.environ:
        train(stubborn=args.variant == "retries")
    else:
        sys.exit(main(args.variant, args.ranks))
