"""The kernel's tables of sockets of one network namespace: TCP with tcp_info, or /proc/PID/net/tcp; Unix peers.

Uses the standard library on purpose. pyroute2 0.9 unpacks a tcp_info of fixed length whatever the kernel sent, so
before Linux 5.4 its newest fields contain bytes of the next attribute. It decodes every socket of the host, and we need
a few. Importing it takes 26 MB and 150 ms, even for a pulse.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Container, Iterator
from typing import Any

Fields = dict[str, Any]  # fields of evidence.Connection

STATES = {
    1: "established",
    2: "syn_sent",
    3: "syn_recv",
    4: "fin_wait1",
    5: "fin_wait2",
    7: "close",
    8: "close_wait",
    9: "last_ack",
    10: "listen",
    11: "closing",
}  # time_wait is left out: no process owns such a socket
TIMERS = {0: "off", 1: "on", 2: "keepalive", 3: "timewait", 4: "persist"}

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_ROOT | NLM_F_MATCH
_ERROR, _DONE = 2, 3
_INET_DIAG_INFO = 2

_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI48x")  # family, protocol, extensions, states; any address
_MESSAGE = struct.Struct("=4B2s2s16s16s12x5I")  # inet_diag_msg of linux/inet_diag.h
_INODE = struct.Struct("=I")
_INODE_AT = _HEADER.size + _MESSAGE.size - 4
_PORT_AT = _HEADER.size + 4
# unix_diag_req and unix_diag_msg of linux/unix_diag.h
_UNIX_REQUEST = struct.Struct("=BBH5I")  # family, protocol, padding, states, inode, what to show, cookie
_ALL_STATES = 0xFFFFFFFF
_SHOW_PEER, _UNIX_DIAG_PEER = 0x4, 2
_UNIX_INODE_AT, _UNIX_ATTRIBUTES_AT = _HEADER.size + 4, _HEADER.size + 16
_ATTRIBUTE = struct.Struct("=HH")
_PORT = struct.Struct(">H")
_BYTES_AT, _BYTES = 120, struct.Struct("=QQ")  # tcpi_bytes_acked and tcpi_bytes_received

# struct tcp_info of linux/tcp.h: field of Connection, offset, format, kernel units per unit of the field. The kernel
# only appends fields; those beyond the length that it sent stay unknown.
_TCP_INFO = tuple(
    (name, offset, struct.Struct("=" + code), scale)
    for name, offset, code, scale in (
        ("retransmits", 2, "B", 1),
        ("probes", 3, "B", 1),
        ("backoff", 4, "B", 1),
        ("segment_bytes", 16, "I", 1),
        ("unacked", 24, "I", 1),
        ("sacked", 28, "I", 1),
        ("last_send_s", 44, "I", 1e3),
        ("last_receive_s", 52, "I", 1e3),
        ("last_ack_s", 56, "I", 1e3),
        ("pmtu", 60, "I", 1),
        ("rtt_s", 68, "I", 1e6),
        ("total_retransmits", 100, "I", 1),
        ("bytes_acked", 120, "Q", 1),
        ("bytes_received", 128, "Q", 1),
        ("segments_out", 136, "I", 1),
        ("not_sent", 144, "I", 1),
        ("least_rtt_s", 148, "I", 1e6),
        ("data_segments_out", 156, "I", 1),
        ("delivery_rate", 160, "Q", 1),
        ("busy_s", 168, "Q", 1e6),
        ("receiver_limited_s", 176, "Q", 1e6),
        ("delivered", 192, "I", 1),
        ("bytes_sent", 200, "Q", 1),
        ("bytes_retransmitted", 208, "Q", 1),
        ("repeated_needlessly", 216, "I", 1),
        ("send_window", 228, "I", 1),
    )
)


class SockDiag:
    """An open sock_diag socket, bound to the network namespace of the thread that created it."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
        self._socket.settimeout(1.0)
        self._sequence = 0

    def close(self) -> None:
        self._socket.close()

    def connections(self, inodes: Container[int]) -> Iterator[Fields]:
        """The TCP sockets (IPv4 and IPv6) with one of `inodes`. Raises OSError: refused, or no tcp_diag."""
        for family in (socket.AF_INET, socket.AF_INET6):
            for message in self._dump(_tcp_request(family)):
                if _INODE.unpack_from(message, _INODE_AT)[0] in inodes:
                    yield _decode(message)

    def at_port(self, port: int) -> Iterator[Fields]:
        """The TCP sockets with local port `port`, listening ones included. Raises OSError as above."""
        wanted = _PORT.pack(port)
        for family in (socket.AF_INET, socket.AF_INET6):
            for message in self._dump(_tcp_request(family)):
                if message[_PORT_AT : _PORT_AT + 2] == wanted:
                    yield _decode(message)

    def bytes_moved(self, inodes: Container[int]) -> dict[int, int]:
        """Bytes that each TCP socket with one of `inodes` has sent and received. Raises OSError as above."""
        found: dict[int, int] = {}
        for family in (socket.AF_INET, socket.AF_INET6):
            for message in self._dump(_tcp_request(family)):
                (inode,) = _INODE.unpack_from(message, _INODE_AT)
                if inode in inodes:
                    info = _attributes(message, _HEADER.size + _MESSAGE.size).get(_INET_DIAG_INFO, b"")
                    if len(info) >= _BYTES_AT + _BYTES.size:
                        found[inode] = sum(_BYTES.unpack_from(info, _BYTES_AT))
        return found

    def unix_peers(self, inodes: Container[int]) -> dict[int, int]:
        """The inode at the other end of each connected Unix socket with one of `inodes`. Raises OSError as above."""
        found: dict[int, int] = {}
        for message in self._dump(_UNIX_REQUEST.pack(socket.AF_UNIX, 0, 0, _ALL_STATES, 0, _SHOW_PEER, 0, 0)):
            (inode,) = _INODE.unpack_from(message, _UNIX_INODE_AT)
            if inode in inodes and (peer := _attributes(message, _UNIX_ATTRIBUTES_AT).get(_UNIX_DIAG_PEER)):
                found[inode] = _INODE.unpack(peer)[0]
        return found

    def _dump(self, request: bytes) -> Iterator[bytes]:
        """The messages of one dump, with their headers."""
        self._sequence += 1
        header = _HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _DUMP, self._sequence, 0)
        self._socket.sendto(header + request, (0, 0))
        while True:
            data = self._socket.recv(1 << 16)
            offset = 0
            while offset + _HEADER.size <= len(data):
                length, kind, _, sequence, _ = _HEADER.unpack_from(data, offset)
                message = data[offset : offset + length]
                offset += (max(length, _HEADER.size) + 3) & ~3
                if sequence != self._sequence:
                    continue  # left over from an abandoned dump
                if kind in (_ERROR, _DONE):
                    status = struct.unpack_from("=i", message, _HEADER.size)[0] if length >= _HEADER.size + 4 else 0
                    if status < 0:
                        raise OSError(-status, os.strerror(-status))
                    return
                yield message


def _tcp_request(family: int) -> bytes:
    return _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), sum(1 << s for s in STATES))


def _decode(message: bytes) -> Fields:
    """Fields of a Connection from an inet_diag_msg and its INET_DIAG_INFO attribute."""
    family, state, timer, _, port, peer_port, address, peer, _, received, queued, uid, inode = _MESSAGE.unpack_from(
        message, _HEADER.size
    )
    fields: Fields = {
        "local": _address(family, address),
        "local_port": _PORT.unpack(port)[0],
        "remote": _address(family, peer),
        "remote_port": _PORT.unpack(peer_port)[0],
        "state": STATES.get(state, "other"),
        "timer": TIMERS.get(timer),
        "receive_queue": received,
        "send_queue": 0 if state == 10 else queued,  # for a listener this is the backlog limit
        "uid": uid,
        "inode": inode,
    }
    info = _attributes(message, _HEADER.size + _MESSAGE.size).get(_INET_DIAG_INFO)
    if info is not None and state != 10:
        fields.update(_tcp_info(info))
    return fields


def _attributes(message: bytes, offset: int) -> dict[int, bytes]:
    """The attributes of a message from `offset` on, by kind."""
    found: dict[int, bytes] = {}
    while offset + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, offset)
        found[kind] = message[offset + _ATTRIBUTE.size : offset + length]
        offset += (max(length, _ATTRIBUTE.size) + 3) & ~3
    return found


def _tcp_info(raw: bytes) -> Fields:
    fields: Fields = {
        name: value if scale == 1 else value / scale
        for name, offset, form, scale in _TCP_INFO
        if offset + form.size <= len(raw)
        for value in form.unpack_from(raw, offset)
    }
    # Before the first byte, these times count from boot or from the handshake.
    if fields.get("bytes_received") == 0:
        fields["last_receive_s"] = None
    if fields.get("bytes_sent") == 0:
        fields["last_send_s"] = None
    return fields


def _address(family: int, raw: bytes) -> str:
    """Text of an address; an IPv4-mapped IPv6 address becomes IPv4."""
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, raw[:4])
    if raw.startswith(b"\0" * 10 + b"\xff\xff"):
        return socket.inet_ntop(socket.AF_INET, raw[12:])
    return socket.inet_ntop(socket.AF_INET6, raw)


def read_proc_tables(pid: int, inodes: Container[int]) -> Iterator[Fields]:
    """Sockets from /proc/PID/net/tcp and tcp6, without tcp_info. Raises OSError."""
    for family, name in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        try:
            with open(f"/proc/{pid}/net/{name}", encoding="utf-8") as table:
                lines = table.readlines()[1:]
        except FileNotFoundError:
            if name == "tcp6":  # a kernel without IPv6
                continue
            raise
        for line in lines:
            row = line.split()
            if int(row[9]) in inodes and int(row[3], 16) in STATES:
                yield _proc_row(family, row)


def _proc_row(family: int, row: list[str]) -> Fields:
    local, local_port = row[1].split(":")
    remote, remote_port = row[2].split(":")
    sending, receiving = row[4].split(":")
    state, timer = int(row[3], 16), int(row[5].split(":")[0], 16)
    unanswered = int(row[6], 16)
    return {
        "local": _address(family, _words(local)),
        "local_port": int(local_port, 16),
        "remote": _address(family, _words(remote)),
        "remote_port": int(remote_port, 16),
        "state": STATES[state],
        "timer": TIMERS.get(timer),
        "send_queue": 0 if state == 10 else int(sending, 16),
        "receive_queue": int(receiving, 16),
        "retransmits": unanswered if timer == 1 else 0,
        "uid": int(row[7]),
        "inode": int(row[9]),
    }


def _words(text: str) -> bytes:
    """Bytes of an address; /proc prints 32-bit words in native byte order."""
    return b"".join(struct.pack("=I", int(text[at : at + 8], 16)) for at in range(0, len(text), 8))
