"""Ports and paths of hosts as tools print them: which host differs from its peers in speed, MTU or state.

A single host says nothing: a management port is slow by design, and an unused one is down. What counts is a difference
between hosts, or a path that a tool measured.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hangdoc.analysis import Case, Detector, Suspect
from hangdoc.analysis.logs.log_events import TIMEOUTS, JobLogs, job_logs, known_host, number
from hangdoc.analysis.logs.measured_bandwidth import BandwidthJob
from hangdoc.analysis.ranks.host_ranks import on_hosts
from hangdoc.analysis.thresholds import (
    COMPARABLE_RANKS,
    CORRUPTED_FRAMES,
    DEAD_AFTER_S,
    DEAD_REPEATS,
    FAR_SLOWER_PORT,
    GOOD_LOSS,
    LOSS_THAT_SLOWS_TCP,
    LOST_PINGS,
    MANY_PINGS,
    MANY_RESENT,
    PLAIN_PING,
    RESENT_APART,
    SLOWER_PORT,
    UNSTABLE_STATES,
)
from hangdoc.evidence.logs import LogEvent

MAX_SUSPECTS = 16
MAX_STATES = 6  # of one port that are shown


@dataclass(frozen=True, slots=True)
class PortsJob:
    """Hosts whose ports differ from those of their peers, by the output of tools. None: nothing shows it."""

    slow: tuple[Suspect, ...] = ()  # hosts with a slower port than their peers
    slow_text: str | None = None  # "100 Mbit/s on worker-d, 10000 Mbit/s on worker-a and worker-b"
    far_slower: bool = False  # by more than a generation of Ethernet or InfiniBand
    agreed: bool = False  # a bandwidth test between hosts is slow on the same hosts
    slow_path: str | None = None  # a path far slower than another: "a to c 940 Mbit/s, a to b 94100 Mbit/s"
    other_mtu: tuple[Suspect, ...] = ()  # hosts with another MTU than most
    mtu_text: str | None = None  # "MTU 1500 on rk3-08, MTU 9000 on rk3-05 and rk3-06"
    large_lost: str | None = None  # a ping of full size, which was lost
    lost: str | None = None  # a small ping, which was lost
    down: tuple[Suspect, ...] = ()  # hosts with a port whose last reported state is down
    down_text: str | None = None  # the first line that shows it
    unstable: tuple[Suspect, ...] = ()  # hosts with a port whose state changes from one reading to the next
    unstable_text: str | None = None  # "mlx5_2/1 was init, then down, then active"
    reported: bool = False  # the job's own lines report a failing port
    blamed: tuple[Suspect, ...] = ()  # the hosts of the strongest of these signs, or their ranks
    suffers: bool = False  # a collective timed out, or a connection or a transfer between ranks failed
    rejects: tuple[Suspect, ...] = ()  # hosts whose firewall rejects or drops connections
    reject_text: str | None = None  # the first line or rule that shows it, or the ports that it lets in
    reject_seen: bool = False  # a line or a rule shows it; else a port that failed is not among those that it lets in
    lossy: tuple[Suspect, ...] = ()  # hosts that send many TCP segments again, by their counters
    lossy_text: str | None = None  # "r12: 5.5% of the TCP segments were sent again since the host started"
    erring: tuple[Suspect, ...] = ()  # hosts with a port whose counter of corrupted frames grows
    erring_text: str | None = None  # "ml24: rx_crc_errors_phy of eth1 grew from 22 to 9040"
    lossy_peer: str | None = None  # connections to one peer lose far more than those to others
    dead_path: str | None = None  # a connection of no known process on which nothing is acknowledged


class ReportedPortsDetector(Detector[object, PortsJob]):
    job_facts = PortsJob

    def derive(self, case: Case) -> tuple[dict[tuple[str, int], object], PortsJob]:
        logs = job_logs(case)
        measured = on_hosts(case, case.job(BandwidthJob).slow)
        if logs is None or not any(True for _, event in logs.unattributed if event.kind in KINDS):
            return {}, PortsJob(blamed=measured)
        slow, slow_text, far_slower = _slow(logs)
        other, mtu_text = _mtu(logs)
        down, down_text = _down(logs)
        unstable = _unstable(logs)
        erring = _erring(logs)
        lossy = _lossy(logs)
        seen = [(host, event) for host, event in logs.unattributed if event.kind == "firewall_rejects"]
        rejects = seen or _closed(logs)
        return {}, PortsJob(
            slow=_suspects(slow),
            slow_text=slow_text,
            far_slower=far_slower,
            agreed=bool(slow) and set(slow) == {one.host for one in case.job(BandwidthJob).slow},
            slow_path=_slow_path(logs),
            other_mtu=_suspects(other),
            mtu_text=mtu_text,
            large_lost=_lost(logs, large=True),
            lost=_lost(logs, large=False),
            down=_suspects(down),
            down_text=down_text,
            unstable=on_hosts(case, _suspects(_known(unstable))),
            unstable_text=_told(unstable),
            reported=any("port error" in event.fields.get("event", "") for event in logs.all("ib_event")),
            blamed=on_hosts(case, _suspects(slow or other or _known(erring) or down or _unreached(logs))) or measured,
            suffers=any(True for _ in logs.all(*TIMEOUTS, "ib_error", "connect_failed", "connection_closed")),
            rejects=on_hosts(case, _suspects(_known(host for host, _ in rejects))),
            reject_text=rejects[0][1].text if rejects else None,
            reject_seen=bool(seen),
            lossy=on_hosts(case, _suspects(_known(lossy))),
            lossy_text=_told(lossy),
            erring=_suspects(_known(erring)),
            erring_text=_told(erring),
            lossy_peer=_lossy_peer(logs),
            dead_path=_dead_path(logs),
        )


def _closed(logs: JobLogs) -> list[tuple[str | None, LogEvent]]:
    """The ports that a host lets in, if a rank could not connect to another port. Nothing, if several hosts list them:
    then it is not known whose port it was.
    """
    lists = [(host, event) for host, event in logs.unattributed if event.kind == "firewall_open"]
    failed = {event.fields["port"] for event in logs.all("connect_failed") if "port" in event.fields}
    unlisted = len(lists) == 1 and not failed <= set(lists[0][1].fields["ports"].split())
    return lists if unlisted else []


KINDS = frozenset(
    {
        "port_speed", "port_mtu", "port_state", "port_link", "path_rate", "path_loss", "firewall_rejects",
        "firewall_open", "tcp_totals", "socket_row", "peer_losses", "port_counter",
    }
)  # fmt: skip


def _suspects(hosts: Iterable[str]) -> tuple[Suspect, ...]:
    return tuple(Suspect(None, None, host) for host in hosts)[:MAX_SUSPECTS]


def _known(hosts: Iterable[str | None]) -> list[str]:
    return list(dict.fromkeys(host for one in hosts if (host := known_host(one))))


def _told(texts: Mapping[str | None, str]) -> str | None:
    """What was found, by host: "r12: 5.5% of the TCP segments were sent again"."""
    return "; ".join(f"{host}: {text}" if known_host(host) else text for host, text in texts.items()) or None


def _by_host(logs: JobLogs, kind: str, name: str) -> Mapping[str, Mapping[str, int]]:
    """For each host, the numbers that its lines of a kind show, by interface; the last one counts."""
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for at, event in logs.unattributed:
        value = number(event, name) if event.kind == kind else None
        if value is not None and (host := known_host(at)):
            found[host][event.fields.get("interface", "")] = value
    return found


def _comparable(hosts: Mapping[str, Mapping[str, int]]) -> Mapping[str, int]:
    """One number a host: of the interface that most hosts show, else the only one that each host shows."""
    shared = Counter(interface for ports in hosts.values() for interface in ports)
    if not shared:
        return {}
    interface, count = shared.most_common(1)[0]
    if count > 1:
        return {host: ports[interface] for host, ports in hosts.items() if interface in ports}
    return {host: next(iter(ports.values())) for host, ports in hosts.items() if len(ports) == 1}


def _slow(logs: JobLogs) -> tuple[Sequence[str], str | None, bool]:
    """The hosts with a slower port, what shows it, and whether it is far slower."""
    hosts = _by_host(logs, "port_speed", "mbit")
    speeds = _comparable(hosts)
    if slow := _slower(speeds):
        return slow, _sides(speeds, "{} Mbit/s on {}", slow), _far_slower(speeds, slow)
    for interface in sorted({name for ports in hosts.values() for name in ports if name}):  # hosts may have several
        speeds = {host: ports[interface] for host, ports in hosts.items() if interface in ports}
        slow = _slower(speeds) if len(speeds) >= COMPARABLE_RANKS else []
        if slow and not _renumbered(hosts, slow):
            return slow, f"{interface}: {_sides(speeds, '{} Mbit/s on {}', slow)}", _far_slower(speeds, slow)
    return [], None, False


def _renumbered(hosts: Mapping[str, Mapping[str, int]], slow: Sequence[str]) -> bool:
    """True if a slow host has the same speeds as another one, under other names."""
    others = [sorted(ports.values()) for host, ports in hosts.items() if host not in slow]
    return any(sorted(hosts[host].values()) in others for host in slow)


def _slower(speeds: Mapping[str, int]) -> list[str]:
    """The hosts far below the fastest; none, if they are the most."""
    fastest = max(speeds.values(), default=0)
    slow = [host for host, speed in speeds.items() if speed * SLOWER_PORT <= fastest]
    return slow if 2 * len(slow) <= len(speeds) else []


def _far_slower(speeds: Mapping[str, int], slow: Sequence[str]) -> bool:
    fastest = max(speeds.values(), default=0)
    return any(speeds[host] * FAR_SLOWER_PORT <= fastest for host in slow)


def _mtu(logs: JobLogs) -> tuple[Sequence[str], str | None]:
    """The hosts with another MTU than most have, and what all have.

    Without a majority: those whose port is set below what it can do, if that is shown of all of them.
    """
    sizes = _comparable(_by_host(logs, "port_mtu", "mtu"))
    counts = Counter(sizes.values()).most_common(2)
    if len(counts) < 2:
        return [], None
    if counts[0][1] > counts[1][1] and len(sizes) >= COMPARABLE_RANKS:
        other = [host for host, size in sizes.items() if size != counts[0][0]]
    else:
        most = _comparable(_by_host(logs, "port_mtu", "most"))
        lowered = sorted(host for host, size in most.items() if sizes[host] < size)
        other = lowered if most.keys() == sizes.keys() and len(lowered) < len(sizes) else []
    return other, _sides(sizes, "MTU {} on {}", other)


def _sides(numbers: Mapping[str, int], what: str, first: Sequence[str]) -> str:
    """Each number and its hosts. `what`: "{} Mbit/s on {}"; `first`: hosts to begin with."""
    sides: dict[int, list[str]] = defaultdict(list)
    for host in sorted(numbers, key=lambda host: (host not in first, host)):
        sides[numbers[host]].append(host)
    return ", ".join(what.format(value, " and ".join(hosts[:3])) for value, hosts in sides.items())[:400]


def _slow_path(logs: JobLogs) -> str | None:
    """The slowest measured path next to the fastest one, if they are far apart."""
    rates: dict[tuple[str, str], float] = {}
    for event in logs.all("path_rate"):
        rates[event.fields.get("from", "?"), event.fields.get("to", "?")] = float(event.fields.get("mbit", "0"))
    if len(rates) < 2:
        return None
    ranked = sorted(rates, key=lambda pair: rates[pair])
    slow, fast = ranked[0], ranked[-1]
    if not rates[slow] or rates[slow] * SLOWER_PORT > rates[fast]:
        return None
    return ", ".join(f"{one} to {other} {rates[one, other]:g} Mbit/s" for one, other in (slow, fast))


def _lost(logs: JobLogs, large: bool) -> str | None:
    for event in logs.all("path_loss"):
        is_large = (number(event, "bytes") or 0) > PLAIN_PING
        if is_large == large and (number(event, "percent") or 0) >= LOST_PINGS:
            return f"ping of {event.fields.get('bytes')} bytes to {event.fields.get('to')}: {event.text}"
    return None


def _unreached(logs: JobLogs) -> list[str]:
    """The one host that pings of full size do not reach, while they reach others: two, or one if small pings arrive."""
    pings = [(number(event, "bytes") or 0, event) for event in logs.all("path_loss")]
    failed = [(size, event) for size, event in pings if (number(event, "percent") or 0) >= LOST_PINGS]
    lost = {event.fields.get("to", "") for size, event in failed if size > PLAIN_PING}
    reached = {event.fields.get("to", "") for size, event in pings if size > PLAIN_PING} - lost
    alive = {event.fields.get("to", "") for size, event in pings if size <= PLAIN_PING and (size, event) not in failed}
    return list(lost) if len(lost) == 1 and len(reached) > (0 if lost <= alive else 1) else []


def _lossy(logs: JobLogs) -> Mapping[str | None, str]:
    """Hosts that send many segments again: between two readings of their counters, or since the host started."""
    counters: dict[str | None, list[LogEvent]] = defaultdict(list)
    for host, event in logs.unattributed:
        if event.kind == "tcp_totals":
            counters[host].append(event)
    found = {}
    for host, own in counters.items():
        since = "between the two readings" if len(own) > 1 else "since the host started"
        sent, again = (
            (number(own[-1], name) or 0) - ((number(own[0], name) or 0) if len(own) > 1 else 0)
            for name in ("sent", "resent")
        )
        if sent > 0 and again >= MANY_RESENT and again >= LOSS_THAT_SLOWS_TCP * sent:
            found[host] = f"{again / sent:.1%} of the TCP segments were sent again {since}"
    return found or _badly_reached(logs)


def _badly_reached(logs: JobLogs) -> Mapping[str | None, str]:
    """The one host to which many pings were lost, while those to another host arrived."""
    counts = {
        event.fields.get("to", ""): (number(event, "lost") or 0, number(event, "sent") or 0)
        for event in logs.all("path_loss")
        if (number(event, "bytes") or 0) <= PLAIN_PING and (number(event, "sent") or 0) >= MANY_PINGS
    }
    bad = [to for to, (lost, sent) in counts.items() if lost >= LOSS_THAT_SLOWS_TCP * sent]
    good = [to for to, (lost, sent) in counts.items() if lost <= GOOD_LOSS * sent]
    if len(bad) != 1 or not good:
        return {}
    (lost, sent), (lost_there, sent_there) = counts[bad[0]], counts[good[0]]
    return {bad[0]: f"{lost} of {sent} pings to it were lost, and {lost_there} of {sent_there} to {good[0]}"}


def _erring(logs: JobLogs) -> Mapping[str | None, str]:
    """Hosts with a port whose counter of corrupted frames grew between two readings.

    A single reading counts where another host loses data to one peer alone: its own port would lose that of all.
    """
    reporters = {host for host, event in logs.unattributed if event.kind == "peer_losses"}
    lossy = _lossy_peer(logs) is not None
    readings: dict[tuple[str | None, str, str], list[int]] = defaultdict(list)
    for host, event in logs.unattributed:
        value = number(event, "value") if event.kind == "port_counter" else None
        if value is not None:
            readings[host, event.fields.get("interface", ""), event.fields.get("counter", "")].append(value)
    found: dict[str | None, str] = {}
    for (host, interface, counter), values in readings.items():
        if values[-1] - values[0] >= CORRUPTED_FRAMES:
            found.setdefault(host, f"{counter} of {interface} grew from {values[0]} to {values[-1]}")
        elif lossy and host not in reporters and values[-1] >= CORRUPTED_FRAMES:
            found.setdefault(host, f"{counter} of {interface} is {values[-1]}")
    return found


def _lossy_peer(logs: JobLogs) -> str | None:
    """The peer to which far more is sent again than to any other, from one host."""
    resent: dict[str, dict[str, int]] = defaultdict(dict)
    for event in logs.all("peer_losses"):
        local, remote = event.fields.get("local", ""), event.fields.get("remote", "")
        resent[local][remote] = max(number(event, "resent") or 0, resent[local].get(remote, 0))
    for local, peers in resent.items():
        worst = max(peers, key=lambda peer: peers[peer])
        most = max((count for peer, count in peers.items() if peer != worst), default=None)
        if most is not None and peers[worst] >= MANY_RESENT and peers[worst] >= RESENT_APART * most:
            return f"{peers[worst]} retransmissions from {local} to {worst}, at most {most} to its other peers"
    return None


def _dead_path(logs: JobLogs) -> str | None:
    """A connection with data in flight that was retransmitted in vain; not a pause of a second."""
    for event in logs.all("socket_row"):
        repeats, silent_s = number(event, "repeats") or 0, number(event, "silent_s")
        if repeats >= DEAD_REPEATS and (silent_s is None or silent_s >= DEAD_AFTER_S):
            return event.text
    return None


def _down(logs: JobLogs) -> tuple[Sequence[str], str | None]:
    """Hosts with a port that is down, and the line.

    A tool lists every port of a host, and those without a cable are down: they count only if it shows none that is up.
    """
    states: dict[tuple[str | None, str], tuple[str, str]] = {}
    with_port_up = {
        host
        for host, event in logs.unattributed
        if event.kind == "port_state" and event.fields.get("state") in ("up", "active")
    }
    for host, event in logs.unattributed:
        if event.kind == "port_link" or (event.kind == "port_state" and host not in with_port_up):
            port = event.fields.get("interface") or event.fields.get("port", "")
            states[host, port] = event.fields.get("state", ""), event.text
    down = {key: text for key, (state, text) in states.items() if state == "down"}
    if not down:
        return [], None
    return _known(host for host, _ in down), next(iter(down.values()))


def _unstable(logs: JobLogs) -> Mapping[str | None, str]:
    """Hosts with a port whose state changed again and again. A single change may be its repair."""
    readings: dict[tuple[str | None, str], list[str]] = defaultdict(list)
    for host, event in logs.unattributed:
        if event.kind == "port_state" and (state := event.fields.get("state")):
            states = readings[host, event.fields.get("interface") or event.fields.get("port", "")]
            if not states or states[-1] != state:
                states.append(state)
    found: dict[str | None, str] = {}
    for (host, port), states in readings.items():
        if port and len(states) >= UNSTABLE_STATES and "down" in states and {"up", "active"} & set(states):
            found.setdefault(host, f"{port} was {', then '.join(states[:MAX_STATES])}")
    return found


ANALYSIS = ReportedPortsDetector()
