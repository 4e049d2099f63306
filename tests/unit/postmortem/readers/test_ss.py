"""`ss` output yields the same record as the live probe."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import asdict

from hangdoc.analysis.network import tcp_counters
from hangdoc.evidence import Connection, Sockets
from hangdoc.evidence.pieces import Piece
from hangdoc.system.sockdiag import SockDiag
from tests.support.samples import SAMPLES, pieces, text

FOLDER = SAMPLES / "ss"


def connections(piece: Piece) -> tuple[Connection, ...]:
    assert isinstance(piece.record, Sockets)
    return piece.record.connections


def test_connections_of_likely_ranks_only() -> None:
    found = pieces("ss", FOLDER / "tinp.txt")
    assert [piece.process.pid for piece in found] == [28015, 28016, 28017]  # not the launcher
    mesh = [one for one in connections(found[0]) if one.local == "127.0.0.1"]
    assert sorted(one.peer_pid or 0 for one in mesh if one.local_port != 34594)[-2:] == [28016, 28017]
    first = next(one for one in mesh if one.local_port == 43712)
    assert (first.state, first.last_send_s, first.last_receive_s, first.last_ack_s) == (
        "established",
        13.012,
        13.012,
        13.012,
    )
    assert (first.unacked, first.retransmits, first.total_retransmits, first.send_queue) == (0, 0, 0, 0)
    assert (first.bytes_sent, first.bytes_acked, first.bytes_received) == (5568868, 5568869, 282539200)
    assert (first.pmtu, first.segment_bytes, first.busy_s, first.send_window) == (65535, 65483, 0.192, 8439808)


@pytest.mark.parametrize("name", ["tinpe.txt", "one_line.txt"])
def test_other_options_give_the_same_record(name: str) -> None:
    plain, other = (
        {
            piece.process.pid: [
                (c.local, c.local_port, c.remote_port, c.bytes_sent, c.peer_pid) for c in connections(piece)
            ]
            for piece in found
        }
        for found in (pieces("ss", FOLDER / "tinp.txt"), pieces("ss", FOLDER / name))
    )
    assert other == plain
    (first, *_) = connections(pieces("ss", FOLDER / name)[0])
    assert first.inode is not None
    assert first.uid == 0


def test_a_dead_link() -> None:
    (found,) = pieces("ss", FOLDER / "dead.txt")
    (one,) = connections(found)
    assert (one.timer, one.retransmits, one.backoff, one.unacked, one.send_queue, one.not_sent) == (
        "on",
        6,
        4,
        12,
        50000,
        32624,
    )
    assert one.bytes_received == 0
    assert one.last_receive_s is None
    assert tcp_counters.dead(one)


def test_a_dead_link_without_timers() -> None:
    """Only `-o` shows how often the segment was repeated; at least as often as the time to the next was doubled."""
    (found,) = pieces("ss", FOLDER / "dead_without_timers.txt")
    (one,) = connections(found)
    assert (one.timer, one.retransmits) == (None, 4)
    assert tcp_counters.dead(one)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("ESTAB 0 0 [::ffff:10.0.0.1]:5 [::ffff:10.0.0.2]:6", ("10.0.0.1", 5, "10.0.0.2", 6, None)),
        ("SYN-SENT 0 1 10.0.0.1%eth0:5 10.0.0.2:6", ("10.0.0.1", 5, "10.0.0.2", 6, "eth0")),
        ("tcp ESTAB 0 0 [fe80::1%eth1]:5 [fe80::2]:6", ("fe80::1", 5, "fe80::2", 6, "eth1")),
        ("LISTEN 0 128 *:5 *:*", ("0.0.0.0", 5, "0.0.0.0", 0, None)),
    ],
)
def test_addresses(row: str, expected: tuple[object, ...], tmp_path: Path) -> None:
    (found,) = text("ss", tmp_path, f'State Recv-Q Send-Q Local Peer\n{row} users:(("python",pid=7,fd=3))\n')
    (one,) = connections(found)
    assert (one.local, one.local_port, one.remote, one.remote_port, one.interface) == expected
    assert one.unacked is None, "no counters were shown"
    assert one.send_queue == (1 if "SYN" in row else 0)


def test_hosts_and_looks(tmp_path: Path) -> None:
    row = 'ESTAB 0 0 10.0.0.1:5 10.0.0.2:6 users:(("python",pid=7,fd=3))'
    table = f"State Recv-Q Send-Q Local Address:Port Peer Address:Port\n{row}\n"
    found = text("ss", tmp_path, f"=== node-a ===\n{table}{table}=== node-b ===\n{table}")
    assert [(piece.process.host, piece.process.pid) for piece in found] == [("node-a", 7), ("node-a", 7), ("node-b", 7)]


@pytest.mark.skipif(shutil.which("ss") is None, reason="no ss here")
def test_record_of_a_real_connection_equals_the_probes(tmp_path: Path) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    connect = f"s = socket.create_connection(('127.0.0.1', {port})); s.send(b'x' * 1000)"
    code = f"import socket, sys; {connect}; sys.stdin.read()"
    client = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        accepted, _ = server.accept()
        assert len(accepted.recv(1000, socket.MSG_WAITALL)) == 1000
        inode = int(os.readlink(f"/proc/self/fd/{accepted.fileno()}")[8:-1])
        diag = SockDiag()
        (live,) = diag.connections({inode})
        diag.close()
        shown = subprocess.run(["ss", "-tinpoe", f"sport = :{port}"], capture_output=True, check=True).stdout
        shown = shown.replace(Path("/proc/self/comm").read_bytes().strip(), b"python")  # it may be "pytest"
        found = [piece for piece in text("ss", tmp_path, shown) if piece.process.pid == os.getpid()]
    finally:
        client.communicate()
        server.close()
    (one,) = [c for piece in found for c in connections(piece) if c.inode == inode]
    same = asdict(one)
    drifting = {
        "last_send_s",
        "last_receive_s",
        "last_ack_s",
        "rtt_s",
        "least_rtt_s",
        "delivery_rate",
        "interface",
        "peer_pid",
    }
    assert {name: same[name] for name in live if name not in drifting and same[name] is not None} == {
        name: value for name, value in live.items() if name not in drifting and same[name] is not None
    }
    assert one.bytes_received == 1000
    assert one.last_send_s is None
    assert one.last_receive_s is not None
