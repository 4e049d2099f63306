"""A job of two plain Python ranks that exchange messages; no torch. `plain_ranks.py END [AFTER_S]`

END: what becomes of the job after AFTER_S seconds.
    finishes   both ranks exit with 0
    stops      rank 1 stops itself (SIGSTOP), rank 0 waits for it for ever
    restarts   rank 1 fails; the launcher starts both ranks again, and rank 1 stops itself
"""

import os
import signal
import socket
import subprocess
import sys
import time

END, AFTER_S = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 3.0


def launch() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    codes = [1]
    for attempt in range(2):
        ours, theirs = _connected()
        ranks = []
        for rank, end in enumerate((ours, theirs)):
            env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "ATTEMPT": str(attempt), "FD": str(end.fileno())}
            ranks.append(subprocess.Popen([sys.executable, *sys.argv], env=env, pass_fds=[end.fileno()]))
            end.close()
        try:
            codes = [ranks[1].wait()]
            if codes[0]:
                ranks[0].kill()
            codes.append(ranks[0].wait())
        finally:
            for number in (signal.SIGSTOP, signal.SIGKILL):  # together: none may report that it lost the other
                for rank in ranks:
                    rank.send_signal(number)
        if not any(codes) or END != "restarts":
            break
    return 1 if any(codes) else 0


def _connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]


def train() -> None:
    """Rank 1 decides; rank 0 answers each message."""
    rank, peer = int(os.environ["RANK"]), socket.socket(fileno=int(os.environ["FD"]))
    until_s = time.monotonic() + AFTER_S
    last = b"step"
    while last == b"step":
        if rank == 1 and time.monotonic() > until_s:
            if END == "restarts" and os.environ["ATTEMPT"] == "0":
                raise RuntimeError("lost")
            if END in ("stops", "restarts"):
                os.kill(os.getpid(), signal.SIGSTOP)
            last = b"stop"
        if rank == 1:
            peer.sendall(last)
            time.sleep(0.05)
        answer = peer.recv(4)
        if rank == 0:
            last = answer
            peer.sendall(last)


if __name__ == "__main__":
    if "RANK" in os.environ:
        train()
    else:
        sys.exit(launch())
