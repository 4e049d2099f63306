"""Output of `ss -tinp`, and of `netstat -tanpo`: TCP connections of a host with kernel counters, by PID.

iproute2 (misc/ss.c) omits zero counters, so an absent counter is zero, unless the version of ss is too old to print it.
`-o` adds the timer, `-e` user and inode. Sockets of programs that cannot be ranks are ignored.
"""

from __future__ import annotations

import ipaddress
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from hangdoc.evidence import Connection, Sockets
from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._pasted_text import OwnerHints, parse_channels, text_lines

Fields = dict[str, Any]

_STATES = {
    "ESTAB": "established",
    "SYN-SENT": "syn_sent",
    "SYN-RECV": "syn_recv",
    "FIN-WAIT-1": "fin_wait1",
    "FIN-WAIT-2": "fin_wait2",
    "UNCONN": "close",
    "CLOSE-WAIT": "close_wait",
    "LAST-ACK": "last_ack",
    "LISTEN": "listen",
    "CLOSING": "closing",
}
_STATE = "|".join(_STATES)
_ENDPOINT = r"(?:\[[0-9A-Fa-f:.]+(?:%[\w.\-]+)?\]|[0-9A-Fa-f:.]+(?:%[\w.\-]+)?|\*)(?:%[\w.\-]+)?:(?:\d{1,5}|\*)"
_ROW = re.compile(
    rf"(?:tcp\s+)?(?:({_STATE}|TIME-WAIT)\s+)?(\d{{1,10}})\s+(\d{{1,10}})\s+({_ENDPOINT})\s+({_ENDPOINT})(?:\s+(.*))?\s*"
)
# `netstat -tanpo`: the state after the endpoints, then PID and program, then the timer.
_NETSTAT = re.compile(
    rf"\s{{0,8}}tcp6?\s+(?P<receive>\d{{1,10}})\s+(?P<send>\d{{1,10}})\s+(?P<local>{_ENDPOINT})\s+(?P<remote>{_ENDPOINT})\s+"
    r"(?P<state>[A-Z_\d]{5,12})(?:\s+(?P<pid>\d{1,9})/(?P<name>\S{1,40})|\s+-)?"
    r"(?:\s+(?P<timer>\w{2,10}) \((?P<left>[\d.]{1,12})/(?P<count>\d{1,6})/\d{1,6}\))?\s*"
)
_NETSTAT_STATES = {"ESTABLISHED": "ESTAB", "SYN_SENT": "SYN-SENT", "SYN_RECV": "SYN-RECV", "FIN_WAIT1": "FIN-WAIT-1",
                   "FIN_WAIT2": "FIN-WAIT-2", "CLOSE_WAIT": "CLOSE-WAIT", "LAST_ACK": "LAST-ACK", "LISTEN": "LISTEN",
                   "CLOSING": "CLOSING", "TIME_WAIT": "TIME-WAIT"}  # fmt: skip
_HEADER = re.compile(r"(?:(?:Netid\s+)?State\s+)?Recv-Q\s+Send-Q\s.*")
OPENING = re.compile(
    rf"(?:tcp6?\s+|(?<![\w.:-]))(?:(?:{_STATE}|TIME-WAIT)\s+)?\d{{1,10}}\s+\d{{1,10}}\s+{_ENDPOINT}\s"
    r"|(?:Netid\s+|Proto\s+)?(?:State\s+)?Recv-Q\s+Send-Q"
)
_USER = re.compile(r'\("((?:[^"\\]|\\.){0,64})",pid=(\d{1,9}),fd=\d+\)')
_TIMER = re.compile(r"timer:\((\w+),[^,)]*,(\d{1,9})\)")
_PAIR = re.compile(r"(?<![\w:])([a-z_]+):(\d{1,20})(?:ms)?(?=[\s(]|$)")
_RETRANS = re.compile(r"\bretrans:(\d{1,9})/(\d{1,9})")
_TIMED = re.compile(r"\b(busy|rwnd_limited):(\d{1,15})ms")
_RTT = re.compile(r"(?<![a-z_])(rtt|minrtt):(\d{1,9}(?:\.\d{1,9})?)")
_RATE = re.compile(r"\bdelivery_rate (\d{1,20})bps")
_INFO = re.compile(r"(?<![a-z_])rto:\d|\bmss:\d")
_ROWS = re.compile(
    rf"^.{{0,80}}?(?:\b(?:{_STATE})\s+|\btcp6?\s+|^\s{{0,8}})\d{{1,10}}\s+\d{{1,10}}\s+{_ENDPOINT}\s+{_ENDPOINT}",
    re.MULTILINE,
)
_ZERO_IF_ABSENT = {  # name in ss -> field of Connection; absent: zero
    "unacked": "unacked", "sacked": "sacked", "backoff": "backoff", "notsent": "not_sent",
}  # fmt: skip
_UNKNOWN_IF_ABSENT = {  # name in ss -> field of Connection; absent: unknown
    "mss": "segment_bytes",
    "pmtu": "pmtu",
    "bytes_sent": "bytes_sent",
    "bytes_acked": "bytes_acked",
    "bytes_received": "bytes_received",
    "segs_out": "segments_out",
    "data_segs_out": "data_segments_out",
    "delivered": "delivered",
    "snd_wnd": "send_window",
    "bytes_retrans": "bytes_retransmitted",
    "dsack_dups": "repeated_needlessly",
}
_COUNTED = (
    "bytes_sent",
    "bytes_acked",
    "bytes_received",
    "bytes_retransmitted",
    "repeated_needlessly",
    "data_segments_out",
    "delivered",
)
_AGES = {"lastsnd": "last_send_s", "lastrcv": "last_receive_s", "lastack": "last_ack_s"}
_TIMERS = {"on": "on", "keepalive": "keepalive", "timewait": "timewait", "persist": "persist"}
_RANK_COMMANDS = re.compile(r"python|^pt_|^ray::|mpi|torch|train|deepspeed|^cuda|nccl|gloo", re.IGNORECASE)
_LAUNCHERS = frozenset(
    {"pt_elastic", "torchrun", "mpirun", "mpiexec", "orted", "prted", "hydra_pmi_proxy", "srun", "deepspeed"}
)
MAX_ROWS = 100_000  # connections per table
MAX_UNOWNED = 64  # events of a table
MAX_ROWS_SMALL, BYTES_A_ROW = 5_000, 8  # limit for small files: a compressed row takes at least 8 bytes


@dataclass(slots=True)
class _Row:
    users: list[tuple[str, int]]
    fields: Fields
    info: bool = False


@dataclass(slots=True)
class _Table:
    """One output of ss on one host."""

    process: ProcessRef
    rows: list[_Row] = field(default_factory=list)
    timers: bool = False  # with -o
    inodes: bool = False  # with -e


class SsReader:
    name = "ss output"
    order = 33
    marks = ("Recv-Q",)
    help = "`ss -tinpoe` on every host, as root, while the job is stuck"

    def recognises(self, source: Source) -> bool:
        head = source.head_text
        rows = _ROWS.findall(head)
        shown = (
            re.search(r"(?:State|Proto)\s+Recv-Q\s+Send-Q", head)
            or (_INFO.search(head) and (_USER.search(head) or _TIMER.search(head) or _RETRANS.search(head)))
            or re.search(r"\bon \(\d{1,9}\.\d{1,3}/[1-9]\d{0,5}/\d", head)
        )
        return len(rows) >= (1 if shown else 3)

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        most = min(MAX_ROWS, MAX_ROWS_SMALL + source.size // BYTES_A_ROW)
        texts = text_lines(source, context)
        tables = [piece.record for piece in parse_channels(texts, OPENING, lambda hints: _Parser(hints, most))]
        if not any(row.users for table in tables for row in table.rows):
            context.warn(f"{source.name}: it names no process; run `ss -tinpoe` as root")
        for table in tables:
            yield from _pieces(table)
            if not any(row.users for row in table.rows):
                yield from _unowned(table, source.name)


class _Parser:
    """Parses one channel (`_pasted_text.ChannelParser`)."""

    def __init__(self, hints: OwnerHints, most: int = MAX_ROWS) -> None:
        self.pieces: list[Piece] = []
        self._hints = hints
        self._most = most  # connections per table
        self._table: _Table | None = None

    def feed(self, text: str) -> bool:
        if _HEADER.fullmatch(text):
            self.end()
            self._table = _Table(self._hints.take())
            return True
        if netstat := _NETSTAT.fullmatch(text):
            text = _as_ss(netstat)
        if found := _ROW.fullmatch(text):
            if self._table is None or self._hints.updated:
                self.end()
                self._table = _Table(self._hints.take())
            if (found[1] or "ESTAB") in _STATES and len(self._table.rows) < self._most:
                self._table.rows.append(_Row([], _endpoints(found)))
                self._add_details(self._table, found[6] or "")
            return True
        if (
            self._table is not None
            and self._table.rows
            and ((text[:1] in "\t " and text.strip()) or _INFO.search(text))
        ):
            self._add_details(self._table, text)
            return True
        return not text.strip() and self._table is not None

    def _add_details(self, table: _Table, text: str) -> None:
        """Parse the details after the endpoints: on the same line (-O) or the next."""
        row = table.rows[-1]
        row.users += [(found[1], int(found[2])) for found in _USER.finditer(text)][:64]
        if timer := _TIMER.search(text):
            table.timers = True
            count = int(timer[2])
            row.fields["timer"] = _TIMERS.get(timer[1])
            row.fields["retransmits" if timer[1] == "on" else "probes"] = count
        found = dict(_PAIR.findall(text))
        if "ino" in found:
            table.inodes = True
            row.fields["inode"] = int(found["ino"])
            row.fields["uid"] = int(found.get("uid", 0))
        if _INFO.search(text):
            row.info = True
            row.fields.update({k: v for k, v in _counters(text, found).items() if row.fields.get(k) is None})

    def end(self) -> None:
        if self._table is not None and self._table.rows:
            self.pieces.append(Piece(self._table.process, "sockets", self._table))
        self._table = None


def _as_ss(row: re.Match[str]) -> str:
    """A row of netstat as `ss -tnpo` prints it."""
    user = f'users:(("{row["name"]}",pid={row["pid"]},fd=0))' if row["pid"] else ""
    timer = f"timer:({row['timer']},{row['left']}sec,{row['count']})" if row["timer"] and row["timer"] != "off" else ""
    state = _NETSTAT_STATES.get(row["state"], "TIME-WAIT")
    return f"{state} {row['receive']} {row['send']} {row['local']} {row['remote']} {user} {timer}"


def _endpoints(row: re.Match[str]) -> Fields:
    (local, port, interface), (remote, remote_port, _) = _endpoint(row[4]), _endpoint(row[5])
    state = _STATES.get(row[1] or "ESTAB", "other")
    return {
        "local": local,
        "local_port": port,
        "remote": remote,
        "remote_port": remote_port,
        "state": state,
        "receive_queue": int(row[2]),
        "send_queue": 0 if state == "listen" else int(row[3]),  # on a listener: the backlog limit
        "interface": interface,
    }


def _endpoint(text: str) -> tuple[str, int, str | None]:
    """Address (IPv4-mapped IPv6 as IPv4), port and bound interface."""
    address, _, port = text.rpartition(":")
    address, _, interface = address.replace("[", "").replace("]", "").partition("%")
    try:
        known = ipaddress.ip_address(address)
        address = str(getattr(known, "ipv4_mapped", None) or known)
    except ValueError:
        address = "0.0.0.0"  # "*"
    return address, int(port) if port.isdigit() else 0, interface or None


def _counters(text: str, found: dict[str, str]) -> Fields:
    fields: Fields = {name: int(found.get(shown, 0)) for shown, name in _ZERO_IF_ABSENT.items()}
    fields |= {name: int(found[shown]) for shown, name in _UNKNOWN_IF_ABSENT.items() if shown in found}
    if "bytes_sent" in found or ("snd_wnd" in found):  # this version prints them if not zero
        fields = dict.fromkeys(_COUNTED, 0) | fields
    retrans = _RETRANS.search(text)
    fields["total_retransmits"] = int(retrans[2]) if retrans else 0
    # Without -o the current retransmit count is absent; `backoff` counts retransmission timeouts in a row.
    fields["retransmits"] = fields["backoff"] if fields["unacked"] else 0
    fields |= {name: int(found.get(shown, 0)) / 1e3 for shown, name in _AGES.items()}
    if not fields.get("bytes_received"):
        fields["last_receive_s"] = None
    if not fields.get("bytes_sent", fields.get("bytes_acked")):
        fields["last_send_s"] = None
    timed = {name: int(value) / 1e3 for name, value in _TIMED.findall(text)}
    fields["busy_s"], fields["receiver_limited_s"] = timed.get("busy", 0.0), timed.get("rwnd_limited", 0.0)
    times = {name: float(value) / 1e3 for name, value in _RTT.findall(text)}
    fields["rtt_s"], fields["least_rtt_s"] = times.get("rtt"), times.get("minrtt")
    if rate := _RATE.search(text):
        fields["delivery_rate"] = int(rate[1]) // 8
    return fields


def _pieces(table: _Table) -> Iterator[Piece]:
    """A record for each likely rank."""
    names = {pid: name for row in table.rows for name, pid in row.users if name not in _LAUNCHERS}
    ranks = {pid for pid, name in names.items() if _RANK_COMMANDS.search(name)}
    owners = {_connection_key(row.fields): pid for row in table.rows for _, pid in row.users[:1]}
    by_pid: dict[int, list[Connection]] = defaultdict(list)
    for row in table.rows:
        fields = row.fields
        if table.timers:
            fields = {"timer": "off"} | fields
        peer = owners.get((fields["remote"], fields["remote_port"], fields["local"], fields["local_port"]))
        connection = Connection(**fields, peer_pid=peer)
        for pid in {pid for _, pid in row.users}:
            if pid in ranks:
                by_pid[pid].append(connection)
    for pid, connections in sorted(by_pid.items()):
        only_rank = table.process.rank is not None and len(by_pid) == 1
        process = table.process if only_rank else ProcessRef(host=table.process.host)
        yield Piece(replace(process, pid=pid), "sockets", Sockets(tuple(connections)))


def _unowned(table: _Table, source: str) -> Iterator[Piece]:
    """The connections with data that was retransmitted, of a table that names no process."""
    events: list[LogEvent] = []
    for number, row in enumerate(table.rows, 1):
        fields = row.fields
        repeats = fields.get("retransmits") or fields.get("backoff") or 0
        if fields["send_queue"] and repeats and fields["state"] == "established" and len(events) < MAX_UNOWNED:
            to = f"{fields['local']}:{fields['local_port']} to {fields['remote']}:{fields['remote_port']}"
            text = f"{to}: {fields['send_queue']} bytes are not acknowledged after {repeats} retransmissions"
            shown = {"repeats": str(repeats)}
            if row.info and fields.get("last_ack_s") is not None:
                shown["silent_s"] = str(int(fields["last_ack_s"]))
            events.append(LogEvent("socket_row", text, source, number, None, shown))
    resent: dict[tuple[str, str], int] = defaultdict(int)
    for row in table.rows:
        if row.info and row.fields["state"] == "established":
            resent[row.fields["local"], row.fields["remote"]] += row.fields.get("total_retransmits") or 0
    for number, ((local, remote), count) in enumerate(list(resent.items())[:MAX_UNOWNED], 1):
        text = f"{local} to {remote}: {count} retransmissions"
        shown = {"local": local, "remote": remote, "resent": str(count)}
        events.append(LogEvent("peer_losses", text, source, number, None, shown))
    if events:
        yield Piece(ProcessRef(host=table.process.host), "logs", Logs(tuple(events)))


def _connection_key(one: Fields) -> tuple[str, int, str, int]:
    return one["local"], one["local_port"], one["remote"], one["remote_port"]


READER = SsReader()
