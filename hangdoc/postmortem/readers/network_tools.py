"""What tools print of hosts: speed, MTU and state of ports, throughput, loss, firewalls, and versions of software.

`ethtool` and `ethtool -S`, `ip link`, `ifconfig`, `rdma link`, `ibstat`, `ibstatus`, `ibv_devinfo`, `ibdev2netdev`,
`iperf3`, `ib_write_bw`, `ping`, `iptables -L`, the kernel's log. The host of a line is in its prefix, in the prompt
above it, or in a heading.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._host_names import prompt_of
from hangdoc.postmortem.readers._pasted_text import text_lines
from hangdoc.postmortem.readers._shell_loops import shell_loop
from hangdoc.postmortem.readers._text_source import TextSource, text_source

_NAME = r"[A-Za-z0-9][\w.-]{0,80}"
_ADDRESS = r"\d{1,3}(?:\.\d{1,3}){3}"
# `[root@node3 ~]# `, `node3$ `, `user@node3:~/run$ `, `node3:~> `
_PROMPT = re.compile(
    rf"\s{{0,8}}\[?(?:[\w.-]{{1,40}}@)?({_NAME})(?:[ :][~/]?[\w./~-]{{0,80}})?\]?\s?[$#>%]\s{{1,4}}(\S.*)"
)
_BARE_PROMPT = re.compile(r"\s{0,8}[$#>%] {1,4}(\S.*)")
_SSH = re.compile(rf"\bssh (?:-\S+ )*(?:[\w.-]{{1,40}}@)?({_NAME})\b")
# `on node3:`, `node lm02 (10.3.0.12), root:`, `host node3`, `=== node3 ===`, `node3:`
_HEADING = re.compile(
    rf"\W{{0,8}}(?:(?:and |now )?(?:on|from|at) (?:the )?)?(?:(?:host|node|server|machine|worker)[ :]{{1,3}})?({_NAME})"
    rf"(?: ?\(({_ADDRESS}|{_NAME})\))?(?:,? (?:as )?root)?\s?(?::|=+|-+|\W*)\s*",
)
_AT_END = re.compile(
    r"\b(?:dmesg|ethtool|ip|ifconfig|journalctl|ibstat|ibstatus|rdma|iptables|nft)\b[^\n]{0,60}?"
    rf" (?:on|from|of) ({_NAME})"
)
_PREFIX = re.compile(rf"\s{{0,4}}\|?\s{{0,4}}({_NAME}(?: ?[/,&] ?{_NAME}){{0,16}}) ?[|:][ \t]{{0,8}}(?=\S)")
_PAIR = re.compile(rf"(?<![\w.])({_NAME}) ?\(({_ADDRESS})\)")
_ETC_HOSTS = re.compile(rf"\s{{0,4}}({_ADDRESS})\s{{1,16}}({_NAME})(?:\s{{1,16}}{_NAME}){{0,4}}\s*")
_SPEED = re.compile(r"\bSpeed: {0,4}(\d{1,7}) ?(M|G)b/?p?s\b|NIC Link is Up,? (\d{1,7}) ?(M|G)b", re.IGNORECASE)
_RATE = re.compile(r"^\s*\|?\s*[Rr]ate: {1,4}(\d{1,4})(?: Gb/sec.*)?\s*$")
_IP_LINK = re.compile(r"(?:\d{1,5}: )?([\w.-]{1,40})(?:@[\w.-]{1,40})?: <([A-Z_,-]{1,200})> mtu (\d{3,6})\b")
_IFCONFIG = re.compile(r"([\w.-]{1,40}): flags=\d{1,6}<([A-Z_,]{1,200})>\s{1,4}mtu (\d{3,6})\b")
_BARE_MTU = re.compile(r"\b(?:mtu|MTU)[ =:]{1,3}(\d{3,6})\b|\bactive_mtu:\s{1,24}(\d{3,5}) \(\d\)")
_RDMA = re.compile(r"\blink ([\w.-]{1,40}/\d{1,3}) (?:\S{1,40} ){0,8}?state (\w{1,20}) physical_state (\w{1,20})")
_NO_CARRIER = re.compile(r"\bLink detected: no\b")
_IB_PORT = re.compile(r"(?:CA '([\w.-]{1,40})'|Infiniband device '([\w.-]{1,40})' port|hca_id:\s{1,8}([\w.-]{1,40}))")
_IB_STATE = re.compile(r"^\s*(?:State|state): {0,20}\t{0,4}(?:\d: )?(?:PORT_)?(Down|DOWN|Active|ACTIVE|Init|INIT\w*)\b")
# `ibstat | paste - - - -`, or a loop that prints one line an adapter: `CA 'mlx5_1' State: Active ... Rate: 200`
_ADAPTER = r"(?:mlx[45]_|hfi1_|bnxt_re|irdma|qedr|ib)\d{1,3}"
_IB_ROW = re.compile(
    rf"\W{{0,8}}(?:CA |hca_id: ?|device )?'?({_ADAPTER})'?[\s:,]"
    r"(?P<rest>.{0,200}?\b[Rr]ate:[ \t]{0,12}(?P<rate>\d{1,4})\b.{0,60})"
)
_ROW_STATE = re.compile(r"(?<![Pp]hysical )\b[Ss]tate:[ \t]{0,12}(?:\d: )?(?:PORT_)?(Down|Active|Init)", re.IGNORECASE)
_NETDEV = re.compile(rf"\s*({_ADAPTER}) port \d{{1,2}} ==> [\w.-]{{1,40}} \((Up|Down)\)\s*")  # ibdev2netdev
_KERNEL_LINK = re.compile(
    r"(?:mlx5_core|mlx4_en|ixgbe|i40e|ice|bnxt_en|igb|e1000e|r8169|tg3|ena|qede|nfp)\b[: ].{0,40}?"
    r"\b([a-z][\w.-]{1,30})[: ]{1,3}(?:(?:NIC )?[Ll]ink (?:is )?)([Dd]own|[Uu]p)\b"
)
_PATH = re.compile(
    rf"(?<![\w.])({_NAME}) {{0,4}}(?:-+>|=>|→|<-+>|to) {{0,4}}({_NAME}) {{0,8}}[:=|]? {{0,8}}"
    r"(\d{1,6}(?:\.\d{1,6})?) ?"
    r"([KMG])(?:bits?/s(?:ec)?|bps|b/s|bit/s)"
)
_IPERF = re.compile(rf"\biperf3? (?:-\S{{1,20}} (?:\d\S{{0,12}} )?){{0,8}}?-c ?({_NAME})")
_RECEIVED = re.compile(r" (\d{1,6}(?:\.\d{1,6})?) ([KMG])bits/sec {1,30}(?:\d{1,9} {1,30})?receiver\b")
_PING = re.compile(rf"PING ({_NAME})(?: \(({_ADDRESS})\))? (\d{{1,6}})\(\d{{1,6}}\) ")
# The command, whose output may be cut to its last lines: `ping -q -c3 -M do -s 8972 n4 | tail -2`, `... $h | tail -2`
_PINGS = re.compile(
    rf"\bping(?P<options>(?: -[A-Za-z][\w.]{{0,8}}(?: [\w.]{{1,8}})?){{0,12}}?) (?P<to>{_NAME}|\$\{{?\w{{1,20}}\}}?)\s*"
    r"(?:$|[;|&]|\d?>)"
)
_BODY = re.compile(r"\bdo\b(.*)\bdone\b")  # of a loop
_PING_SIZE = re.compile(r" -s ?(\d{1,6})\b")
_PING_BYTES = 56  # without -s
_PINGED = re.compile(  # in any language: `5 packets transmitted, 0 received, +5 errors, 100% packet loss, time 4102ms`
    r"(\d{1,7}) [^\d,\n]{3,30}, (\d{1,7}) [^\d,\n]{3,30},.{0,40}? (\d{1,3}(?:\.\d{1,9})?) ?% [^\d,\n]{4,30}(?:,|$)"
)
# `REJECT  all  --  0.0.0.0/0 ... reject-with`, and the kernel's log of a rule: `IN=eth0 OUT= SRC=... DST=... DPT=...`
_RULE = re.compile(
    r"^\s*(?:\d{1,5}\s+)?(?:\d{1,9}[KMG]?\s+){0,2}(REJECT|DROP)\s+(?:all|tcp|0|6)\s+--\s+"
    r"(?:\*\s+\*\s+|any\s+any\s+)?\S+\s+\S+"
    r"(?!.{0,100}\bdpt:)"
)
_NFT_RULE = re.compile(  # for all packets that reach the end of a chain; nft(8): VERDICT and REJECT STATEMENT
    r"^\s{1,16}(?:counter packets \d{1,18} bytes \d{1,18} )?"
    r"(?:reject with (?:icmpx?|icmpv6|tcp)\b[\w -]{0,60}|drop)\s*$"
    r"|\bhook input priority [^;]{1,40}; policy drop;"
)
_FIREWALLD = re.compile(r"\bfirewall-cmd\b.{0,80}--list-ports\b")  # what it lets in besides services
_OPEN_PORTS = re.compile(r"\s{0,8}(?:\d{1,5}/(?:tcp|udp)\s{0,4}){1,16}")
_DROPPED = re.compile(
    r"(?:REJECT|DROP|BLOCK|DENY|Reject|Drop|Block)\w{0,40}\]?:? .{0,80}?\bIN=\S{1,40} OUT=\s.{0,200}?"
    rf"SRC=({_ADDRESS}) DST=({_ADDRESS}).{{0,120}}?PROTO=TCP.{{0,60}}?DPT=(\d{{1,5}})",
    re.IGNORECASE,
)
OPENING = re.compile(
    r"\bSpeed: {0,4}\d{1,7} ?[MG]b|> mtu \d{3,6}|physical_state|Link detected: |packets transmitted, |Physical state:"
    r"|phys_state:|PORT_DOWN|[KMG]bits/sec|reject-with|\bhook input priority|\bIN=\S{1,40} OUT=\s"
    r"|[Ll]ink (?:is )?[Dd]own|NIC Link is Up|\bnvidia-nccl-cu\d"
    r"|\bactive_mtu:|NCCL INFO NCCL version \d|NCCL version \d[\d.]{1,10}\+cuda|\btorch(?:==| )\d"
    r"|/sys/class/net/[^/\s]{1,40}/(?:mtu|speed)\b"
    r"|\bethtool (?:-S|--statistics) [a-z]|torch\.__version__|query-gpu=driver_version|\bibstat(?:us)?\b.*\b[Rr]ate\b"
    r"|\bPING \S{1,80} \(|\bLoss%\s{1,8}Snt\s{1,8}Last\b"
    r"|\] succeeded!|\(tcp\) failed: |\bfirewall-cmd\b.{0,80}--list-ports\b|\bport \d ==> \S{1,40} \((?:Up|Down)\)",
)
_FILE = re.compile(r"\.(?:py|sh|cc|cpp|log|txt|md|ya?ml|json)$")
# Interfaces that carry no traffic between hosts.
_INTERNAL = re.compile(r"^(?:lo|docker|br-|veth|virbr|cni|flannel|cali|kube|lxc|podman|tun|ib\d{1,2}\.|dummy)")
# `nvidia-nccl-cu12==2.20.5`, `NCCL version 2.20.5+cuda12.4`, `torch 2.3.1`, `Driver Version: 550.54.15`
_VERSION = re.compile(
    r"\bnvidia-(nccl)-cu\d{2}(?:==| {1,40})(\d{1,2}(?:\.\d{1,4}){1,3})|\b(NCCL) version (\d{1,2}(?:\.\d{1,3}){1,2})"
    r"|\b(torch)(?:==| {1,40}|\.__version__ ?[:=]? ?)(\d\.\d{1,2}(?:\.\d{1,2})?)"
    r"|\b(Driver) Version: (\d{3}(?:\.\d{1,4}){1,3})"
)
# The command whose answers are bare versions, one a host: `2.5.1+cu124`, `550.54.15`, `(2, 21, 5)`.
_ASKED = re.compile(r"(torch)\.__version__|query-gpu=(driver)_version|torch\.cuda\.(nccl)\.version")
_ASKED_PORT = re.compile(r"/sys/class/net/([^/\s]{1,40})/(mtu|speed)\b")  # bare numbers: bytes, Mb/s
_BARE_VERSION = re.compile(r"\(?(\d{1,3}(?:(?:\.|, )\d{1,4}){1,3}(?:\+[a-z]{2,5}[\d.]{1,8})?)\)?")
_IBSTAT = re.compile(r"\bibstat(?:us)?(?: (?P<device>[a-z]\w{1,30}))?")
_ALIKE = re.compile(r"\s{0,16}(\d{1,5}) (\d{3,5})\s*")  # `sort | uniq -c` of what all hosts of a loop say
# `ethtool -S IFACE`: counters of frames that a bad cable, transceiver or port corrupts, as drivers name them.
_COUNTING = re.compile(r"\bethtool (?:-S|--statistics) ([a-z][\w.-]{1,30})")
_COUNTER = re.compile(r"(?<![\w.])([a-z][\w.]{2,60}): {1,4}(\d{1,18})(?!\S)")
_CORRUPTED = re.compile(
    r"(?:crc|symbol|fcs|bad_csum_phy)\w{0,20}err|err\w{0,20}(?:crc|symbol|fcs)|crc_?align|(?:^|_)fcs$"
)
_NCCL_LINE = re.compile(rf"(?:^|[\s\]:>|])({_NAME}):\d{{1,9}}:\d{{1,9}} \[-?\d{{1,3}}\] ")
# A row of mtr(8) --report: hop, host, then Loss%, Snt and four times; `???` did not answer at all.
_HOP = re.compile(
    rf"\s{{0,8}}\d{{1,3}}\.(?:\|--|\s) ?(?P<to>{_NAME})\s{{1,60}}(?P<percent>\d{{1,3}}(?:\.\d{{1,3}})?)%?\s{{1,12}}"
    r"(?P<sent>\d{1,9})(?:\s{1,12}\d{1,9}(?:\.\d{1,3})?){4,6}\s*"
)
MAX_EVENTS = 2000
MAX_ALIASES = 10_000
_TRIED = re.compile(  # nc of OpenBSD
    r"\bConnection to (?P<open>[\w.:-]{1,80})(?: \([\w.:-]{1,80}\))? (?P<open_port>\d{1,5}) port \[tcp/\S{1,40}\] succ"
    r"|\bnc: connect to (?P<shut>[\w.:-]{1,80})(?: \([\w.:-]{1,80}\))? port (?P<shut_port>\d{1,5}) \(tcp\) failed: "
    r"(?:No route to host|(?:Connection|Operation) timed out)"
)
_MAX_MTU = re.compile(r"\bmax_mtu:\s{1,24}(\d{3,5}) \(\d\)")  # ibv_devinfo
_FACTOR = {"K": 0.001, "M": 1.0, "G": 1000.0}  # to Mbit/s


@dataclass(slots=True)
class _Reading:
    """The state while a text is read."""

    source: str
    host_of: Callable[[str], str | None] = lambda address: None  # the host of an address, as the text states it
    host: str | None = None  # of the lines that follow
    only: str | None = None  # host of a text that names one in a sentence
    device: str = ""  # of ibstat
    counted: str = ""  # interface whose counters are listed
    asked: str = ""  # package whose bare version a command asked for, or "mtu" or "speed" of a port
    asked_port: str = ""  # that port; "": not named
    merged: bool = False  # equal MTUs are one line, behind their number
    ports: bool = False  # the ports that a firewall lets in follow
    looped: tuple[str, ...] = ()  # hosts over which a loop of the shell runs
    measured: str = ""  # host to which iperf sends
    tried: dict[str, dict[bool, tuple[str, str]]] = field(default_factory=dict)  # address -> open? -> port, line of nc
    max_mtu: str = ""  # of the RDMA port whose MTU follows
    pinged: list[tuple[str, int]] = field(default_factory=list)  # host and bytes of each ping whose result follows
    hop: tuple[str, int, float, str] | None = None  # the row above of mtr: its host, packets, percent lost, text
    events: list[tuple[str | None, LogEvent]] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # address -> name
    speakers: dict[str, bool] = field(default_factory=dict)  # host whose NCCL wrote a line -> one shows its version
    unsigned: dict[str, str] = field(default_factory=dict)  # version of NCCL in lines that name no host -> line

    def add(self, host: str | None, kind: str, text: str, **fields: str) -> None:
        if len(self.events) < MAX_EVENTS:
            number = len(self.events) + 1
            self.events.append((host, LogEvent(kind, text.strip()[:400], self.source, number, None, fields)))

    def add_loss(self, text: str, to: str, size: int, sent: int, lost: int, percent: float) -> None:
        counts = {"bytes": str(size), "sent": str(sent), "lost": str(lost), "percent": str(int(percent))}
        self.add(None, "path_loss", text, to=to, **counts)


class NetworkToolsReader:
    name = "output of network tools"
    order = 45
    marks = (
        "ethtool -",
        "Speed: ",
        "> mtu ",
        "physical_state",
        "packets transmitted, ",
        "PING ",
        "Loss%",
        "Physical state:",
        "active_mtu:",
        "bits/sec",
        "reject-with",
        "firewall-cmd",
        "(tcp) failed: ",
        "hook input priority",
        "PROTO=TCP",
        "nvidia-nccl-cu",
        "torch.__version__",
        "query-gpu=driver_version",
    )
    help = "`ethtool IFACE`, `ip link` or `ibstat` of every host, `iperf3` and `ping -M do -s 8972` between them"

    def recognises(self, source: Source) -> bool:
        return bool(OPENING.search(source.head_text))

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        reading, cleaned = _Reading(source.name), text_source(source, context)
        if isinstance(cleaned, TextSource):
            reading.host_of = cleaned.addresses.host_of
        for text in chain(text_lines(cleaned, context), [""]):  # an empty line ends a table
            if len(text) <= 1000:
                _read_line(reading, text)
        _add_unsigned_version(reading)
        yield from _pieces(reading)


def _read_line(reading: _Reading, text: str) -> None:
    for pair in _PAIR.finditer(text) if "(" in text else ():
        if len(reading.names) < MAX_ALIASES and _is_host(pair[1]) and not _is_address(pair[1]):
            reading.names.setdefault(pair[2], pair[1])
    if (entry := _ETC_HOSTS.fullmatch(text)) and len(reading.names) < MAX_ALIASES and not _is_address(entry[2]):
        reading.names.setdefault(entry[1], entry[2])
    command = text.lstrip().startswith("$ ")
    if found := _PROMPT.match(text):
        command = True
        shown = prompt_of(text)
        if _is_host(found[1]) or (shown is not None and shown.host == found[1]):
            reading.host = found[1]
        text = found[2]
    elif found := _BARE_PROMPT.match(text):
        text = found[1]
    if command:
        reading.asked, reading.asked_port, reading.looped, reading.merged = "", "", (), False
        reading.measured = client[1] if "iperf" in text and (client := _IPERF.search(text)) else ""
    if "ethtool" in text and (counting := set(_COUNTING.findall(text))):
        reading.counted = counting.pop() if len(counting) == 1 else ""
    if loop := shell_loop(text):  # lines that are one of its hosts alone
        reading.looped = tuple(filter(_is_host, loop.words))
    if "ping " in text and _PINGS.search(text):
        reading.pinged = list(_pinged(text, reading.looped))
    elif command:
        reading.pinged = []
    if "version" in text and (asked := _ASKED.search(text)):
        reading.asked = next(name for name in asked.groups() if name)
    elif "/sys/class/net/" in text and (port := _ASKED_PORT.search(text)):
        reading.asked, named = port[2], {one[1] for one in _ASKED_PORT.finditer(text)}
        reading.asked_port = port[1] if len(named) == 1 and not re.search(r"[$*]", port[1]) else ""
        reading.merged = reading.asked == "mtu" and "uniq -c" in text
    if "ibstat" in text and (ibstat := _IBSTAT.search(text)):
        reading.device = ibstat["device"] or reading.device or "the adapter"
    if text.strip() in reading.looped:
        reading.host = text.strip()
        return
    if "ssh" in text and (found := _SSH.search(text)):
        reading.host = found[1] if _is_host(found[1]) else reading.host
    elif _observed(reading, text, command):
        return
    if "NCCL" in text and (speaker := _NCCL_LINE.search(text)) and len(reading.speakers) < MAX_ALIASES:
        reading.speakers.setdefault(speaker[1], False)
    hosts, rest = _prefix(text)
    for host in hosts or (reading.host,):
        _port(reading, host, rest)
        _counter(reading, host, rest)
        _version(reading, host, rest)
    _path(reading, text)
    _firewall(reading, text)
    _tried_ports(reading, text)


def _pinged(text: str, looped: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Host and bytes of each ping of a command line, in the order of their results. `looped`: hosts of its loop."""
    body = _BODY.search(text)
    parts = [(text[: body.start()], ()), (body[1], looped), (text[body.end() :], ())] if body else [(text, looped)]
    for part, hosts in parts:
        pings = list(_PINGS.finditer(part))
        for host in hosts or ("",):
            for ping in pings:
                of_loop = ping["to"].startswith("$")
                to = host if of_loop else ping["to"]
                if to and (of_loop or body or not hosts):  # of a loop over several lines, the others are unknown
                    size = _PING_SIZE.search(ping["options"])
                    yield to, int(size[1]) if size else _PING_BYTES


def _observed(reading: _Reading, text: str, command: bool) -> bool:
    """True if the line is a heading, which names the host of what follows."""
    if not command and len(text) <= 120 and (found := _HEADING.fullmatch(text)) and _is_host(found[1]):
        reading.host = found[1]
        return True
    if (found := _AT_END.search(text)) and _is_host(found[1]):
        reading.only = found[1]
    return False


def _prefix(text: str) -> tuple[tuple[str, ...], str]:
    """The hosts in front of a line, and the rest."""
    found = _PREFIX.match(text)
    if not found:
        return (), text
    names = tuple(name.strip() for name in re.split(r"[/,&]", found[1]))
    rest = text[found.end() :]
    plain = _IP_LINK.match(text.strip()) or _IFCONFIG.match(text.strip())
    return (names, rest) if all(map(_is_host, names)) and not plain else ((), text)


def _port(reading: _Reading, host: str | None, text: str) -> None:
    if reading.asked in ("mtu", "speed") and host is not None and text.strip().isdecimal() and len(text.strip()) < 8:
        kind, unit = ("port_mtu", "mtu") if reading.asked == "mtu" else ("port_speed", "mbit")
        reading.add(host, kind, text, interface=reading.asked_port, **{unit: text.strip()})
    elif reading.merged and (alike := _ALIKE.fullmatch(text)) and int(alike[1]) == len(reading.looped):
        for each in reading.looped:
            reading.add(each, "port_mtu", text, interface=reading.asked_port, mtu=alike[2])
    if row := _IB_ROW.fullmatch(text.strip()):
        shown = _ROW_STATE.search(row["rest"])
        if shown:
            reading.add(host, "port_state", text, interface=row[1], state=shown[1].lower())
        if not shown or shown[1].lower() == "active":
            reading.add(host, "port_speed", text, mbit=str(int(row["rate"]) * 1000), interface=row[1])
        return
    if found := _NETDEV.fullmatch(text):
        state = "active" if found[2] == "Up" else "down"
        reading.add(host, "port_state", text, interface=found[1], state=state)
    if found := _IB_PORT.search(text):
        reading.device = next(name for name in found.groups() if name)
    if found := _SPEED.search(text):
        number, unit = (found[1], found[2]) if found[1] else (found[3], found[4])
        reading.add(host, "port_speed", text, mbit=str(int(int(number) * _FACTOR[unit.upper()])))
    elif (found := _RATE.match(text)) and reading.device:
        reading.add(host, "port_speed", text, mbit=str(int(found[1]) * 1000), interface=reading.device)
    if found := _MAX_MTU.search(text):
        reading.max_mtu = found[1]
    if "mtu " in text and (found := _IP_LINK.search(text) or _IFCONFIG.search(text)):
        if not _INTERNAL.match(found[1]):
            reading.add(host, "port_mtu", text, interface=found[1], mtu=found[3])
            state = "down" if "NO-CARRIER" in found[2] else "up" if "LOWER_UP" in found[2] else ""
            if state:
                reading.add(host, "port_state", text, interface=found[1], state=state)
    elif host is not None and (found := _BARE_MTU.search(text)):
        most = {"most": reading.max_mtu} if found[2] and reading.max_mtu else {}
        reading.add(host, "port_mtu", text, mtu=found[1] or found[2], **most)
    if "physical_state" in text and (found := _RDMA.search(text)):
        reading.add(host, "port_state", text, interface=found[1], state=found[2].lower())
    elif (found := _IB_STATE.match(text)) and reading.device:
        reading.add(host, "port_state", text, interface=reading.device, state=found[1].lower())
    elif _NO_CARRIER.search(text):
        reading.add(host, "port_state", text, state="down")
    if "ink " in text and (found := _KERNEL_LINK.search(text)):
        named = re.search(rf"({_NAME}) kernel: ", text[: found.start()])
        reading.add(named[1] if named else host, "port_link", text, port=found[1], state=found[2].lower())


def _counter(reading: _Reading, host: str | None, text: str) -> None:
    if reading.counted and _COUNTER.match(text.strip()):
        for found in _COUNTER.finditer(text):  # several, if `xargs` joined them
            if _CORRUPTED.search(found[1]):
                reading.add(host, "port_counter", text, interface=reading.counted, counter=found[1], value=found[2])


def _version(reading: _Reading, host: str | None, text: str) -> None:
    bare = _BARE_VERSION.fullmatch(text.strip()) if reading.asked not in ("", "mtu", "speed") else None
    if bare and host is not None:
        version = bare[1].replace(", ", ".").partition("+")[0]
        reading.add(host, "software_version", text, package=reading.asked, version=version)
        return
    for found in _VERSION.finditer(text):
        _add_version(reading, host, text, found)


def _add_version(reading: _Reading, host: str | None, text: str, found: re.Match[str]) -> None:
    writer = _NCCL_LINE.search(text[: found.start()])
    name, version = (group for group in found.groups() if group)
    host = writer[1] if writer else host
    if host is not None:
        reading.add(host, "software_version", text, package=name.lower(), version=version)
        if host in reading.speakers and name.lower() == "nccl":
            reading.speakers[host] = True
    elif name.lower() == "nccl" and len(reading.unsigned) < MAX_ALIASES:
        reading.unsigned.setdefault(version, text)


def _add_unsigned_version(reading: _Reading) -> None:
    """NCCL prints its version without a prefix, too: it is that of the only host whose lines show none."""
    silent = [host for host, shown in reading.speakers.items() if not shown]
    if len(silent) == 1 and len(reading.speakers) > 1 and len(reading.unsigned) == 1:
        ((version, text),) = reading.unsigned.items()
        reading.add(silent[0], "software_version", text, package="nccl", version=version)


def _path(reading: _Reading, text: str) -> None:
    for rate in _PATH.finditer(text) if "b/s" in text or "bps" in text or "bit" in text else ():
        mbit = float(rate[3]) * _FACTOR[rate[4]]
        reading.add(None, "path_rate", text, **{"from": rate[1], "to": rate[2], "mbit": f"{mbit:g}"})
    if reading.measured and reading.host and (received := _RECEIVED.search(text)):
        mbit = float(received[1]) * _FACTOR[received[2]]
        way = {"from": reading.host, "to": reading.measured}
        reading.add(None, "path_rate", text, **way, mbit=f"{mbit:g}")
    if "PING" in text and (found := _PING.search(text)):
        reading.pinged[:1] = [(found[1], int(found[3]))]
    elif reading.pinged and (found := _PINGED.search(text)):
        host, size = reading.pinged.pop(0)
        sent = int(found[1])
        reading.add_loss(text, host, size, sent, max(sent - int(found[2]), 0), float(found[3]))
    _route(reading, text)


def _route(reading: _Reading, text: str) -> None:
    """A table of mtr(8). Routers on the way need not answer: what counts is the last hop."""
    if hop := _HOP.fullmatch(text):
        reading.hop = (hop["to"], int(hop["sent"]), float(hop["percent"]), text)
    elif reading.hop is not None:
        to, packets, percent, row = reading.hop
        reading.add_loss(row, to, _PING_BYTES, packets, round(packets * percent / 100), percent)
        reading.hop = None


def _firewall(reading: _Reading, text: str) -> None:
    if _FIREWALLD.search(text):
        reading.ports = True
    elif reading.ports and text.strip():
        reading.ports = False
        if _OPEN_PORTS.fullmatch(text):
            reading.add(reading.host, "firewall_open", text, ports=" ".join(re.findall(r"\d+(?=/tcp)", text)))
    if "SRC=" in text and (found := _DROPPED.search(text)):
        named = re.search(rf"({_NAME}) kernel: ", text[: found.start()])
        host = named[1] if named and _is_host(named[1]) else reading.host or reading.names.get(found[2], found[2])
        reading.add(host, "firewall_rejects", text, port=found[3])
    elif (_RULE.match(text) or _NFT_RULE.search(text)) and reading.host:
        reading.add(reading.host, "firewall_rejects", text)


def _tried_ports(reading: _Reading, text: str) -> None:
    """nc(1): where one port of a host is open, and another gives no route to the host, its firewall rejects it."""
    found = _TRIED.search(text)
    if found is None or len(reading.tried) >= MAX_ALIASES:
        return
    address = found["open"] or found["shut"]
    seen = reading.tried.setdefault(address, {})
    seen[found["open"] is not None] = found["open_port"] or found["shut_port"], text
    if len(seen) == 2 and seen[True][0] != seen[False][0]:
        port, line = seen.pop(False)
        host = reading.host_of(address) or reading.names.get(address, address)
        reading.add(host, "firewall_rejects", line, port=port)


def _pieces(reading: _Reading) -> Iterator[Piece]:
    by_host: dict[str | None, list[LogEvent]] = {}
    for host, event in reading.events:
        by_host.setdefault(_joined(host or reading.only, reading.names), []).append(event)
    for host, events in by_host.items():
        yield Piece(ProcessRef(host=host), "logs", Logs(tuple(events)))


def _joined(host: str | None, names: Mapping[str, str]) -> str | None:
    """The name of a host that the text names by its address elsewhere."""
    return names.get(host, host) if host is not None else None


def _is_address(word: str) -> bool:
    try:
        ipaddress.ip_address(word)
    except ValueError:
        return False
    return True


def _is_host(word: str) -> bool:
    """True if a word looks like a host: `node-a`, `gpu07`, `10.0.0.3`."""
    if not re.search(r"[\d-]", word) or re.fullmatch(r"[\d.]{1,6}", word) or not re.search(r"[A-Za-z]|\d\.\d", word):
        return False
    if re.fullmatch(_ADAPTER, word):
        return False
    return "." not in word or _is_address(word) or not _FILE.search(word)


READER = NetworkToolsReader()
