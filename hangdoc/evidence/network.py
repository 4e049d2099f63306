"""Sockets and interfaces (probes `sockets`, `nics`)."""

from __future__ import annotations

from hangdoc.evidence.record import Record


class Connection(Record, frozen=True):
    """A TCP socket of a rank, with the kernel's tcp_info (part of the record of probe `sockets`)."""

    local: str
    local_port: int
    remote: str
    remote_port: int
    state: str  # established, syn_sent, listen, close_wait, ...
    receive_queue: int = 0  # bytes received, not yet read by the rank
    send_queue: int = 0  # bytes not yet acknowledged by the peer
    unacked: int | None = None  # segments in flight
    retransmits: int | None = None  # consecutive retransmissions of the oldest unacknowledged segment
    backoff: int | None = None  # doublings of the retransmission timeout
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
    interface: str | None = None  # interface with the local address
    peer_pid: int | None = None  # PID of the rank at the remote end, if on the same host
    probes: int | None = None  # consecutive unanswered window or keepalive probes (tcpi_probes)
    not_sent: int | None = None  # bytes of send_queue that were never sent (tcpi_notsent_bytes)
    send_window: int | None = None  # bytes the peer accepts (tcpi_snd_wnd, Linux >= 5.4); 0: the peer does not read
    segment_bytes: int | None = None  # maximum segment size for sending (tcpi_snd_mss)
    sacked: int | None = None  # segments that arrived behind a lost one (tcpi_sacked)
    delivered: int | None = None  # segments that arrived, in total (tcpi_delivered)
    data_segments_out: int | None = None  # retransmissions included (tcpi_data_segs_out)
    repeated_needlessly: int | None = None  # spurious retransmissions, reported by the peer (tcpi_dsack_dups)
    least_rtt_s: float | None = None  # lowest RTT of the last minutes (tcpi_min_rtt)


class Sockets(Record, frozen=True):
    connections: tuple[Connection, ...]
    namespace: int | None = None  # inode of the network namespace


class Interface(Record, frozen=True):
    name: str
    addresses: tuple[str, ...]
    kind: str  # ethernet | loopback | bridge | veth | wireless | infiniband | tunnel | other
    up: bool  # administrative state
    carrier: bool | None  # operational state: the link is up
    mtu: int
    speed_mbit: int | None = None
    rx_errors: int | None = None
    tx_errors: int | None = None
    rx_bytes: int | None = None
    tx_bytes: int | None = None
    default_route: bool = False
    networks: tuple[str, ...] = ()  # the addresses with their prefix length: "10.0.0.1/24"
    queue: str | None = None  # queueing discipline that limits the send rate: tbf, htb
    queue_rate: int | None = None  # that limit, bytes per second


class Interfaces(Record, frozen=True):
    """Interfaces of a rank's network namespace (record of probe `nics`)."""

    interfaces: tuple[Interface, ...]
    namespace: int | None = None


class Echo(Record, frozen=True):
    """ICMP echo requests that a host answered, small and of full packet size."""

    remote: str = ""
    asked: int = 0  # requests of each size; 0: none sent
    small: int = 0  # answers to small requests
    full: int = 0  # answers to full-size requests
    full_bytes: int = 0  # size of the full IP packet: the path MTU as the kernel knows it

    @property
    def passes(self) -> str:
        """all | some: random loss | small: only small packets pass | none | "": unknown."""
        if not self.asked:
            return ""
        if not self.small and not self.full:
            return "none"
        if not self.full:
            return "small" if self.small > self.asked // 2 else ""
        return "all" if self.small == self.full == self.asked else "some"


UNASKED = Echo()


class Echoes(Record, frozen=True):
    """Answers of the hosts at the remote ends of a rank's connections (record of probe `echo`)."""

    echoes: tuple[Echo, ...]


class Rule(Record, frozen=True):
    """A rule of a packet filter."""

    text: str  # as the firewall tool prints it
    packets: int  # matched since the rule was added
    refuses: bool  # rejects with an answer; False: drops silently


class Firewall(Record, frozen=True):
    """Rules that block TCP packets (record of probe `firewall`)."""

    rules: tuple[Rule, ...]


class Port(Record, frozen=True):
    """One port of an adapter."""

    adapter: str  # mlx5_0
    number: int
    state: str | None = None  # DOWN | INIT | ARMED | ACTIVE
    physical: str | None = None  # LinkUp, Disabled, Polling, ...
    layer: str | None = None  # InfiniBand | Ethernet
    rate: str | None = None  # "400 Gb/sec (4X NDR)"
    interface: str | None = None  # network interface of this adapter
    sent_bytes: int | None = None
    received_bytes: int | None = None
    troubles: tuple[tuple[str, int], ...] = ()  # non-zero error counters


class Infiniband(Record, frozen=True):
    """The InfiniBand and RoCE ports of a host (record of host probe `infiniband`)."""

    ports: tuple[Port, ...]


class InterfaceAddresses(Record, frozen=True):
    """An interface and its addresses."""

    name: str
    addresses: tuple[str, ...] = ()  # with their prefix length: "10.0.0.1/24"
    up: bool = False
    default: bool = False  # a default route uses this interface


class Addresses(Record, frozen=True):
    """Addresses and host name in a rank's namespaces (record of probe `addresses`)."""

    interfaces: tuple[InterfaceAddresses, ...]
    namespace: int | None = None  # inode of the network namespace
    hostname: str | None = None
    named: tuple[str, ...] | None = None  # addresses of hostname in the hosts file; None: not readable
    line: str | None = None  # its first entry for hostname: "/etc/hosts:2: 127.0.1.1 node-1"
