"""Sockets and interfaces (probes `sockets`, `nics`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Connection:
    """A TCP socket of a rank with the kernel's tcp_info (record of probe `sockets`, one of several)."""

    local: str
    local_port: int
    remote: str
    remote_port: int
    state: str  # established, syn_sent, listen, close_wait, ...
    receive_queue: int = 0  # bytes the rank has not read
    send_queue: int = 0  # bytes not acknowledged by the peer
    unacked: int | None = None  # segments in flight
    retransmits: int | None = None  # of the segment now at the head, in a row
    backoff: int | None = None
    total_retransmits: int | None = None
    last_send_s: float | None = None  # tcpi_last_data_sent (a retransmission counts); None before the first byte
    last_receive_s: float | None = None  # tcpi_last_data_recv; None before the first byte
    last_ack_s: float | None = None  # tcpi_last_ack_recv
    bytes_sent: int | None = None
    bytes_acked: int | None = None
    bytes_received: int | None = None
    bytes_retransmitted: int | None = None
    segments_out: int | None = None
    rtt_s: float | None = None
    pmtu: int | None = None
    busy_s: float | None = None  # time with data to send (tcpi_busy_time)
    receiver_limited_s: float | None = None  # tcpi_rwnd_limited
    delivery_rate: int | None = None  # bytes per second
    timer: str | None = None  # on | keepalive | timewait | persist | off
    uid: int | None = None
    inode: int | None = None
    interface: str | None = None  # that holds the local address
    peer_pid: int | None = None  # the other end's rank, where it was seen by the same agent
    probes: int | None = None  # window or keepalive probes unanswered in a row (tcpi_probes)
    not_sent: int | None = None  # part of send_queue that was never sent (tcpi_notsent_bytes)
    send_window: int | None = None  # bytes the peer will take (tcpi_snd_wnd, Linux >= 5.4); 0: it does not read
    segment_bytes: int | None = None  # most that one segment carries (tcpi_snd_mss)
    sacked: int | None = None  # segments that arrived after one that did not (tcpi_sacked)
    delivered: int | None = None  # segments that arrived, in all (tcpi_delivered)
    data_segments_out: int | None = None  # with repetitions (tcpi_data_segs_out)
    repeated_needlessly: int | None = None  # segments repeated that had arrived, as the peer said (tcpi_dsack_dups)
    least_rtt_s: float | None = None  # tcpi_min_rtt, of the last minutes


@dataclass(frozen=True, slots=True)
class Sockets:
    connections: tuple[Connection, ...]
    namespace: int | None = None  # inode of the network namespace


@dataclass(frozen=True, slots=True)
class Interface:
    name: str
    addresses: tuple[str, ...]
    kind: str  # ethernet | loopback | bridge | veth | wireless | infiniband | tunnel | other
    up: bool  # administratively
    carrier: bool | None  # operationally: a link is there
    mtu: int
    speed_mbit: int | None = None
    rx_errors: int | None = None
    tx_errors: int | None = None
    rx_bytes: int | None = None
    tx_bytes: int | None = None
    default_route: bool = False
    networks: tuple[str, ...] = ()  # its addresses with the length of the prefix: "10.0.0.1/24"
    queue: str | None = None  # the queueing discipline that it sends through, where that holds it to a rate: tbf, htb
    queue_rate: int | None = None  # that rate, bytes per second


@dataclass(frozen=True, slots=True)
class Interfaces:
    """Interfaces of a rank's network namespace (record of probe `nics`)."""

    interfaces: tuple[Interface, ...]
    namespace: int | None = None


@dataclass(frozen=True, slots=True)
class Echo:
    """How many echo requests of each size a host has answered."""

    remote: str = ""
    asked: int = 0  # of each size; 0: it was not asked
    small: int = 0
    full: int = 0
    full_bytes: int = 0  # of the whole IP packet: what the kernel believes the path to take

    @property
    def passes(self) -> str:
        """all | some: it comes through by chance | small: full-size packets do not | none | "": not told."""
        if not self.asked:
            return ""
        if not self.small and not self.full:
            return "none"
        if not self.full:
            return "small" if self.small > self.asked // 2 else ""
        return "all" if self.small == self.full == self.asked else "some"


UNASKED = Echo()


@dataclass(frozen=True, slots=True)
class Echoes:
    """Of the hosts at the other ends of a rank's connections (record of probe `echo`)."""

    echoes: tuple[Echo, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of a packet filter."""

    text: str  # as the tool writes it
    packets: int  # that it has matched since it was made
    refuses: bool  # it answers; else the packet vanishes


@dataclass(frozen=True, slots=True)
class Firewall:
    """Rules that let TCP packets not through (record of probe `firewall`)."""

    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class Port:
    """One port of an adapter."""

    adapter: str  # mlx5_0
    number: int
    state: str | None = None  # DOWN | INIT | ARMED | ACTIVE
    physical: str | None = None  # LinkUp, Disabled, Polling, ...
    layer: str | None = None  # InfiniBand | Ethernet
    rate: str | None = None  # "400 Gb/sec (4X NDR)"
    interface: str | None = None  # network interface of the same adapter
    sent_bytes: int | None = None
    received_bytes: int | None = None
    troubles: tuple[tuple[str, int], ...] = ()  # counters of errors that are not zero


@dataclass(frozen=True, slots=True)
class Infiniband:
    """The ports of a host (record of host probe `infiniband`)."""

    ports: tuple[Port, ...]


@dataclass(frozen=True, slots=True)
class InterfaceAddresses:
    """An interface, and the addresses that it holds."""

    name: str
    addresses: tuple[str, ...] = ()  # with the length of the network's prefix: "10.0.0.1/24"
    up: bool = False
    default: bool = False  # a default route leads out of it


@dataclass(frozen=True, slots=True)
class Addresses:
    """Of a rank's namespaces (record of probe `addresses`)."""

    interfaces: tuple[InterfaceAddresses, ...]
    namespace: int | None = None  # inode of the network namespace
    hostname: str | None = None
    named: tuple[str, ...] | None = None  # addresses that the hosts file gives that name; None: it was not readable
    line: str | None = None  # the first line of it that does: "/etc/hosts:2: 127.0.1.1 node-1"
